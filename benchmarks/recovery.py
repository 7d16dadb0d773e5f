"""`python benchmarks/recovery.py` is short for `python -m benchmarks.recovery`."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])
    from benchmarks.recovery.__main__ import main  # found only from the path that was just set

    sys.exit(main())
