"""The trainer in a process that cannot write files above 2 MB."""

import resource
import sys

from trainer import __main__

resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, 2_000_000))
if __name__ == "__main__":
    sys.exit(__main__.main())
