"""Control groups in which a throw-away Slurm holds its jobs' memory (cgroups(7), version 1; cgroup.conf(5))."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_MEMORY = Path("/sys/fs/cgroup/memory")
CONF = "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\nConstrainRAMSpace=yes\n"


def explain_absence() -> str | None:
    """Why there are none here; None: there are."""
    if os.access(_MEMORY / "release_agent", os.W_OK):  # which only the root of the whole tree has
        return None
    return f"no control groups of version 1 that we may write at {_MEMORY}"


def remove(nodes: Iterable[str]) -> None:
    """Remove what slurmd leaves of its groups. One that another cluster's job is in stays."""
    for node in nodes:
        group = _MEMORY / f"slurm_{node}"
        for folder in sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True):
            with suppress(OSError):
                folder.rmdir()
        with suppress(OSError):
            group.rmdir()
