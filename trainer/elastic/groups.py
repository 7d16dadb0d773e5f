"""Process groups of a worker that live as long as it does, so that a training that is done also ends.

A gloo group is taken apart by whoever drops its last reference: often DDP's reducer, when a script's main function
returns, after `destroy_process_group`. Its threads are joined with the interpreter lock held, while one of them may
wait for that lock to drop the context of the last backward pass: the worker then hangs for good. Seen in torch 2.13
(ProcessGroupGloo's destructor in `std::thread::join`, `runLoop` in `~ThreadLocalState`), in one of ten short runs of a
plain DDP script on a busy machine.
"""

from __future__ import annotations

import sys
from functools import wraps
from typing import Any

_kept: list[Any] = []


def keep_process_groups() -> None:
    """From now on hold every group that torch makes in this process. Does nothing where torch is not imported."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    make = getattr(c10d, "_new_process_group_helper", None)  # all public ways lead through it
    if c10d is None or make is None:
        return

    @wraps(make)
    def make_and_keep(*arguments: Any, **options: Any) -> Any:
        made = make(*arguments, **options)
        _kept.append(made)
        return made

    c10d._new_process_group_helper = make_and_keep  # type: ignore[attr-defined]
