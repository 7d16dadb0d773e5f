"""The load and memory of a worker's device."""

import threading
import types
from concurrent.futures import ThreadPoolExecutor

import pytest

from trainer.worker import usage
from trainer.worker.usage import Usage


class Clock:
    def __init__(self):
        self.now, self.cpu_s = 0.0, 0.0

    def usage(self):
        return Usage(clock=lambda: self.now, cpu_clock=lambda: self.cpu_s)


def fake_torch(*, available, threads=1, utilization=None, started=True, device=0):
    def ask(number):
        assert number == device
        if isinstance(utilization, Exception):
            raise utilization
        return utilization

    def current_device():
        assert started, "asking for the device starts CUDA"
        assert threading.current_thread() is threading.main_thread(), "other threads have their own current device"
        return device

    cuda = types.SimpleNamespace(
        is_available=lambda: available,
        is_initialized=lambda: started,
        current_device=current_device,
        utilization=ask,
    )
    return types.SimpleNamespace(cuda=cuda, get_num_threads=lambda: threads)


def test_cpu_load_is_divided_by_the_number_of_threads(monkeypatch):
    monkeypatch.setitem(usage.sys.modules, "torch", fake_torch(available=False, threads=4))
    clock = Clock()
    read = clock.usage().read
    assert read() is None, "nothing was measured yet"
    clock.now, clock.cpu_s = 2.0, 4.0
    assert read() == 0.5
    clock.now, clock.cpu_s = 2.5, 9.0
    assert read() == 0.5, "once a second at most"
    clock.now, clock.cpu_s = 4.0, 40.0
    assert read() == 1.0, "threads that only fetch data may add to it"


class NVMLError(Exception):
    pass


NVML = types.SimpleNamespace(NVMLError=NVMLError)


@pytest.mark.parametrize(
    ("nvml", "torch", "expected"),
    [
        (NVML, {"utilization": 93}, 0.93),
        (NVML, {"utilization": 0}, 0.0),
        (NVML, {"utilization": NVMLError("not supported")}, None),
        (NVML, {"utilization": RuntimeError("no driver")}, None),
        (NVML, {"utilization": 50, "started": False}, None),
        (None, {"utilization": 50}, None),
    ],
    ids=["busy", "idle", "a MIG slice", "no driver", "CUDA is not started", "no NVML"],
)
def test_the_load_of_a_gpu_comes_from_nvml_if_that_answers(monkeypatch, nvml, torch, expected):
    monkeypatch.setattr(usage, "pynvml", nvml)
    monkeypatch.setitem(usage.sys.modules, "torch", fake_torch(available=True, **torch))
    assert load_after_a_second() == expected


def test_without_torch_one_thread_counts(monkeypatch):
    monkeypatch.delitem(usage.sys.modules, "torch", raising=False)
    assert load_after_a_second(cpu_s=0.25) == 0.25


def load_after_a_second(cpu_s=0.0):
    clock = Clock()
    read = clock.usage().read
    clock.now, clock.cpu_s = 1.0, cpu_s
    return read()


def test_another_thread_reports_the_device_that_trains(monkeypatch):
    monkeypatch.setattr(usage, "pynvml", NVML)
    monkeypatch.setitem(usage.sys.modules, "torch", fake_torch(available=True, utilization=50, device=3))
    clock = Clock()
    read = clock.usage().read
    with ThreadPoolExecutor(1) as pool:
        clock.now = 1.0
        assert pool.submit(read).result() is None, "the device is not known yet"
        clock.now = 2.0
        assert read() == 0.5
        clock.now = 3.0
        assert pool.submit(read).result() == 0.5


def test_memory_is_that_of_the_training_device_on_any_thread(monkeypatch):
    """The thread that reports waits has device 0 as its current one, where another rank trains."""
    cuda = fake_torch(available=True, device=3)

    def stats(device):
        return {"allocated_bytes": {"all": {"peak": {3: 700}.get(device, 0)}}}

    cuda.cuda.memory = types.SimpleNamespace(memory_stats_as_nested_dict=stats)
    monkeypatch.setitem(usage.sys.modules, "torch", cuda)
    found = Usage()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(found.memory_bytes).result() is None, "the device is not known yet"
        assert found.memory_bytes() == 700
        assert pool.submit(found.memory_bytes).result() == 700


def test_memory_on_a_cpu_is_the_resident_set(monkeypatch):
    monkeypatch.setitem(usage.sys.modules, "torch", fake_torch(available=False))
    assert Usage().memory_bytes() > 1_000_000
