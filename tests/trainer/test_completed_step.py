"""What a script's survivor hands over: only the whole state of a completed step, only to objects like its own."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import TensorDataset

from tests.trainer.harness import make_manifest
from trainer.contract import env, layout
from trainer.contract.env import WorkerPlace, parse_place
from trainer.contract.exit_record import EventKind
from trainer.contract.fence import Term, TermRecord
from trainer.contract.manifest import Manifest, SnapshotName
from trainer.elastic.memory_files import MemoryFiles
from trainer.script import script_beginning
from trainer.script.completed_step import CompletedStep, find_obstacle, fingerprint_layout
from trainer.script.sampler import ElasticSampler
from trainer.script.script_beginning import OBJECTS, ScriptBeginning
from trainer.script.script_state import load_from_memory, read_object
from trainer.script.survivor import Generators
from trainer.snapshot.handover import Handover
from trainer.snapshot.lineage import Fence

TERM = Term(1, 1)
Kind = Callable[..., torch.optim.Optimizer]


@pytest.fixture
def memory() -> Iterator[MemoryFiles]:
    files = MemoryFiles(2)
    yield files
    files.close()


class Script:
    """The objects of a script, and a step of its loop."""

    def __init__(
        self, width: int = 4, *, has_buffers: bool = False, rate: float = 0.1, kind: Kind = torch.optim.AdamW
    ) -> None:
        torch.manual_seed(0)
        inner = nn.BatchNorm1d(width) if has_buffers else nn.GELU()
        self.model = nn.Sequential(nn.Linear(3, width), inner, nn.Linear(width, 1))
        self.optimizer = kind(self.model.parameters(), lr=rate)
        self.scheduler = StepLR(self.optimizer, step_size=2, gamma=0.5)
        self.sampler = ElasticSampler(TensorDataset(torch.arange(40)), batch_size=2, num_replicas=1, rank=0)

    @property
    def objects(self) -> dict[str, object]:
        return {name: vars(self)[name] for name in ("model", "optimizer", "scheduler", "sampler")}

    def backward(self) -> None:
        self.model(torch.ones(5, 3)).sum().backward()

    def step(self, state: CompletedStep, done: int) -> None:
        self.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.scheduler.step()
        self.sampler.step_done()
        state.note(done)
        state.note_agreed()

    def values(self) -> list[object]:
        optimizer = self.optimizer.state_dict()
        moments = [value for own in optimizer["state"].values() for value in own.values()]
        return [
            *(each.detach().clone() for each in self.model.parameters()),
            *map(copy.deepcopy, moments),
            [group["lr"] for group in optimizer["param_groups"]],
            self.scheduler.state_dict(),
            self.sampler.state_dict(),
        ]


def after(script: Script, steps: int) -> CompletedStep:
    state = CompletedStep(script.objects, 0)
    for done in range(1, steps + 1):
        script.step(state, done)
    return state


def place_of(
    memory: MemoryFiles, folder: Path, *, rank: int = 0, generation: int = 2, survivors: int = 1
) -> WorkerPlace:
    sizes = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "RANK": str(rank), "LOCAL_RANK": str(rank)}
    job = {env.JOB_DIR: str(folder), env.GENERATION: str(generation), env.SURVIVORS: str(survivors)}
    return parse_place({**memory.environment, **sizes, **job})


def hand_over(memory: MemoryFiles, folder: Path, state: CompletedStep) -> None:
    """As rank 1 of the first generation."""

    def describe() -> Manifest:
        found = replace(make_manifest(SnapshotName(state.step, TERM), {}), world_size=2)
        found.details[OBJECTS] = state.layout
        return found

    Handover(place_of(memory, folder, rank=1), is_wanted=True).write(state, describe)


def begin(memory: MemoryFiles, folder: Path, script: Script) -> tuple[ScriptBeginning, list[str]]:
    """Begin the second generation on both ranks, which find the same."""
    told: list[str] = []
    kinds = (place_of(memory, folder, rank=rank) for rank in (0, 1))
    objects = fingerprint_layout(script.objects)
    with ThreadPoolExecutor(2) as pool:
        calls = [
            pool.submit(script_beginning.begin, place, objects, lambda kind, *_: told.append(kind)) for place in kinds
        ]
        first, second = (call.result(timeout=300) for call in calls)
    assert first == second
    return first, told


def equal(ours: object, theirs: object) -> bool:
    return torch.equal(ours, theirs) if isinstance(ours, Tensor) and isinstance(theirs, Tensor) else ours == theirs


def check_equal(ours: list[object], theirs: list[object]) -> None:
    assert [equal(mine, other) for mine, other in zip(ours, theirs, strict=True)] == [True] * len(ours)


@pytest.mark.parametrize(
    "kind",
    [
        torch.optim.AdamW,
        partial(torch.optim.AdamW, fused=True),
        partial(torch.optim.SGD, momentum=0.9),
        torch.optim.SGD,
    ],
    ids=["adamw", "fused", "momentum", "stateless"],
)
def test_the_next_generation_gets_everything_as_it_was_after_the_step(
    memory: MemoryFiles, tmp_path: Path, kind: Kind
) -> None:
    """Also if the script has begun to prepare the next step."""
    script = Script(kind=kind)
    state = after(script, 3)
    expected = script.values()
    script.optimizer.param_groups[0]["lr"] = 0.7
    script.scheduler.last_epoch, script.sampler._seen = 90, 91
    script.backward()
    hand_over(memory, tmp_path, state)
    following = Script(rate=0.3, kind=kind)
    found, told = begin(memory, tmp_path, following)
    assert (found.step, found.folder, found.name) == (3, None, "step-00000003-a1-g1")
    assert told == [EventKind.RESTORED]
    load_from_memory(following.objects, SnapshotName(3, TERM), found.memory)
    check_equal(following.values(), expected)


def test_from_the_begin_of_an_update_until_the_step_is_reported_nothing_is_whole(
    memory: MemoryFiles, tmp_path: Path
) -> None:
    script = Script()
    state = after(script, 2)
    assert state.is_whole
    script.backward()
    assert state.is_whole, "gradients are not part of the state"
    script.optimizer.step()
    assert not state.is_whole
    hand_over(memory, tmp_path, state)
    assert begin(memory, tmp_path, script)[0] == ScriptBeginning()
    state.note(3)
    assert (state.is_whole, state.step) == (True, 3)


def test_a_change_of_a_parameter_outside_of_the_optimizer_is_noticed() -> None:
    script = Script()
    state = after(script, 1)
    with torch.no_grad():
        script.model[0].weight.mul_(0.5)
    assert not state.is_whole


def test_a_step_without_an_update_keeps_the_state_before_it() -> None:
    """Gradients that were accumulated are lost with the process, so their steps are made again."""
    script = Script()
    state = after(script, 2)
    script.backward()
    script.sampler.step_done()
    state.note(3)
    assert (state.step, state.is_whole) == (2, True)
    assert state.contents()["sampler"]["seen"] == 4


def test_hooks_end_with_the_generation() -> None:
    script = Script()
    state = after(script, 1)
    state.close()
    script.backward()
    script.optimizer.step()
    assert not script.optimizer._optimizer_step_pre_hooks
    assert not state._is_updated


class Counter:
    def __init__(self, value: object) -> None:
        self.value = value

    def state_dict(self) -> dict[str, object]:
        return {"value": self.value}


def test_what_differs_between_ranks_has_another_fingerprint() -> None:
    def fingerprint(value: object) -> int:
        return CompletedStep({**Script().objects, "counter": Counter(value)}, 0).fingerprint

    alike = [[1, "a", "a", torch.ones(2)], [1, "a", "".join(["a"]), torch.ones(2)]]
    assert fingerprint(alike[0]) == fingerprint(alike[1]) != 0
    assert len({fingerprint(value) for value in (1, 2, [1], [[1]], torch.ones(1), torch.ones(1, 1), {"a": 1})}) == 7


def test_what_cannot_be_copied_is_not_handed_over_and_does_not_disturb_the_script() -> None:
    state = CompletedStep({**Script().objects, "counter": Counter(value=open)}, 0)
    assert state.fingerprint != 0
    state = CompletedStep({**Script().objects, "counter": Counter(value=lambda: 0)}, 0)
    assert "cannot be copied" in state.why_not
    state = CompletedStep({**Script().objects, "counter": object()}, 0)
    assert "no attribute 'state_dict'" in state.why_not
    assert state.fingerprint == 0


class Part(nn.Parameter):
    """Like DTensor: a parameter of which a rank may have only a part."""


def test_what_a_rank_does_not_have_whole_is_not_handed_over() -> None:
    script = Script()
    assert find_obstacle(script.objects) == ""
    assert "no torch optimizer" in find_obstacle({"model": script.model})
    assert "model saves buffers" in find_obstacle(Script(has_buffers=True).objects)
    script.model.register_parameter("part", Part(torch.ones(2)))
    assert "sharded" in find_obstacle(script.objects)


def test_a_buffer_that_was_added_later_is_not_steady(memory: MemoryFiles, tmp_path: Path) -> None:
    script = Script()
    state = after(script, 1)
    script.model.register_buffer("late", torch.ones(2))
    hand_over(memory, tmp_path, state)
    assert begin(memory, tmp_path, script)[0] == ScriptBeginning()


@pytest.mark.parametrize("other", [Script(width=5), Script(has_buffers=True)], ids=["width", "modules"])
def test_a_state_of_other_objects_is_not_restored(memory: MemoryFiles, tmp_path: Path, other: Script) -> None:
    hand_over(memory, tmp_path, after(Script(), 2))
    assert begin(memory, tmp_path, other)[0] == ScriptBeginning()


def test_a_state_of_a_fenced_generation_is_not_restored(memory: MemoryFiles, tmp_path: Path) -> None:
    """A later generation has begun from an earlier step: the handed over one is of another past."""
    script = Script()
    fence = Fence(layout.fence_dir(tmp_path))
    for record in (TermRecord(term=TERM, base_step=0), TermRecord(term=Term(1, 2), base_step=1)):
        fence.begin(record)
    hand_over(memory, tmp_path, after(script, 2))
    place = place_of(memory, tmp_path, generation=3, survivors=0)
    assert script_beginning.begin(place, fingerprint_layout(script.objects), lambda *_: None) == ScriptBeginning()


def test_a_damaged_state_is_reported_and_not_restored(memory: MemoryFiles, tmp_path: Path) -> None:
    script = Script()
    hand_over(memory, tmp_path, after(script, 2))
    own = place_of(memory, tmp_path, rank=1).own_handover
    assert own is not None
    with Path(own).open("r+b") as file:
        file.seek(4100)  # in the first tensor
        byte = file.read(1)
        file.seek(4100)
        file.write(bytes([byte[0] ^ 1]))
    found, told = begin(memory, tmp_path, script)
    assert (found, told) == (ScriptBeginning(), [EventKind.COPY_DAMAGED])


def test_a_script_that_asks_for_a_folder_gets_none_from_memory(memory: MemoryFiles, tmp_path: Path) -> None:
    hand_over(memory, tmp_path, after(Script(), 2))
    place = place_of(memory, tmp_path, survivors=0)
    assert script_beginning.begin(place, None, lambda *_: None) == ScriptBeginning()


class Lookahead(torch.optim.Optimizer):
    """A wrapper whose own step has no hooks, as some libraries write it."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner, self.param_groups, self.state, self.defaults = inner, inner.param_groups, inner.state, {}

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        self.inner.step()

    def state_dict(self) -> dict[str, object]:
        return self.inner.state_dict()


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_of_a_wrapped_or_another_optimizer_is_an_update(fused: bool) -> None:
    """A fused kernel changes no version of a tensor."""
    script = Script(kind=partial(torch.optim.AdamW, fused=fused))
    state = CompletedStep({"model": script.model, "optimizer": Lookahead(script.optimizer)}, 0)
    state.note_agreed()
    script.model(torch.ones(2, 3)).sum().backward()
    assert state.is_whole
    script.optimizer.step()
    assert not state.is_whole
    state.note(1)
    state.note_agreed()
    assert (state.step, state.is_whole) == (1, True)
    state.close()
    script.optimizer.step()
    assert not state._is_updated


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_reading_an_optimizer_for_a_snapshot_is_no_update(kind: Kind) -> None:
    script = Script(kind=kind)
    state = CompletedStep(script.objects, 3)
    state.note_agreed()
    read_object(script.optimizer, script.objects)
    state.note(4)
    assert state.step == 3
    assert state.is_whole
    assert not script.optimizer.state


