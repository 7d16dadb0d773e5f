"""The garbage collector of a process that makes a million objects without a cycle, at its start and in each pass."""

from __future__ import annotations

import gc


def calm_collector() -> None:
    """Look for garbage seldom, and never among what is there now: each search looks at everything else."""
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)
