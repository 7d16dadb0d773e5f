"""Memory settings for a process that creates a million objects without cycles, at its start and in each pass."""

from __future__ import annotations

import ctypes
import gc
import sys
from contextlib import suppress

_M_MMAP_THRESHOLD = -3  # malloc.h
_LARGE_BYTES = 64 * 1024


def calm_collector() -> None:
    """Collect garbage rarely, and exclude all objects that exist now: each collection visits every other one."""
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)


def return_large_blocks() -> None:
    """Return each large block to the system when it is freed (mallopt(3); glibc only).

    By default, once a block of up to 32 MB was freed, glibc keeps freed blocks of that size. Small objects then
    fragment them: after a minute of long requests, hundreds of megabytes stay resident.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
