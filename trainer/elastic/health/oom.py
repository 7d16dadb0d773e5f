"""The memory limit of this process's cgroup, and the kills by the kernel's out-of-memory killer in it.

What cannot be read is unknown.
"""

from __future__ import annotations

from pathlib import Path

from trainer.elastic.health.cgroup import find_counters, parse_memory_total, parse_oom_kills
from trainer.elastic.records.files import read_text

_PROC = Path("/proc/self")
_MEMINFO = Path("/proc/meminfo")
# A cgroup's limit, in version 2 and 1: a number, or "max". The limits of the cgroups above it count, too.
_LIMITS = ("memory.max", "memory.limit_in_bytes")


def read_oom_kills(proc: Path = _PROC) -> int | None:
    """How many processes of this process's cgroup were killed for lack of memory so far. None if unknown."""
    paths = find_counters(read_text(proc / "cgroup"), read_text(proc / "mountinfo"))
    counts = (parse_oom_kills(read_text(Path(path))) for path in paths)
    return next((count for count in counts if count is not None), None)


def count_oom_kills(before: int | None) -> int:
    """How many kills there were since the count was `before`; 0 if unknown."""
    after = read_oom_kills()
    return 0 if before is None or after is None else max(0, after - before)


def read_memory_limit(proc: Path = _PROC, meminfo: Path = _MEMINFO) -> int | None:
    """The bytes that the processes of this process's cgroup may use together: at most the machine's memory."""
    counters = [Path(path) for path in find_counters(read_text(proc / "cgroup"), read_text(proc / "mountinfo"))]
    texts = [read_text(folder / name).strip() for path in counters for folder in path.parents for name in _LIMITS]
    machine = parse_memory_total(read_text(meminfo))
    limits = [int(text) for text in texts if text.isdecimal()] + ([] if machine is None else [machine])
    return min(limits, default=None)
