"""Reading tensors into their final memory gives the same as torch's reader."""

import pickle
import warnings
from dataclasses import replace

import pytest
import torch
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import TensorProperties
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from trainer.snapshot.later_metadata import read_later_metadata
from trainer.snapshot.reading import ContiguousReader
from trainer.snapshot.streams import Writer
from trainer.snapshot.whole import write_whole

VALUES = {
    "matrix": torch.arange(12.0).view(3, 4),
    "number": torch.tensor(7.5),
    "half": torch.arange(9).to(torch.bfloat16),
    "flags": torch.tensor([True, False, True]),
    "empty": torch.empty(0, 3),
    "view": torch.arange(20.0)[5:9],
    "complex": torch.tensor([1 + 2j, 3 - 4j]),
    "note": "bytes, not a tensor",
}


@pytest.fixture(autouse=True)
def without_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture
def counted(monkeypatch):
    """The tensors that torch's reader has read."""
    calls, real = [], torch.load
    monkeypatch.setattr(filesystem.torch, "load", lambda *args, **options: calls.append(args) or real(*args, **options))
    return calls


def read(directory, state):
    load(state, storage_reader=ContiguousReader(directory), no_dist=True)
    return state


def test_all_kinds_of_values_come_back(tmp_path):
    save(VALUES, storage_writer=filesystem.FileSystemWriter(tmp_path), no_dist=True)
    found = read(tmp_path, {name: torch.zeros_like(v) if torch.is_tensor(v) else "" for name, v in VALUES.items()})
    for name, value in VALUES.items():
        assert torch.equal(found[name], value) if torch.is_tensor(value) else found[name] == value, name


def test_whole_tensors_are_read_without_a_copy(tmp_path, counted):
    state = {"a": torch.randn(5, 7), "b": torch.randn(3, dtype=torch.float64)}
    save(state, storage_writer=filesystem.FileSystemWriter(tmp_path), no_dist=True)
    places = {name: torch.zeros_like(value) for name, value in state.items()}
    found = read(tmp_path, dict(places))
    assert all(torch.equal(found[name], state[name]) and found[name] is places[name] for name in state)
    assert not counted


@pytest.mark.parametrize(
    "place",
    [torch.zeros(4, 6, dtype=torch.float64), torch.zeros(6, 4).t(), torch.zeros(4, 12)[:, ::2]],
    ids=["another type", "another order", "with gaps"],
)
def test_torch_fills_a_target_of_another_layout(tmp_path, counted, place):
    value = torch.randn(4, 6)
    save({"a": value}, storage_writer=filesystem.FileSystemWriter(tmp_path), no_dist=True)
    assert torch.equal(read(tmp_path, {"a": place})["a"], value.to(place.dtype))
    assert counted


def test_a_file_that_ends_within_a_tensor_is_an_error(tmp_path):
    save({"a": torch.randn(1000)}, storage_writer=filesystem.FileSystemWriter(tmp_path), no_dist=True)
    file = tmp_path / "__0_0.distcp"
    file.write_bytes(file.read_bytes()[:-2000])
    with pytest.raises(CheckpointException):
        read(tmp_path, {"a": torch.zeros(1000)})


class FirstRows(DefaultLoadPlanner):
    """Reads only the first rows of a tensor, like a rank of a larger group."""

    def create_local_plan(self):
        plan = super().create_local_plan()
        return replace(plan, items=[replace(item, lengths=torch.Size((2, item.lengths[1]))) for item in plan.items])

    def resolve_tensor(self, read_item):
        return super().resolve_tensor(read_item).narrow(0, 0, 2)


def test_a_part_of_a_tensor_is_not_read_as_a_whole_one(tmp_path, counted):
    value = torch.randn(4, 6)
    save({"a": value}, storage_writer=filesystem.FileSystemWriter(tmp_path), no_dist=True)
    state = {"a": torch.zeros(4, 6)}
    load(state, storage_reader=ContiguousReader(tmp_path), planner=FirstRows(), no_dist=True)
    assert torch.equal(state["a"], torch.cat((value[:2], torch.zeros(2, 6))))
    assert counted


def test_torch_reads_a_file_of_another_layout(tmp_path, counted, monkeypatch):
    value = torch.randn(4, 6)
    monkeypatch.setattr("trainer.snapshot.reading._RECORD", b"another/data/0")
    save({"a": value}, storage_writer=filesystem.FileSystemWriter(tmp_path), no_dist=True)
    assert torch.equal(read(tmp_path, {"a": torch.zeros(4, 6)})["a"], value)
    assert counted


def test_no_path_is_pickled(tmp_path):
    """Python 3.13 pickles paths by a module that older versions lack."""
    assert b"pathlib" not in pickle.dumps(Writer(tmp_path).storage_meta())


def test_an_imported_snapshot_has_no_pickled_path(tmp_path):
    write_whole({"a": torch.zeros(2)}, tmp_path)
    assert b"pathlib" not in (tmp_path / ".metadata").read_bytes()


def test_unknown_tensor_properties_of_a_later_torch_are_left_out(monkeypatch):
    """2.15 added strides, which earlier releases refuse."""
    own = TensorProperties.__getstate__
    with monkeypatch.context() as patch:
        patch.setattr(TensorProperties, "__getstate__", lambda properties: (*own(properties), "of a later torch"))
        written = pickle.dumps(TensorProperties(dtype=torch.float16))
    read_later_metadata()
    read_later_metadata()
    assert pickle.loads(written).dtype is torch.float16
