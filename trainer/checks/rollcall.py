"""`python -m trainer.checks.rollcall` under a launcher: the workers form a group on their CPUs and count each other.

`orchestrator doctor` starts it like a job. It needs torch and no other dependency of this package.
"""

from __future__ import annotations

import sys
from datetime import timedelta

import torch
import torch.distributed as dist

_TIMEOUT = timedelta(seconds=60)


def main() -> int:
    dist.init_process_group("gloo", timeout=_TIMEOUT)
    try:
        present = torch.ones(1)
        dist.all_reduce(present)
        expected = dist.get_world_size()
    finally:
        dist.destroy_process_group()
    if present.item() != expected:
        print(f"rollcall: {present.item():g} of {expected} workers answered", file=sys.stderr)
        return 1
    print(f"rollcall: all {expected} workers answered")
    return 0


if __name__ == "__main__":
    sys.exit(main())
