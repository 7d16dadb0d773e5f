"""The device of each rank, and leaving a group."""

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.trainer.harness import start_group
from trainer.contract.env import parse_place
from trainer.errors import DeviceError
from trainer.worker import group
from trainer.worker.heartbeat import Heartbeat
from trainer.worker.waits import Waits

GPU = torch.device("cuda", 2)


@pytest.fixture
def place():
    return parse_place({})


def enter(monkeypatch, place, *, destroy):
    """A group of one rank on a fake GPU."""
    chosen = []
    monkeypatch.setattr(group, "_take_device", lambda _: GPU)
    monkeypatch.setattr("torch.distributed.init_process_group", lambda *_, **__: None)
    monkeypatch.setattr("torch.distributed.destroy_process_group", destroy)
    monkeypatch.setattr("torch.cuda.set_device", chosen.append)
    monkeypatch.setattr(group, "on_every_rank", lambda action, _: [action()])
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda _: SimpleNamespace(uuid="8f2b"))
    return group.process_group(place, Waits(Heartbeat(place, None))), chosen


def test_an_error_is_raised_even_if_the_group_cannot_be_left(monkeypatch, place):
    """Destroying an NCCL group may wait for dead ranks."""
    never, entered = threading.Event(), threading.Event()

    def destroy():
        entered.set()
        never.wait()

    monkeypatch.setattr(group, "_LEAVES_WITHIN_S", 0.01)
    context, chosen = enter(monkeypatch, place, destroy=destroy)
    try:
        with pytest.raises(MemoryError), context:
            raise MemoryError
        assert entered.wait(300)
        assert chosen == [GPU]
    finally:
        never.set()


def test_a_run_without_an_error_leaves_its_group_in_the_main_thread(monkeypatch, place):
    threads = []
    context, _ = enter(monkeypatch, place, destroy=lambda: threads.append(threading.current_thread()))
    with context as device:
        assert device == GPU
    assert threads == [threading.main_thread()]


def test_a_survivor_forms_another_group_while_a_collective_of_the_broken_one_waits(tmp_path):
    with start_group(tmp_path, 2, entry=(str(Path(__file__).with_name("stuck_group_entry.py")),)) as started:
        assert started.wait() == [0, 0], started.outputs()
        printed = started.processes[0].communicate(timeout=300)[0]
    lines = [line for line in printed.splitlines() if not line.startswith("[Gloo] ")]  # torch 2.8 reports connections
    assert lines == ["Connection closed by peer [127.0.0.1]:1", "4.0"]


@pytest.mark.parametrize(("visible", "local_rank", "index"), [(1, 0, 0), (1, 3, 0), (8, 3, 3)])
def test_a_worker_that_sees_one_device_uses_it(monkeypatch, visible, local_rank, index):
    """Each worker of a node may see only its own device, as number 0. CUDA starts at once."""
    chosen = []
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: visible)
    monkeypatch.setattr("torch.cuda.set_device", chosen.append)
    monkeypatch.setattr("torch.cuda.synchronize", chosen.append)
    variables = {"LOCAL_RANK": str(local_rank), "RANK": str(local_rank), "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"}
    assert group._take_device(parse_place(variables)) == torch.device("cuda", index)
    assert chosen == [torch.device("cuda", index)] * 2  # set_device and synchronize


def test_two_ranks_on_one_device_are_refused_by_name():
    group.refuse_shared_devices(["a", "b", None, None])
    with pytest.raises(DeviceError, match="ranks 1 and 2 share one device, GPU b"):
        group.refuse_shared_devices(["a", "b", "b"])


def test_ranks_compare_their_devices_when_the_group_forms(monkeypatch, place):
    context, _ = enter(monkeypatch, place, destroy=lambda: None)
    monkeypatch.setattr(group, "on_every_rank", lambda action, _: [action(), "8f2b"])
    with pytest.raises(DeviceError, match="ranks 0 and 1 share one device, GPU 8f2b"), context:
        raise AssertionError("no work may begin")
