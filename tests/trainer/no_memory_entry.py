"""The trainer on a node with 1000 free bytes."""

import sys

from trainer.__main__ import main
from trainer.elastic.health import oom

if __name__ == "__main__":
    oom.read_free_memory = lambda: 1000
    sys.exit(main())
