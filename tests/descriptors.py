"""What this process has open."""

from __future__ import annotations

from pathlib import Path


def count_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
