"""A full disk on purpose: an operator's request, which the agent leaves as a file for one rank. Met once."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from trainer.contract import layout
from trainer.contract.env import WorkerPlace


def meet_full_disk(place: WorkerPlace, where: str) -> None:
    """Raise OSError as a write to a full disk does, where this rank is to meet one; once for each request."""
    if place.replica_dir is None:
        return
    try:
        (Path(place.replica_dir) / f"{layout.FULL_DISK}{place.rank}").unlink()
    except OSError:
        return
    raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} (on purpose)", where)
