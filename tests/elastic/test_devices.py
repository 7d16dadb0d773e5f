"""The agent's use of the GPU driver, with a fake driver."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from trainer.elastic.health.devices import Devices


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


class Driver:
    """A part of pynvml. `actions` has each GPU's recovery action, or the exception that it raises."""

    NVMLError = NVMLError

    def __init__(
        self, *actions: int | NVMLError, holders: list[list[int]] | None = None, shares: tuple[int, ...] = ()
    ) -> None:
        self.actions, self.holders, self.shares = actions, holders or [], shares

    def nvmlInit(self) -> None:  # noqa: N802
        return

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.actions)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetUUID(self, device: int) -> str:  # noqa: N802
        return f"GPU-{device}"

    def nvmlDeviceGetFieldValues(self, device: int, fields: list[int]) -> list[Any]:  # noqa: N802
        action = self.actions[device]
        if isinstance(action, NVMLError):
            raise action
        return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=action)) for _ in fields]

    def nvmlDeviceGetComputeRunningProcesses(self, device: int) -> list[Any]:  # noqa: N802
        pids = self.holders.pop(0) if self.holders else []
        return [SimpleNamespace(pid=pid) for pid in pids]

    def nvmlDeviceGetUtilizationRates(self, device: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(gpu=self.shares[device])


@pytest.mark.parametrize(
    ("action", "problem"),
    [
        (0, None),
        (1, "GPU 1 (GPU-1) needs a reset of the GPU, according to its driver"),
        (2, "GPU 1 (GPU-1) needs a reboot of the node, according to its driver"),
        (99, None),
        (NVMLError(15), "the driver of GPU 1 reports: NVML error 15"),
        (NVMLError(3), None),
    ],
)
def test_a_lost_gpu_and_one_that_needs_a_recovery_are_named(action: int | NVMLError, problem: str | None) -> None:
    assert Devices(Driver(0, action)).find_sick(None) == problem


def test_only_the_gpus_of_this_job_count() -> None:
    devices = Devices(Driver(0, 1))
    assert devices.find_sick("0") is None
    assert devices.find_sick("GPU-0") is None
    assert devices.find_sick("0,GPU-1") is not None


def test_the_agent_waits_until_dead_processes_hold_no_gpu_memory() -> None:
    driver = Driver(0, holders=[[7, 8], [7], [9]])
    assert Devices(driver).await_release([7, 8]) == []
    assert driver.holders == [], "others may hold memory"


def test_the_wait_for_gpu_memory_has_a_limit() -> None:
    assert Devices(Driver(0, holders=[[7]] * 1000)).await_release([7], patience_s=0.03) == [7]


def test_without_a_driver_every_check_passes() -> None:
    for nvml in (None, Driver()):
        assert Devices(nvml).find_sick(None) is None
        assert Devices(nvml).await_release([1]) == []
    assert Devices().find_sick(None) is None


@pytest.mark.parametrize(
    ("holders", "shares", "is_used"),
    [
        ([[7], [8]], (40, 0), True),
        ([[7], [8]], (0, 90), False),
        ([[], []], (0, 90), True),  # a container, whose driver lists no processes
        ([[], []], (0, 0), False),
    ],
)
def test_a_busy_gpu_is_used_by_the_process_that_holds_its_memory(
    holders: list[list[int]], shares: tuple[int, int], is_used: bool
) -> None:
    assert Devices(Driver(0, 0, holders=holders, shares=shares)).are_used_by(7) is is_used
