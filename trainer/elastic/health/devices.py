"""The driver's view of this node's GPUs: lost GPUs, required resets, and the processes that hold GPU memory.

NVML opens no CUDA context, so an agent may call it. Without nvidia-ml-py or a driver every check passes. Numbers are
those of nvml.h (NVML API reference, "Field Value Enums").
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

try:
    import pynvml
except ImportError:
    pynvml = None

_RECOVERY_ACTION = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
_ACTIONS = {
    1: "a reset of the GPU",
    2: "a reboot of the node",
    3: "a drain of its peers",
    4: "a drain and a reset of the GPU",
    5: "a recovery of its IMEX domain",
    6: "a reset of its bus",
    7: "a reboot of the system",
}
_LOST = (15, 16)  # NVML_ERROR_GPU_IS_LOST, NVML_ERROR_RESET_REQUIRED
_RELEASE_S, _LOOK_EVERY_S = 10.0, 0.01


def has_gpu(environ: Mapping[str, str], folder: Path = Path("/dev")) -> bool:
    """Whether this node has GPUs that a process may see, without asking a driver: that would change the process."""
    names = [*folder.glob("nvidia[0-9]*"), *folder.glob("kfd")]
    return bool(names) and environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1")


@dataclass(frozen=True, slots=True)
class GpuUse:
    """What some processes use of the GPUs on which they hold memory. A value is None if the driver does not say."""

    memory_bytes: int | None  # all GPUs together
    utilization: float | None  # 0 to 1, the mean of the GPUs; other processes on them count, too
    total_bytes: int | None  # the size of all GPUs together


class Devices:
    """The GPUs of this node. NVML stays open while the agent lives, because opening it can take seconds."""

    def __init__(self, nvml: Any = pynvml) -> None:
        self._nvml: Any = None
        self._count = 0
        if nvml is not None:
            with suppress(nvml.NVMLError):
                nvml.nvmlInit()
                self._count, self._nvml = int(nvml.nvmlDeviceGetCount()), nvml

    @property
    def count(self) -> int:
        return self._count

    def find_sick(self, visible: str | None) -> str | None:
        """A sentence about the first GPU that cannot train. None if there is none, or the driver does not say.

        `visible` is CUDA_VISIBLE_DEVICES: indices or UUIDs, None for all.
        """
        chosen = None if not visible else visible.split(",")
        problems = (self._examine(index, chosen) for index in range(self._count))
        return next((problem for problem in problems if problem is not None), None)

    def await_release(self, pids: Iterable[int], patience_s: float = _RELEASE_S) -> list[int]:
        """Wait until none of these dead processes holds GPU memory. Returns those that still do after `patience_s`.

        The driver frees the memory of a killed process after the process is gone.
        """
        dead, deadline = set(pids), time.monotonic() + patience_s
        while holders := sorted(dead & self._holders()):
            if time.monotonic() > deadline:
                return holders
            time.sleep(_LOOK_EVERY_S)
        return []

    def are_used_by(self, pid: int) -> bool:
        """Whether a GPU on which the process holds memory is busy now.

        In a container the driver may list no processes. Then any busy GPU counts.
        """
        found = False
        for index in range(self._count):
            with suppress(self._nvml.NVMLError):
                device = self._nvml.nvmlDeviceGetHandleByIndex(index)
                holders = {process.pid for process in self._nvml.nvmlDeviceGetComputeRunningProcesses(device)}
                computes = self._nvml.nvmlDeviceGetUtilizationRates(device).gpu > 0
                found |= computes and (pid in holders or not holders)
        return found

    def measure(self, owners: Mapping[int, Collection[int]], own: Mapping[int, str]) -> dict[int, GpuUse]:
        """What the processes of each owner use. An owner without a GPU is omitted.

        `owners` has the pids of each. In a container the driver may list none of them. Then all that is used of the GPU
        that `own` names counts, an index or a UUID.
        """
        found: dict[int, list[GpuUse]] = {}
        for index in range(self._count):
            with suppress(self._nvml.NVMLError):
                device = self._nvml.nvmlDeviceGetHandleByIndex(index)
                held = {
                    each.pid: each.usedGpuMemory for each in self._nvml.nvmlDeviceGetComputeRunningProcesses(device)
                }
                for owner, pids in owners.items():
                    mine = [held[pid] for pid in pids if pid in held]
                    if mine:
                        found.setdefault(owner, []).append(self._use_of(device, mine))
        if not found and self._nvml is not None:
            found = {owner: [use] for owner, name in own.items() if (use := self._use_of_own(name)) is not None}
        return {owner: _add_up(uses) for owner, uses in found.items()}

    def _use_of_own(self, name: str) -> GpuUse | None:
        try:
            if name.isdecimal():
                return self._use_of(self._nvml.nvmlDeviceGetHandleByIndex(int(name)), [None])
            return self._use_of(self._nvml.nvmlDeviceGetHandleByUUID(name), [None])
        except self._nvml.NVMLError:
            return None

    def _use_of(self, device: Any, held: list[int | None]) -> GpuUse:
        """`held` is the memory of each process. If the driver does not say it, all that is used of the GPU counts."""
        known = [each for each in held if each is not None]
        used = sum(known) if len(known) == len(held) else None
        utilization = total = None
        with suppress(self._nvml.NVMLError):
            memory = self._nvml.nvmlDeviceGetMemoryInfo(device)
            total = int(memory.total)
            used = int(memory.used) if used is None else used
        with suppress(self._nvml.NVMLError):  # a slice of a GPU (MIG) has none
            utilization = int(self._nvml.nvmlDeviceGetUtilizationRates(device).gpu) / 100
        return GpuUse(used, utilization, total)

    def _examine(self, index: int, chosen: list[str] | None) -> str | None:
        nvml = self._nvml
        try:
            device = nvml.nvmlDeviceGetHandleByIndex(index)
            name = nvml.nvmlDeviceGetUUID(device)
            if chosen is not None and str(index) not in chosen and name not in chosen:
                return None
            (action,) = nvml.nvmlDeviceGetFieldValues(device, [_RECOVERY_ACTION])
        except nvml.NVMLError as error:  # an old driver may not know the field
            return f"the driver of GPU {index} reports: {error}" if error.value in _LOST else None
        wanted = _ACTIONS.get(action.value.uiVal) if action.nvmlReturn == 0 else None
        return None if wanted is None else f"GPU {index} ({name}) needs {wanted}, according to its driver"

    def _holders(self) -> set[int]:
        found: set[int] = set()
        for index in range(self._count):
            with suppress(self._nvml.NVMLError):
                device = self._nvml.nvmlDeviceGetHandleByIndex(index)
                found |= {process.pid for process in self._nvml.nvmlDeviceGetComputeRunningProcesses(device)}
        return found


def _add_up(uses: list[GpuUse]) -> GpuUse:
    memory = [each.memory_bytes for each in uses if each.memory_bytes is not None]
    shares = [each.utilization for each in uses if each.utilization is not None]
    totals = [each.total_bytes for each in uses if each.total_bytes is not None]
    return GpuUse(
        memory_bytes=sum(memory) if len(memory) == len(uses) else None,
        utilization=sum(shares) / len(shares) if shares else None,
        total_bytes=sum(totals) if len(totals) == len(uses) else None,
    )