def test_a_group_that_joined_the_optimizer_for_the_next_step_is_not_handed_over(
    memory: MemoryFiles, tmp_path: Path
) -> None:
    script = Script()
    rest = script.optimizer.param_groups[0]["params"].pop()
    state = after(script, 2)
    expected = script.values()
    script.optimizer.add_param_group({"params": [rest], "lr": 0.5})
    hand_over(memory, tmp_path, state)
    following = Script(rate=0.3)
    following.optimizer.param_groups[0]["params"].pop()
    found, _ = begin(memory, tmp_path, following)
    load_from_memory(following.objects, SnapshotName(2, TERM), found.memory)
    check_equal(following.values(), expected)


def test_nothing_is_handed_over_during_an_evaluation_or_after_one_that_failed() -> None:
    """Its weights may be others than those of training, put there without a trace."""
    state = CompletedStep(Script().objects, 3)
    state.note_agreed()
    with state.evaluating():
        assert not state.is_whole
    assert state.is_whole
    with pytest.raises(RuntimeError), state.evaluating():
        raise RuntimeError
    assert not state.is_whole


def test_learning_rates_and_steps_that_differ_between_ranks_are_noticed() -> None:
    found = {CompletedStep(Script(rate=rate).objects, step).fingerprint for rate in (0.1, 0.2) for step in (3, 4)}
    assert len(found) == 4


