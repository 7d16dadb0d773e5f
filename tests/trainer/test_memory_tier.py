"""When copies of the state in memory are made: the tier alone, on one rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tests.trainer.harness import make_manifest
from trainer.contract.config import parse_config
from trainer.contract.env import parse_place
from trainer.contract.fence import Term
from trainer.contract.manifest import SnapshotName
from trainer.elastic.memory_files import MemoryFiles
from trainer.parallel.precision import LossScale
from trainer.snapshot.memory_reading import find_states
from trainer.snapshot.memory_tier import MemoryTier
from trainer.snapshot.run_state import RunState
from trainer.snapshot.writing import SharedPlan
from trainer.worker.waits import Waits


@pytest.fixture
def memory() -> Iterator[MemoryFiles]:
    files = MemoryFiles(1)
    yield files
    files.close()


class Training:
    """A model whose second half is trained later, with copies in memory every `interval` steps."""

    def __init__(self, memory: MemoryFiles, interval: int) -> None:
        self.model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.state = RunState(LossScale("fp32"))
        self.state.attach(self.model, self.optimizer)
        self.told: list[str] = []
        self.place = parse_place({**memory.environment})
        heartbeat = SimpleNamespace(tell=lambda _, sentence, __: self.told.append(sentence), beat=lambda *_: None)
        run = SimpleNamespace(
            place=self.place,
            config=parse_config({"snapshot_memory": interval}),
            device=torch.device("cpu"),
            is_first=True,
            heartbeat=heartbeat,
            waits=Waits(heartbeat),  # type: ignore[arg-type]
        )
        self.copies = MemoryTier(
            run,  # type: ignore[arg-type]
            plan=SharedPlan(run.waits),
            describe=lambda state: replace(make_manifest(SnapshotName(state.step, Term(1, 1)), {}), world_size=1),
        )
        self.optimizer.register_step_pre_hook(self.copies.before_update)

    def update(self, *, trains_all: bool) -> None:
        first, second = self.model
        (second(first(torch.ones(2, 3))) if trains_all else first(torch.ones(2, 3))).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.state.step += 1

    def copied_steps(self) -> list[int]:
        return sorted(name.step for name in find_states(path for own in self.place.memory for path in own))


@pytest.mark.usefixtures("group_of_one")
def test_copies_go_on_when_the_optimizer_makes_more_tensors(memory: MemoryFiles) -> None:
    training = Training(memory, interval=2)
    with training.copies:
        for step in range(1, 13):
            is_ready = training.copies.is_ready(step)
            training.update(trains_all=step > 5)
            if is_ready and step % 2 == 0:
                training.copies.begin(training.state)
    assert training.copied_steps() == [10, 12]
    assert not training.told
