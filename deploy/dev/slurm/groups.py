"""Control groups with which a throw-away Slurm limits its jobs' memory (cgroups(7), version 1; cgroup.conf(5))."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_MEMORY = Path("/sys/fs/cgroup/memory")
CONF = "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\nConstrainRAMSpace=yes\n"


def explain_absence() -> str | None:
    """Return why control groups cannot be used here, or None if they can."""
    if os.access(_MEMORY / "release_agent", os.W_OK):  # only the root of the whole tree has this file
        return None
    return f"no writable control groups of version 1 at {_MEMORY}"


def remove(nodes: Iterable[str]) -> None:
    """Remove the groups that slurmd leaves. A group with another cluster's job stays."""
    for node in nodes:
        group = _MEMORY / f"slurm_{node}"
        for folder in sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True):
            with suppress(OSError):
                folder.rmdir()
        with suppress(OSError):
            group.rmdir()
