"""The recovery benchmark with real processes: unchanged scripts, and the bundled trainer."""

from __future__ import annotations

import random
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.recovery.__main__ import NeverStarted, measure, measure_agent_kills

SCRIPT = """
import sys, time
from pathlib import Path
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(int(sys.argv[1])):
    gradient = torch.ones(1, 2)
    dist.all_reduce(gradient)
    model.weight.grad = gradient
    optimizer.step()
    time.sleep(0.01)
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    (tmp_path / "train.py").write_text(SCRIPT)
    return str(tmp_path / "train.py")


def test_an_unchanged_script_is_killed_and_recovers(script: str) -> None:
    score = measure("ours", "own-script", 2, random.Random(0), (script, "1000000"))
    assert (score.kills, len(score.recovered_s)) == (2, 2)
    assert all(0 < seconds < 120 for seconds in score.recovered_s)
    assert all(steps >= 3 for steps in score.steps_redone), "it saves nothing, so it repeats all steps"


def test_the_agent_is_killed_and_training_recovers() -> None:
    score = measure_agent_kills("trainer-ddp", 2, random.Random(0), (12, 20))
    assert (score.kills, len(score.recovered_s)) == (2, 2)
    assert all(0 < seconds < 120 for seconds in score.recovered_s)


def test_a_script_too_short_for_a_kill_is_an_error(script: str) -> None:
    with pytest.raises(NeverStarted):
        measure("ours", "own-script", 1, random.Random(0), (script, "2"))


@pytest.mark.parametrize("launcher", ["ours", "torchrun-safe"])
def test_the_restart_of_the_trainer_is_split_into_parts(launcher: str) -> None:
    score = measure(launcher, "trainer-ddp", 1, random.Random(0), steps_between=(12, 20))
    (split,) = score.splits
    assert (split.notice_s is not None) == (launcher == "ours"), "torchrun keeps no journal"
    parts = [seconds for seconds in asdict(split).values() if seconds is not None]
    assert all(seconds >= 0 for seconds in parts)
    assert 0 < sum(parts) <= score.recovered_s[0] + 1e-3, "rank 0 may be faster than the last rank"
