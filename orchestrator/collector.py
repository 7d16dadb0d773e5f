"""Tune memory for a process that creates a million objects at its start and in each pass, none of them in cycles."""

from __future__ import annotations

import ctypes
import gc
import sys
from contextlib import suppress

_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8  # malloc.h
_LARGE_BYTES = 64 * 1024
_ARENAS = 2


def calm_collector() -> None:
    """Collect garbage rarely, and never visit the objects that exist now."""
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)


def limit_free_memory() -> None:
    """Limit the memory that is freed but stays resident (mallopt(3); glibc only).

    By default, glibc keeps freed blocks of up to 32 MB once one of that size was freed. Small objects then fragment
    them, and after a minute of long requests, hundreds of megabytes stay resident. It also gives each
    thread an arena of its own, whose free memory other threads cannot use.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            mallopt = ctypes.CDLL(None).mallopt
            mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
            mallopt(_M_ARENA_MAX, _ARENAS)
