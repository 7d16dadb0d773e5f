"""An injected full disk: the agent leaves a file for one rank, and its next write fails once."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from trainer.contract import layout
from trainer.contract.env import WorkerPlace


def raise_injected_full_disk(place: WorkerPlace, where: str) -> None:
    """Raise the OSError of a full disk if one was requested for this rank. Once for each request."""
    if place.replica_dir is None:
        return
    try:
        (Path(place.replica_dir) / f"{layout.FULL_DISK}{place.rank}").unlink()
    except OSError:
        return
    raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} (on purpose)", where)
