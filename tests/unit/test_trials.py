"""A drill and a preflight are jobs in the real job's place."""

from __future__ import annotations

import json

import pytest

from orchestrator.domain.errors import InvalidSpec
from orchestrator.domain.trials import build_drill, build_preflight
from orchestrator.domain.validation import parse_spec
from tests.builders import make_spec

TRAINER = {"trainer": {"preset": "micro", "steps": 100_000, "strategy": "fsdp"}, "env": {"A": "1"}}
SPEC = make_spec(run=TRAINER, topology={"nodes": "2", "workers_per_node": 4}, priority=3, after=["job-1"])


def test_a_drill_is_the_same_job_twice_and_one_of_them_dies_between_two_snapshots() -> None:
    disturbed, undisturbed = build_drill(SPEC, steps=60)
    kill_at, config = disturbed.run.args[1], json.loads(disturbed.run.args[3])
    assert (disturbed.run.module, disturbed.run.args[0], disturbed.run.args[2]) == (
        "trainer.drill",
        "--kill-at",
        "--config",
    )
    assert (config["steps"], config["snapshot_interval"], kill_at) == (60, "10", "35")
    again = undisturbed.trainer_config()
    assert again is not None
    assert {**vars(again)} == config
    for trial in (disturbed, undisturbed):
        assert (trial.topology, trial.run.env, trial.priority) == (SPEC.topology, SPEC.run.env, SPEC.priority)
        assert trial.after == (), "it waits for nobody"
        assert parse_spec(trial.model_dump(mode="json", by_alias=True)) == trial, "the service accepts it"


@pytest.mark.parametrize("steps", [12, 13, 60, 5000])
def test_a_drills_kill_comes_after_a_snapshot_and_before_the_end(steps: int) -> None:
    disturbed, _ = build_drill(SPEC, steps=steps)
    kill_at, interval = int(disturbed.run.args[1]), int(disturbed.snapshot.interval)
    assert interval < kill_at < steps
    assert kill_at % interval != 0


def test_the_name_stays_a_name() -> None:
    disturbed, undisturbed = build_drill(SPEC.model_copy(update={"name": "x" * 63}), steps=60)
    assert (len(disturbed.name), len(undisturbed.name)) == (63, 63)
    assert disturbed.name.endswith("-drill")


def test_a_program_of_ones_own_cannot_be_drilled() -> None:
    with pytest.raises(InvalidSpec, match=r"run\.trainer"):
        build_drill(make_spec(), steps=60)


def test_a_preflight_is_tried_once_with_the_jobs_own_configuration() -> None:
    trial = build_preflight(SPEC)
    assert (trial.run.module, trial.run.args[0], trial.supervise.budgets.application) == (
        "trainer.preflight",
        "--config",
        0,
    )
    assert json.loads(trial.run.args[1])["preset"] == "micro"
    assert parse_spec(trial.model_dump(mode="json", by_alias=True)) == trial


def test_a_program_of_ones_own_gets_the_checks_of_its_nodes() -> None:
    assert build_preflight(make_spec()).run.args == ()
