"""A survivor's state in memory: when it is written, and that it is read as it was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.trainer.harness import make_manifest
from trainer.contract.env import parse_place
from trainer.contract.fence import Term
from trainer.contract.manifest import Manifest, SnapshotName
from trainer.elastic.health import oom
from trainer.elastic.memory_files import MemoryFiles
from trainer.parallel.precision import LossScale
from trainer.snapshot.handover import Handover
from trainer.snapshot.lineage import Restore
from trainer.snapshot.memory_reading import StateInMemory, find_states
from trainer.snapshot.run_state import RunState
from trainer.snapshot.state_reading import read_alone
from trainer.worker.lost_peer import is_end_of_group

NAME = SnapshotName(7, Term(1, 2))


@pytest.fixture
def memory() -> Iterator[MemoryFiles]:
    files = MemoryFiles(2)
    yield files
    files.close()


def build_state(*, seed: int, has_buffers: bool = False) -> RunState:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4) if has_buffers else nn.GELU(), nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(seed):
        model(torch.randn(5, 3)).sum().backward()
        optimizer.step()
    state = RunState(LossScale("fp32"))
    state.attach(model, optimizer)
    state.step, state.samples_seen = NAME.step, 70
    return state


def build_handover(memory: MemoryFiles, **place: str) -> Handover:
    variables = {**memory.environment, "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", **place}
    return Handover(parse_place(variables), is_wanted=True)


def write(handed_over: Handover, state: RunState) -> None:
    handed_over.write(state, lambda: make_manifest(NAME, {}))


def found(memory: MemoryFiles) -> StateInMemory | None:
    return find_states(path for own in parse_place(memory.environment).memory for path in own).get(NAME)


def test_a_state_is_read_as_it_was_handed_over(memory: MemoryFiles) -> None:
    written = build_state(seed=3)
    write(build_handover(memory), written)
    read = read_back(memory)
    assert (read.step, read.samples_seen) == (7, 70)
    assert all(
        torch.equal(mine, theirs)
        for mine, theirs in zip(written.model.state_dict().values(), read.model.state_dict().values(), strict=True)
    )
    before, after = (each.state_dict()["optimizer"] for each in (written, read))
    assert all(torch.equal(before[name][key], after[name][key]) for name in before for key in before[name])


def read_back(memory: MemoryFiles) -> RunState:
    state, read = found(memory), build_state(seed=1)
    assert state is not None
    state.verify()
    read.step = read.samples_seen = 0
    read_alone(read, Restore(path=Path(str(NAME)), manifest=state.manifest, is_own=True, memory=state.files))
    return read


@pytest.mark.parametrize("planned_after", [0, 2])  # at first the optimizer has no tensors
def test_what_is_planned_ahead_is_written_as_it_is_later(memory: MemoryFiles, planned_after: int) -> None:
    state, following = build_state(seed=planned_after), build_handover(memory)
    following.plan(state)
    state.model(torch.randn(5, 3)).sum().backward()
    state.optimizer.step()
    state.samples_seen = 75
    write(following, state)
    read = read_back(memory)
    assert read.samples_seen == 75
    expected, actual = state.state_dict(), read.state_dict()
    torch.testing.assert_close(actual["model"], expected["model"], rtol=0, atol=0)
    torch.testing.assert_close(actual["optimizer"], expected["optimizer"], rtol=0, atol=0)


def test_a_state_that_cannot_be_planned_ends_no_training(memory: MemoryFiles) -> None:
    state = build_state(seed=1)
    state.optimizer.state[next(iter(state.parameters.values()))]["extra"] = "not a tensor"
    build_handover(memory).plan(state)


def test_the_memory_is_given_back_after_the_next_step(memory: MemoryFiles) -> None:
    write(build_handover(memory), build_state(seed=1))
    own = parse_place({**memory.environment, "LOCAL_RANK": "1"}).own_handover
    assert own is not None
    assert found(memory) is not None
    following = build_handover(memory)
    following.free()
    assert found(memory) is None
    assert Path(own).stat().st_blocks * 512 <= 4096
    write(following, build_state(seed=2))
    following.free()
    assert found(memory) is not None, "the next generation reads it"


def test_a_state_that_is_not_that_of_a_completed_step_is_not_handed_over(memory: MemoryFiles) -> None:
    interrupted = build_state(seed=1)
    interrupted.is_whole = False
    write(build_handover(memory), interrupted)
    write(build_handover(memory), build_state(seed=1, has_buffers=True))
    assert found(memory) is None


@pytest.mark.parametrize("place", [{"WORLD_SIZE": "4"}, {"WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}])
def test_without_peers_on_this_node_nothing_is_handed_over(memory: MemoryFiles, place: dict[str, str]) -> None:
    write(build_handover(memory, **place), build_state(seed=1))
    assert found(memory) is None


def test_a_node_without_room_keeps_the_older_states(
    memory: MemoryFiles, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(oom, "read_free_memory", lambda: 500)
    write(build_handover(memory), build_state(seed=1))
    assert found(memory) is None
    assert "step 7 could not be handed over: 0.00 GB are needed, more than half of" in capsys.readouterr().err


def test_a_state_that_changes_meanwhile_is_not_handed_over(
    memory: MemoryFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    state = build_state(seed=1)

    def change_and_describe() -> Manifest:
        state.is_whole = False
        return make_manifest(NAME, {})

    build_handover(memory).write(state, change_and_describe)
    assert found(memory) is None
    assert "it has changed meanwhile" in capsys.readouterr().err


def test_a_handover_that_fails_does_not_hide_the_failure_of_the_group(memory: MemoryFiles) -> None:
    gone = build_handover(memory)
    memory.close()
    write(gone, build_state(seed=1))
    gone.free()


@pytest.mark.parametrize(
    ("message", "is_lost"),
    [
        ("[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:33423", True),
        ("Read error [127.0.0.1]:4: Connection reset by peer", True),
        ("The size of tensor a (3) must match the size of tensor b (4)", False),
        ("", False),
    ],
)
def test_only_the_loss_of_a_peer_leaves_a_survivor(message: str, is_lost: bool) -> None:
    assert is_end_of_group(RuntimeError(message)) is is_lost
