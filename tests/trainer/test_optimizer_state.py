"""A restored run goes on as if nothing had happened, whichever parameters have had gradients. Saving changes nothing.

Parameters may be frozen for a while, belong to an unused branch, or join the optimizer late. Then the optimizer has
state for some parameters only.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import Optimizer

from tests.trainer.harness import make_manifest
from trainer.contract.env import parse_place
from trainer.contract.fence import Term
from trainer.contract.manifest import IMPORTED, SnapshotName
from trainer.elastic.memory_files import MemoryFiles
from trainer.errors import SnapshotError
from trainer.parallel.optim import ShardedAdamW
from trainer.parallel.precision import LossScale
from trainer.script import script_state
from trainer.script.completed_step import CompletedStep
from trainer.snapshot.handover import Handover
from trainer.snapshot.lineage import Restore
from trainer.snapshot.memory_reading import find_states
from trainer.snapshot.run_state import KEY, RunState
from trainer.snapshot.state_reading import read_alone
from trainer.snapshot.whole import write_whole

STEPS = 5
SHAPES = {"first": (3, 2), "second": (3,), "third": (2, 3)}
KINDS: dict[str, Callable[..., Optimizer]] = {
    "ours": partial(ShardedAdamW, weight_decay=0.1, foreach=True),
    "adamw": partial(torch.optim.AdamW, weight_decay=0.1),
    "fused": partial(torch.optim.AdamW, fused=True),
    "amsgrad": partial(torch.optim.Adam, amsgrad=True),
    "sgd": partial(torch.optim.SGD, weight_decay=0.1),
    "momentum": partial(torch.optim.SGD, momentum=0.9, dampening=0.5, weight_decay=0.1),
    "adafactor": torch.optim.Adafactor,
    "adagrad": partial(torch.optim.Adagrad, lr_decay=0.1),
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "adamax": torch.optim.Adamax,
    "adadelta": torch.optim.Adadelta,
    "rmsprop": partial(torch.optim.RMSprop, momentum=0.9, centered=True),
    "rprop": torch.optim.Rprop,
    "asgd": partial(torch.optim.ASGD, t0=1.0),
}
Trained = tuple[frozenset[str], ...]  # which parameters get a gradient in each step
orders = st.permutations(sorted(SHAPES))
trained_parameters = st.tuples(*[st.frozensets(st.sampled_from(sorted(SHAPES)))] * STEPS)


class Model(nn.Module):
    def __init__(self, order: Sequence[str]) -> None:
        super().__init__()
        for name in order:
            generator = torch.Generator().manual_seed(ord(name[0]))
            self.register_parameter(name, nn.Parameter(torch.randn(SHAPES[name], generator=generator)))


class Training:
    """`frozen` parameters have no gradient until they are trained. `late` ones are in no group until then.

    `order` is that of the model's parameters and of the optimizer's.
    """

    def __init__(
        self, kind: str, *, frozen: bool = False, late: str | None = None, order: Sequence[str] = tuple(SHAPES)
    ) -> None:
        self.model = Model(order)
        for parameter in self.model.parameters():
            parameter.requires_grad_(not frozen)
        self.late, named = late, self.model.named_parameters()
        self.optimizer = KINDS[kind]([parameter for name, parameter in named if name != late], lr=0.1)

    def step(self, number: int, every: Trained) -> None:
        trained = every[number]
        if self.late is not None and len(self.optimizer.param_groups) == 1 and self.late in chain(*every[: number + 1]):
            self.optimizer.add_param_group({"params": [self.model.get_parameter(self.late)], "lr": 0.05})
        for name, parameter in self.model.named_parameters():
            if name in trained:
                generator = torch.Generator().manual_seed(100 * number + ord(name[0]))
                parameter.requires_grad_()
                parameter.grad = torch.randn(parameter.shape, generator=generator)
        self.optimizer.step()
        self.optimizer.zero_grad()

    @property
    def objects(self) -> dict[str, object]:
        return {"model": self.model, "optimizer": self.optimizer}

    def values(self) -> dict[str, object]:
        """Weights and states by name, and options."""
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        states = {
            f"{names[parameter]}.{key}": value
            for parameter, state in self.optimizer.state.items()
            for key, value in state.items()
            if value is not None
        }
        return copy.deepcopy({**self.model.state_dict(), **states, "options": self.optimizer.param_groups[-1]["lr"]})


def undisturbed(training: Training, trained: Trained) -> dict[str, object]:
    for number in range(STEPS):
        training.step(number, trained)
    return training.values()


def check_equal(found: Mapping[str, object], expected: Mapping[str, object]) -> None:
    assert {name for name in found.keys() | expected.keys() if not _is_equal(found.get(name), expected.get(name))} == (
        set()
    )


def _is_equal(ours: object, theirs: object) -> bool:
    return torch.equal(ours, theirs) if isinstance(ours, Tensor) and isinstance(theirs, Tensor) else ours == theirs


def known(kind: str, values: Mapping[str, object]) -> Mapping[str, object]:
    """Our AdamW makes zeros for all parameters of a group, and a restored one makes them in its next step."""
    is_ours = kind == "ours"
    return {
        name: value
        for name, value in values.items()
        if not is_ours or name in SHAPES or not isinstance(value, Tensor) or bool(value.any())
    }


def state_of(training: Training, step: int) -> RunState:
    state = RunState(LossScale("fp32"))
    state.attach(training.model, training.optimizer)
    state.step = step
    return state


def save_in_memory(memory: MemoryFiles, state: object, name: SnapshotName) -> None:
    variables = {**memory.environment, "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    Handover(parse_place(variables), is_wanted=True).write(state, lambda: make_manifest(name, {}))  # type: ignore[arg-type]


def through_disk(state: RunState, step: int, into: RunState) -> None:
    with TemporaryDirectory() as folder:
        write_whole(state.contents(), Path(folder))
        manifest = make_manifest(SnapshotName(step, Term(1, 1)), {})
        read_alone(into, Restore(path=Path(folder), manifest=manifest, is_own=True))


def through_memory(state: RunState, step: int, into: RunState) -> None:
    memory, name = MemoryFiles(2), SnapshotName(step, Term(1, 1))
    save_in_memory(memory, state, name)
    found = find_states(path for own in parse_place(memory.environment).memory for path in own)[name]
    read_alone(into, Restore(path=Path("step"), manifest=found.manifest, is_own=True, memory=found.files))
    memory.close()


@pytest.mark.parametrize("through", [through_disk, through_memory])
@pytest.mark.parametrize("kind", KINDS)
@given(trained=trained_parameters, cut=st.integers(0, STEPS - 1), frozen=st.booleans(), order=orders)
@settings(deadline=None, max_examples=10)
def test_the_trainer_goes_on_as_if_nothing_had_happened(
    through: Callable[[RunState, int, RunState], None],
    kind: str,
    trained: Trained,
    cut: int,
    frozen: bool,
    order: Sequence[str],
) -> None:
    trained = (frozenset({"first"}), *trained[1:])  # a step without any gradient is refused
    expected = undisturbed(Training(kind, frozen=frozen), trained)
    before, after = Training(kind, frozen=frozen), Training(kind, frozen=frozen, order=order)
    state = state_of(before, 0)
    for number in range(cut):
        before.step(number, trained)
        state.step = number + 1
        state.contents()
    restored = state_of(after, 0)
    through(state, cut, restored)
    assert restored.step == cut
    for training in (before, after):
        for number in range(cut, STEPS):
            training.step(number, trained)
        check_equal(known(kind, training.values()), known(kind, expected))


def script_through_disk(training: Training, step: int, into: Training) -> None:
    with TemporaryDirectory() as folder:
        script_state.save(training.objects, Path(folder))
        script_state.load(into.objects, Path(folder), 0)


def script_through_memory(training: Training, step: int, into: Training) -> None:
    memory, name = MemoryFiles(2), SnapshotName(step, Term(1, 1))
    state = CompletedStep(training.objects, step)
    state.note_agreed()
    save_in_memory(memory, state, name)
    state.close()
    found = find_states(path for own in parse_place(memory.environment).memory for path in own)[name]
    script_state.load_from_memory(into.objects, name, [file.path for file in found.files])
    memory.close()


@pytest.mark.parametrize("through", [script_through_disk, script_through_memory])
@pytest.mark.parametrize("kind", KINDS)
@given(
    trained=trained_parameters,
    cut=st.integers(0, STEPS - 1),
    frozen=st.booleans(),
    late=st.sampled_from([None, "second"]),
    order=orders,
)
@settings(deadline=None, max_examples=10)
def test_a_script_goes_on_as_if_nothing_had_happened(
    through: Callable[[Training, int, Training], None],
    kind: str,
    trained: Trained,
    cut: int,
    frozen: bool,
    late: str | None,
    order: Sequence[str],
) -> None:
    if kind == "adagrad":
        late = None  # torch makes its state at once, and not for a later group
    expected = undisturbed(Training(kind, frozen=frozen, late=late), trained)
    before = Training(kind, frozen=frozen, late=late)
    after = Training(kind, frozen=frozen, late=late, order=order)
    for number in range(cut):
        before.step(number, trained)
    through(before, cut, after)
    for training in (before, after):
        for number in range(cut, STEPS):
            training.step(number, trained)
        check_equal(training.values(), expected)


@pytest.mark.parametrize(("saved", "own"), [("momentum", "adamw"), ("adamw", "momentum"), ("sgd", "adamw")])
def test_the_state_of_another_optimizer_is_refused(saved: str, own: str) -> None:
    before, after = Training(saved), Training(own)
    before.step(0, (frozenset(SHAPES),))
    with pytest.raises(SnapshotError, match="made by another optimizer"):
        through_disk(state_of(before, 1), 1, state_of(after, 0))


def test_updates_that_overflowed_leave_no_state() -> None:
    before, after = Training("ours"), Training("ours")
    state, restored = (RunState(LossScale("fp16")) for _ in range(2))
    state.attach(before.model, before.optimizer)
    restored.attach(after.model, after.optimizer)
    state.step = state.loss_scale.skipped_steps = 2
    through_disk(state, 2, restored)
    assert (restored.step, restored.loss_scale.skipped_steps) == (2, 2)
    assert not after.optimizer.state


def old_contents(state: RunState) -> dict[str, Any]:
    """As snapshots were once: one count for each parameter of the model, in its order, without names."""
    contents: dict[str, Any] = state.contents()[KEY]
    contents.pop("updated")
    counts = [state.optimizer.state.get(each, {}).get("step", torch.tensor(0.0)) for each in state.parameters.values()]
    return {KEY: {**contents, "updates": torch.stack(counts).double()}}


def read_old(contents: dict[str, Any], into: RunState, *, strategy: str = "ddp") -> None:
    with TemporaryDirectory() as folder:
        write_whole(contents, Path(folder))
        manifest = replace(make_manifest(SnapshotName(into.step, Term(1, 1)), {}), strategy=strategy)
        read_alone(into, Restore(path=Path(folder), manifest=manifest, is_own=True))


FROZEN: Trained = (frozenset({"third"}), frozenset({"third"}), *[frozenset(SHAPES)] * 3)  # at first


@pytest.mark.parametrize("kind", ["ours", "adamw", "nadam"])
@pytest.mark.parametrize("order", [tuple(SHAPES), ("third", "first", "second")])
def test_counts_without_names_belong_to_the_parameters_in_the_order_of_the_saved_model(
    kind: str, order: Sequence[str]
) -> None:
    before, after = Training(kind, frozen=True), Training(kind, frozen=True, order=order)
    for number in range(3):
        before.step(number, FROZEN)
    read_old(old_contents(state_of(before, 3)), state_of(after, 0))
    check_equal(known(kind, after.values()), known(kind, before.values()))


def test_counts_without_names_are_refused_if_their_order_is_unknown() -> None:
    """An import may have another order than the model that was saved."""
    before = Training("adamw")
    for number in range(3):
        before.step(number, FROZEN)
    contents = old_contents(state_of(before, 3))
    same, other = Training("adamw"), Training("adamw", order=("third", "first", "second"))
    read_old(contents, state_of(same, 0), strategy=IMPORTED)
    check_equal(same.values(), before.values())
    with pytest.raises(SnapshotError, match="which parameter each count of updates belongs to"):
        read_old(contents, state_of(other, 0), strategy=IMPORTED)


def test_equal_counts_without_names_need_no_order() -> None:
    before, after = Training("adamw"), Training("adamw", order=("third", "first", "second"))
    before.step(0, (frozenset(SHAPES),))
    read_old(old_contents(state_of(before, 1)), state_of(after, 0), strategy=IMPORTED)
    check_equal(after.values(), before.values())
