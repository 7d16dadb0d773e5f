"""Count the kills by the kernel's out-of-memory killer in this process's cgroup. An unreadable counter is unknown."""

from __future__ import annotations

from pathlib import Path

from trainer.elastic.health.cgroup import find_counters, parse_oom_kills
from trainer.elastic.records.files import read_text

_PROC = Path("/proc/self")


def read_oom_kills(proc: Path = _PROC) -> int | None:
    """How many processes of this process's cgroup were killed for lack of memory so far. None if unknown."""
    paths = find_counters(read_text(proc / "cgroup"), read_text(proc / "mountinfo"))
    counts = (parse_oom_kills(read_text(Path(path))) for path in paths)
    return next((count for count in counts if count is not None), None)


def count_oom_kills(before: int | None) -> int:
    """How many kills there were since the count was `before`; 0 if unknown."""
    after = read_oom_kills()
    return 0 if before is None or after is None else max(0, after - before)
