"""The memory of a process that makes a million objects without a cycle, at its start and in each pass."""

from __future__ import annotations

import ctypes
import gc
import sys
from contextlib import suppress

_M_MMAP_THRESHOLD = -3  # malloc.h
_LARGE_BYTES = 64 * 1024


def calm_collector() -> None:
    """Look for garbage seldom, and never among what is there now: each search looks at everything else."""
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)


def return_large_blocks() -> None:
    """Have each large block go back to the system when it is freed (mallopt(3); glibc alone).

    By default glibc keeps blocks up to 32 MB once it has seen one of that size. What is left of them between small
    objects is lost: a minute of long requests would leave hundreds of megabytes behind.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
