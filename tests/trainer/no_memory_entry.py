"""The trainer on a node with 1000 free bytes."""

import sys

from trainer.__main__ import main
from trainer.snapshot import memory_tier

if __name__ == "__main__":
    memory_tier.read_free_memory = lambda: 1000
    sys.exit(main())
