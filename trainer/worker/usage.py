"""Load and memory of this worker's GPU, or on a CPU of this process. Never ends a run.

NVML samples over a part of a second by itself (NVML API reference, nvmlDeviceGetUtilizationRates).
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

try:
    import pynvml
except ImportError:  # only installed on nodes with GPUs
    pynvml = None

_PERIOD_S = 1.0  # CPU-time clocks are too coarse for short steps


class Usage:
    """The usage of this process, measured at most once a second."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.process_time,
    ) -> None:
        self._clock, self._cpu_clock = clock, cpu_clock
        self._since, self._cpu_s = clock(), cpu_clock()
        self._known: float | None = None
        self._device: int | None = None

    def read(self) -> float | None:
        """Load from 0 to 1. None in the first second, and if the driver does not report it."""
        now = self._clock()
        if now - self._since < _PERIOD_S:
            return self._known
        cpu_s = self._cpu_clock()
        torch = sys.modules.get("torch")  # scripts without torch report, too
        if torch is not None and torch.cuda.is_available():
            self._device = self._find_device(torch)
            self._known = None if self._device is None else _of_gpu(torch, self._device)
        else:
            threads = 1 if torch is None else torch.get_num_threads()
            self._known = round(min(1.0, (cpu_s - self._cpu_s) / (now - self._since) / threads), 3)
        self._since, self._cpu_s = now, cpu_s
        return self._known

    def memory_bytes(self) -> int | None:
        """Peak of allocated GPU memory, None before the device is known. On a CPU, the resident set.

        Callable from any thread: a thread's own current device may be another one.
        """
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_available():
            return _resident_bytes()
        self._device = self._find_device(torch)
        return None if self._device is None else _peak_bytes(torch, self._device)

    def _find_device(self, torch: ModuleType) -> int | None:
        """The device of the main thread. Asking must not start CUDA before the program does."""
        is_trainer = threading.current_thread() is threading.main_thread()
        return int(torch.cuda.current_device()) if is_trainer and torch.cuda.is_initialized() else self._device


def _of_gpu(torch: ModuleType, device: int) -> float | None:
    if pynvml is None:
        return None
    try:
        return int(torch.cuda.utilization(device)) / 100
    except (RuntimeError, ImportError, pynvml.NVMLError):  # MIG slices, old drivers, some containers
        return None


def _peak_bytes(torch: ModuleType, device: int) -> int:
    """Like torch.cuda.max_memory_allocated, but without listing all statistics."""
    return int(torch.cuda.memory.memory_stats_as_nested_dict(device)["allocated_bytes"]["all"]["peak"])


def _resident_bytes() -> int | None:
    """The resident set of this process (proc(5), statm, field 2)."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
