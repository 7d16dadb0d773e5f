"""The examples of docs/scripts.md are killed once under elasticrun, and continue."""

from __future__ import annotations

import importlib.util
import os
import signal
from pathlib import Path

import pytest

from tests.elastic.harness import ROOT, Agent, Job, wait_for
from trainer import snapshot
from trainer.contract import env, layout

EXAMPLES = ROOT / "docs/examples"


def losses(agent: Agent, generation: int) -> dict[int, float]:
    lines = [line for line in agent.progress(generation) if "metrics" in line]
    return {line["step"]: line["metrics"]["loss"] for line in lines if "loss" in line["metrics"]}


def kill_once(job: Job, example: str, *arguments: str, world_size: int = 2) -> Agent:
    """Start, SIGKILL the last rank once two snapshots are committed, and wait for the end."""
    variables = {env.SNAPSHOT_INTERVAL: "4", env.SNAPSHOT_KEEP: "20", "OMP_NUM_THREADS": "1"}
    agent = job.policy(max_restarts=1).start(
        f"--nproc-per-node={world_size}", str(EXAMPLES / example), *arguments, **variables
    )
    pids = agent.pids(1)
    snapshots = layout.snapshots_dir(job.folder)
    wait_for(lambda: len(snapshot.list_committed(snapshots)) >= 2, "two snapshots", 60)
    os.kill(pids[world_size - 1], signal.SIGKILL)
    agent.pids(2)
    assert agent.wait(120) == 0, agent.log(2)
    return agent


def check(job: Job, agent: Agent, steps: int) -> None:
    (restored,) = agent.events("restored")
    restored_step = restored["evidence"]["step"]
    assert restored_step >= 8
    done = sorted({line["step"] for line in agent.progress(2) if "metrics" in line})
    assert done == list(range(restored_step + 1, steps + 1))
    newest = max(snapshot.list_committed(layout.snapshots_dir(job.folder)), key=lambda name: name.step)
    assert snapshot.verify(layout.snapshots_dir(job.folder) / str(newest)).generation == 2


@pytest.mark.timeout(300)
def test_a_supervised_script_repeats_the_loss_it_had(job: Job) -> None:
    agent = kill_once(job, "supervised_ddp.py", "--steps=200")
    check(job, agent, 200)
    before, after = losses(agent, 1), losses(agent, 2)
    repeated = before.keys() & after.keys()
    assert all(after[step] == pytest.approx(before[step], rel=1e-6) for step in repeated)
    assert after[200] < 0.2 * before[1]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("framework", "arguments", "steps"),
    [
        ("lightning", ("--steps=80",), 80),
        ("accelerate", ("--epochs=2",), 128),
        ("transformers", ("--steps=80", "--output={}"), 80),
    ],
)
def test_a_framework_continues_from_its_own_checkpoint(
    job: Job, tmp_path: Path, framework: str, arguments: tuple[str, ...], steps: int
) -> None:
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    given = [argument.format(tmp_path / "output") for argument in arguments]
    agent = kill_once(job, f"supervised_{framework}.py", *given)
    check(job, agent, steps)
    assert losses(agent, 2)[steps] < 0.5 * losses(agent, 1)[2]
