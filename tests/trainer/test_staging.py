"""Staging uses only the device that trains."""

import threading
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.state_dict_loader import load

from trainer.snapshot import staging
from trainer.snapshot.staging import Stager
from trainer.snapshot.writing import Plan, write_metadata, write_part

THIRD = torch.device("cuda", 3)


@pytest.fixture
def no_cuda(monkeypatch):
    """A machine with GPUs where starting CUDA fails: a thread's current device may belong to another rank."""

    def start():
        raise AssertionError("CUDA was started")

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda._lazy_init", start)


def test_the_stager_works_on_the_device_of_the_main_thread(monkeypatch):
    chosen, asked = [], []
    monkeypatch.setattr(
        "torch.cuda.set_device", lambda device: chosen.append((threading.current_thread().name, device))
    )

    def current_stream(device):
        asked.append(device)
        return SimpleNamespace(record_event=lambda: None)

    monkeypatch.setattr("torch.cuda.current_stream", current_stream)
    stager = Stager(THIRD)
    for _ in range(2):
        stager.begin({}, lambda _: True, lambda _: None)
        assert stager.wait_until_done(60)
    assert (chosen, asked) == ([("stager", THIRD)], [THIRD, THIRD])


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.usefixtures("no_cuda")
def test_staged_copies_are_written_without_a_device(tmp_path):
    saved, found = {"weight": torch.arange(6.0)}, {"weight": torch.zeros(6)}
    planner = DefaultSavePlanner()
    planner.set_up_planner(saved, is_coordinator=True)
    plans, metadata = planner.create_global_plan([planner.create_local_plan()])
    plan = Plan(FileSystemWriter("").prepare_global_plan(plans)[0], metadata)
    values = {item.index: planner.resolve_data(item) for item in plan.own.items}
    part = write_part(plan, values, tmp_path)
    write_metadata(plan, [part], tmp_path)
    load(found, storage_reader=FileSystemReader(tmp_path), no_dist=True)
    assert torch.equal(found["weight"], saved["weight"])


def test_staging_waits_for_tensors_of_every_device(monkeypatch):
    """Even if a scalar of the optimizer on the host comes first."""
    waited, foreach_copy = [], torch._foreach_copy_

    @contextmanager
    def beside(device, _):
        copied.clear()
        yield
        waited.append((device.type, [source.device.type for source in copied]))

    def copy(targets, sources, **options):
        copied.extend(sources)
        foreach_copy(targets, sources, **options)

    copied = []
    monkeypatch.setattr("torch.cuda.current_stream", lambda _: SimpleNamespace(record_event=lambda: None))
    monkeypatch.setattr(staging, "_beside_training", beside)
    monkeypatch.setattr(torch, "_foreach_copy_", copy)
    with FakeTensorMode():
        sources = [torch.zeros(()), torch.zeros(3, device=THIRD), torch.zeros(4, device=THIRD)]
        values = {MetadataIndex(str(place)): source for place, source in enumerate(sources)}
        stager = Stager(THIRD)
        monkeypatch.setattr(stager, "_run", stager._done.set)
        stager.begin(values, lambda _: False, lambda _: None)
    assert sorted(waited) == [("cpu", ["cpu"]), ("cuda", ["cuda", "cuda"])]
    assert {value.device.type for value in values.values()} == {"cpu"}
