"""`python benchmarks/recovery.py` is `python -m benchmarks.recovery`: see the package of this name."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])
    from benchmarks.recovery.__main__ import main  # found only from the path that was just set

    sys.exit(main())
