"""The driver's view of this node's GPUs: lost GPUs, required resets, and the processes that hold GPU memory.

NVML opens no CUDA context, so an agent may call it. Without nvidia-ml-py or a driver every check passes. Numbers are
those of nvml.h (NVML API reference, "Field Value Enums").
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
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


class Devices:
    """The GPUs of this node. NVML stays open while the agent lives, because opening it can take seconds."""

    def __init__(self, nvml: Any = pynvml) -> None:
        self._nvml: Any = None
        self._count = 0
        if nvml is not None:
            with suppress(nvml.NVMLError):
                nvml.nvmlInit()
                self._count, self._nvml = int(nvml.nvmlDeviceGetCount()), nvml

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