def test_generators_are_those_that_a_new_process_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values that the script draws on all ranks must stay equal."""
    generators = Generators()

    def draw() -> tuple[object, ...]:
        return random.random(), float(np.random.random()), float(torch.rand(1))

    first = draw()
    assert draw() != first
    generators.reset()
    assert draw() == first


def test_ranks_with_other_values_have_another_fingerprint_once() -> None:
    scripts = [Script(), Script(), Script()]
    with torch.no_grad():
        scripts[2].model[0].weight[0, 0] += 1  # as an expert of one rank
    ours, theirs, others = (CompletedStep(script.objects, 0) for script in scripts)
    for script, state in zip(scripts, (ours, theirs, others), strict=True):
        script.step(state, 1)
    assert ours.fingerprint == theirs.fingerprint != others.fingerprint
    for state in (ours, theirs, others):
        state.close()


def test_ranks_with_state_for_other_parameters_have_another_fingerprint() -> None:
    scripts = [Script(), Script()]
    states = [CompletedStep(script.objects, 0) for script in scripts]
    for done in (1, 2):
        for script, state in zip(scripts, states, strict=True):
            if done == 2 and script is scripts[1]:
                del script.optimizer.state[script.model[0].weight]
                script.model[0].weight.requires_grad_(False)
            script.step(state, done)
        assert (states[0].fingerprint == states[1].fingerprint) == (done == 1)
    for state in states:
        state.close()


def test_a_state_that_the_ranks_have_not_compared_is_not_whole() -> None:
    script = Script()
    state = CompletedStep(script.objects, 0)
    script.backward()
    script.optimizer.step()
    state.note(1)
    assert not state.is_whole, "the optimizer has made state, perhaps on this rank only"
    state.note_agreed()
    assert state.is_whole
    state.close()
