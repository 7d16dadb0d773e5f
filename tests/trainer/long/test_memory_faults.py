"""Random kills and random damage to the copies in memory: training never continues from a wrong state.

MEMORY_FAULTS=250 makes so many for each strategy, in runs of 25, instead of 12.
"""

from __future__ import annotations

import math
import os
import random
import signal
import time
from collections import Counter

import pytest

from tests.trainer.harness import start_group
from trainer.contract.copy_record import RECORD_BYTES
from trainer.contract.env import parse_place
from trainer.elastic.memory_files import MemoryFiles

FAULTS = int(os.environ.get("MEMORY_FAULTS", "12"))
FAULTS_OF_A_RUN = min(FAULTS, 25)
WORLD, STEPS = 2, 80 + 10 * FAULTS_OF_A_RUN
DAMAGES = ("none", "none", "bit", "record", "older", "noise")


def damage(rng: random.Random, files: list[str], kind: str) -> None:
    """Damage one file, as a broken memory cell, a killed writer or a process of an older generation would."""
    file = os.open(rng.choice(files), os.O_RDWR)
    size = os.fstat(file).st_size
    if size == 0 or kind == "none":
        pass
    elif kind == "bit":
        position = rng.randrange(size)
        os.pwrite(file, bytes([os.pread(file, 1, position)[0] ^ (1 << rng.randrange(8))]), position)
    elif kind == "record":
        os.pwrite(file, bytes(rng.randrange(1, RECORD_BYTES)), 0)
    elif kind == "noise":
        os.pwrite(file, rng.randbytes(4096), rng.randrange(size))
    else:
        other = os.open(rng.choice(files), os.O_RDWR)
        os.pwrite(file, os.pread(other, os.fstat(other).st_size, 0), 0)
        os.close(other)
    os.close(file)


@pytest.mark.parametrize("run", range(math.ceil(FAULTS / FAULTS_OF_A_RUN)))
@pytest.mark.parametrize(("strategy", "interval"), [("ddp", 1), ("fsdp", 3)])
def test_no_damage_changes_the_curve(tmp_path, strategy, interval, run):
    options = {"strategy": strategy, "snapshot_interval": 40, "snapshot_memory": interval, "steps": STEPS}
    with start_group(tmp_path / "whole", WORLD, **options) as undisturbed:
        assert undisturbed.wait() == [0, 0], undisturbed.outputs()
    expected = undisturbed.losses()
    rng, memory, served = random.Random(f"{strategy} {run}"), MemoryFiles(WORLD), Counter()
    files = [path for own in parse_place(memory.environment).memory for path in own]
    reached = 0
    for generation in range(1, FAULTS_OF_A_RUN + 1):
        variables = memory.environment
        with start_group(tmp_path / "job", WORLD, generation=generation, variables=variables, **options) as group:
            group.wait_for_step(min(STEPS - 60, reached + rng.randrange(1, 12)))
            time.sleep(rng.random() / 20)  # any moment of a step
            group.processes[rng.randrange(WORLD)].send_signal(signal.SIGKILL)
        losses = group.losses()
        assert {step: loss for step, loss in losses.items() if loss != expected[step]} == {}, generation
        reached = max(losses, default=reached)
        served.update(event["evidence"]["source"] for event in group.events("restored"))
        damage(rng, files, rng.choice(DAMAGES))
    with start_group(
        tmp_path / "job", WORLD, generation=FAULTS_OF_A_RUN + 1, variables=memory.environment, **options
    ) as last:
        assert last.wait() == [0, 0], last.outputs()
    memory.close()
    assert last.losses()[STEPS] == expected[STEPS]
    assert served["memory"] + served["survivor"] > 3, served
