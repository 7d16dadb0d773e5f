"""Whether the kernel's out-of-memory killer has acted among an agent's workers. What cannot be read is unknown."""

from __future__ import annotations

from pathlib import Path

from trainer.elastic.health.cgroup import find_counters, parse_oom_kills

_PROC = Path("/proc/self")


def read_oom_kills(proc: Path = _PROC) -> int | None:
    """How many processes of this process's cgroup were killed for want of memory so far; None when none can tell."""
    paths = find_counters(_read(proc / "cgroup"), _read(proc / "mountinfo"))
    counts = (parse_oom_kills(_read(Path(path))) for path in paths)
    return next((count for count in counts if count is not None), None)


def count_oom_kills(before: int | None) -> int:
    """How many more they are than `before`; 0 when that is unknown."""
    after = read_oom_kills()
    return 0 if before is None or after is None else max(0, after - before)


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
