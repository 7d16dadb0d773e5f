"""The jobs of a drill and of a preflight, and the score of a drill."""

from __future__ import annotations

import json

import pytest

from orchestrator.domain.errors import InvalidSpec
from orchestrator.domain.specs.trials import (
    Score,
    StepDone,
    Strike,
    build_drill,
    build_preflight,
    exclude_nodes,
    score_run,
)
from orchestrator.domain.specs.validation import parse_spec
from tests.builders import at, make_spec
from trainer.contract.chaos import Fault
from trainer.contract.config import parse_config

TRAINER = {"trainer": {"preset": "micro", "steps": 100_000, "strategy": "fsdp"}, "env": {"A": "1"}}
SPEC = make_spec(
    run=TRAINER, topology={"nodes": "2", "workers_per_node": 4}, priority=3, after=["job-1"], labels={"team": "vision"}
)


def test_a_drill_is_the_same_job_twice_with_one_kill_between_two_snapshots() -> None:
    disturbed, undisturbed = build_drill(SPEC, steps=60)
    kill_at, config = disturbed.run.args[1], json.loads(disturbed.run.args[3])
    assert (disturbed.run.module, disturbed.run.args[0], disturbed.run.args[2]) == (
        "trainer.checks.drill",
        "--kill-at",
        "--config",
    )
    assert (config["steps"], config["snapshot_interval"], kill_at) == (60, "10", "35")
    assert config["snapshot_memory"] == "off", "the drill is to prove the snapshots on disk"
    again = undisturbed.trainer_config()
    assert again is not None
    assert again == parse_config(config)
    for trial in (disturbed, undisturbed):
        assert (trial.topology, trial.run.env, trial.project) == (SPEC.topology, SPEC.run.env, SPEC.project)
        assert (trial.priority, trial.labels) == (-100, {"team": "vision", "drill": "demo"})
        assert trial.after == (), "it waits for no other job"
        assert parse_spec(trial.model_dump(mode="json", by_alias=True)) == trial, "the service accepts it"


@pytest.mark.parametrize("steps", [12, 13, 60, 5000])
def test_the_kill_comes_after_a_snapshot_and_before_the_end(steps: int) -> None:
    disturbed, _ = build_drill(SPEC, steps=steps)
    kill_at, interval = int(disturbed.run.args[1]), int(disturbed.snapshot.interval)
    assert interval < kill_at < steps
    assert kill_at % interval != 0


def test_a_drill_of_another_fault_waits_at_the_same_step() -> None:
    killed, _ = build_drill(SPEC, steps=60)
    for fault in Fault:
        args = build_drill(SPEC, steps=60, fault=fault)[0].run.args
        assert args[0] == ("--kill-at" if fault is Fault.KILL else "--hold-at")
        assert args[1:] == killed.run.args[1:]


def steps(*terms: tuple[int, int, int, float]) -> list[StepDone]:
    """Steps from tuples of (step, attempt, generation, second)."""
    return [StepDone(step=step, attempt=a, generation=g, at=at(second)) for step, a, g, second in terms]


STRIKE = Strike(at=at(10), attempt=1, generation=2, step=35)


def test_the_score_is_the_time_to_the_next_step_of_a_later_generation() -> None:
    run = steps((30, 1, 2, 9), (31, 1, 3, 12.5), (32, 1, 3, 12.0), (36, 1, 3, 14))
    assert score_run(STRIKE, run, ends_generation=True) == Score(seconds=2.0, redone=5)
    later = steps((34, 1, 2, 11), (31, 2, 1, 40), (36, 2, 1, 41))
    assert score_run(STRIKE, later, ends_generation=True) == Score(seconds=30.0, redone=5)


def test_a_fault_that_ends_no_generation_is_scored_by_the_next_step() -> None:
    run = steps((35, 1, 2, 10), (36, 1, 2, 11), (37, 1, 2, 12))
    assert score_run(STRIKE, run, ends_generation=False) == Score(seconds=1.0, redone=0)


def test_a_run_that_did_not_continue_has_no_score_and_clocks_may_differ() -> None:
    assert score_run(STRIKE, steps((35, 1, 2, 30)), ends_generation=True) == Score(seconds=None, redone=None)
    assert score_run(STRIKE, steps((35, 1, 2, 10)), ends_generation=False) == Score(seconds=None, redone=None)
    assert score_run(STRIKE, steps((36, 1, 3, 9.5)), ends_generation=True) == Score(seconds=0.0, redone=0)


def test_the_names_keep_their_maximum_length() -> None:
    disturbed, undisturbed = build_drill(SPEC.model_copy(update={"name": "x" * 63}), steps=60)
    assert (len(disturbed.name), len(undisturbed.name)) == (63, 63)
    assert disturbed.name.endswith("-drill")


def test_a_drill_needs_the_bundled_trainer() -> None:
    with pytest.raises(InvalidSpec, match=r"run\.trainer"):
        build_drill(make_spec(), steps=60)


def test_a_preflight_runs_once_with_the_jobs_configuration() -> None:
    trial = build_preflight(SPEC)
    assert (trial.run.module, trial.run.args[0], trial.supervise.budgets.application) == (
        "trainer.checks.preflight",
        "--config",
        0,
    )
    assert json.loads(trial.run.args[1])["preset"] == "micro"
    assert parse_spec(trial.model_dump(mode="json", by_alias=True)) == trial


def test_a_preflight_of_another_program_checks_only_the_nodes() -> None:
    assert build_preflight(make_spec()).run.args == ()


def test_excluded_nodes_are_added_to_those_of_the_spec() -> None:
    spec = SPEC.model_copy(update={"placement": SPEC.placement.model_copy(update={"exclude": ("a", "b"), "qos": "q"})})
    left_out = exclude_nodes(spec, ("b", "c"))
    assert (left_out.placement.exclude, left_out.placement.qos) == (("a", "b", "c"), "q")
    assert left_out.model_copy(update={"placement": spec.placement}) == spec
