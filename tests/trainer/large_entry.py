"""The trainer with a limit of 0 for small snapshots: all ranks verify each. A rank prints the files that it reads."""

import os
import sys

from trainer import __main__
from trainer.snapshot import files
from trainer.snapshot import verification as verifying

verifying.ALONE_BYTES = 0
verify_files = files._verify_file


def verify_and_tell(path, *expected):
    print(f"rank {os.environ['RANK']} verifies {path.name}", flush=True)
    verify_files(path, *expected)


files._verify_file = verify_and_tell
if __name__ == "__main__":
    sys.exit(__main__.main())
