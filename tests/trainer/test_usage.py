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


def test_without_torch_one_thread_counts(monkeypatch):
    monkeypatch.delitem(usage.sys.modules, "torch", raising=False)
    clock = Clock()
    read = clock.usage().read
    clock.now, clock.cpu_s = 4.0, 1.0
    assert read() == 0.25


class NVMLError(Exception):
    pass


@pytest.mark.parametrize(
    ("answer", "expected"),
    [(93, 0.93), (0, 0.0), (NVMLError("not supported"), None), (RuntimeError("no driver"), None)],
    ids=["busy", "idle", "a MIG slice", "no driver"],
)
def test_the_load_of_a_gpu_comes_from_nvml_if_that_answers(monkeypatch, answer, expected):
    monkeypatch.setattr(usage, "pynvml", types.SimpleNamespace(NVMLError=NVMLError))
    monkeypatch.setitem(usage.sys.modules, "torch", fake_torch(available=True, utilization=answer))
    clock = Clock()
    read = clock.usage().read
    clock.now = 1.0
    assert read() == expected


def test_a_node_without_nvml_reports_no_load_of_its_gpu(monkeypatch):
    monkeypatch.setattr(usage, "pynvml", None)
    monkeypatch.setitem(usage.sys.modules, "torch", fake_torch(available=True, utilization=50))
    clock = Clock()
    read = clock.usage().read
    clock.now = 1.0
    assert read() is None


def test_measuring_the_load_does_not_start_cuda(monkeypatch):
    monkeypatch.setattr(usage, "pynvml", types.SimpleNamespace(NVMLError=NVMLError))
    monkeypatch.setitem(usage.sys.modules, "torch", fake_torch(available=True, utilization=50, started=False))
    clock = Clock()
    read = clock.usage().read
    clock.now = 1.0
    assert read() is None


def test_another_thread_reports_the_device_that_trains(monkeypatch):
    monkeypatch.setattr(usage, "pynvml", types.SimpleNamespace(NVMLError=NVMLError))
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
