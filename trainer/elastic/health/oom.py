"""The memory limit of this process's cgroup, and the kills by the kernel's out-of-memory killer in it.

What cannot be read is unknown.
"""

from __future__ import annotations

from pathlib import Path

from trainer.elastic.health.cgroup import (
    find_counters,
    parse_cached,
    parse_memory_available,
    parse_memory_total,
    parse_oom_kills,
)
from trainer.elastic.records.files import read_text

_PROC = Path("/proc/self")
_MEMINFO = Path("/proc/meminfo")
# A cgroup's limit, in version 2 and 1: a number, or "max". The limits of the cgroups above it count, too.
_LIMITS = ("memory.max", "memory.limit_in_bytes")
_USED = ("memory.current", "memory.usage_in_bytes")


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
    machine = parse_memory_total(read_text(meminfo))
    limits = [limit for _, limit in _limits(proc)] + ([] if machine is None else [machine])
    return min(limits, default=None)


def read_free_memory(proc: Path = _PROC, meminfo: Path = _MEMINFO) -> int | None:
    """The bytes that the processes of this process's cgroup may still use. The kernel drops cached files for them."""
    machine = parse_memory_available(read_text(meminfo))
    rooms = [] if machine is None else [machine]
    for folder, limit in _limits(proc):
        used = next((int(text) for name in _USED if (text := read_text(folder / name).strip()).isdecimal()), 0)
        rooms.append(limit - max(0, used - parse_cached(read_text(folder / "memory.stat"))))
    return max(0, min(rooms)) if rooms else None


def find_shortage(needed: int) -> str | None:
    """Why copies of the state may not take this many bytes: at most half of what is free. None if they may."""
    free = read_free_memory()
    if free is None or needed <= free / 2:
        return None
    return f"{needed / 1e9:.2f} GB are needed, more than half of the {free / 1e9:.2f} GB that are free"


def _limits(proc: Path) -> list[tuple[Path, int]]:
    """The folders of this process's cgroup and of those above it that have a limit, and the limit in bytes."""
    counters = [Path(path) for path in find_counters(read_text(proc / "cgroup"), read_text(proc / "mountinfo"))]
    texts = [
        (folder, read_text(folder / name).strip()) for path in counters for folder in path.parents for name in _LIMITS
    ]
    return [(folder, int(text)) for folder, text in texts if text.isdecimal()]
