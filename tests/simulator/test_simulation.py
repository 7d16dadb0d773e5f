"""Simulations of small clusters: their counts are right, and they violate no invariant."""

from __future__ import annotations

import json
import statistics

import pytest

from orchestrator.domain.accounting.goodput import Bin
from orchestrator.domain.errors import Refused
from orchestrator.domain.job.job import JobState
from orchestrator.simulator.failure_traces import TRACES
from orchestrator.simulator.report import build_report, closed_form, ettr, render_report
from orchestrator.simulator.virtual_clock import SECOND

from .scenarios import NEVER_H, make_scenario, simulate


def test_without_failures_every_bin_is_exact() -> None:
    result = simulate(mtbf_h=NEVER_H, snapshot_interval_s=95, days=1)
    device_us = 64 * SECOND
    assert result.bins[Bin.START_UP] == 90 * device_us
    # 86310 s are 863 cycles of 95 s and 5 s, and 10 s that no snapshot has kept at the end.
    assert result.bins[Bin.PRODUCTIVE] == 863 * 95 * device_us
    assert result.bins[Bin.SNAPSHOT_STALL] == 863 * 5 * device_us
    assert result.bins[Bin.RE_DONE] == 10 * device_us
    assert result.total == 86400 * device_us
    assert result.attempts == 1


def test_the_simulation_ends_with_its_only_job() -> None:
    result = simulate(mtbf_h=NEVER_H, snapshot_interval_s=595, job_hours=1, days=1)
    assert result.states == {JobState.SUCCEEDED: 1}
    assert result.bins[Bin.PRODUCTIVE] == 3600 * 64 * SECOND
    assert result.lasted_us == (90 + 3600 + 7 * 5) * SECOND


@pytest.mark.long
def test_the_mean_of_three_seeds_is_close_to_dalys_model() -> None:
    """The benchmark simulate_ettr compares the mean of thirty seeds on large clusters."""
    scenario = make_scenario(mtbf_h=3.09, days=18)
    ratios = [ettr(simulate(mtbf_h=3.09, days=18, seed=seed)) for seed in (1, 2, 3)]
    assert statistics.mean(ratios) == pytest.approx(closed_form(scenario), rel=0.005)


def test_a_restart_takes_as_long_as_the_scenario_says() -> None:
    result = simulate(days=6)
    restarts = result.restarts["node"]
    assert restarts > 10
    per_restart_s = result.bins[Bin.RECOVERING] / restarts / 64 / SECOND
    assert per_restart_s == pytest.approx(90.01, abs=0.02)  # 10 ms for two decisions


@pytest.mark.parametrize("trace", sorted(set(TRACES) - {"mixed"}))
def test_every_trace_keeps_the_invariants(trace: str) -> None:
    """With unlimited spares, test_policy does the same for all kinds of incidents together."""
    result = simulate(trace=trace, spares=2, gpus=128, days=4)
    assert result.violations == []
    assert result.bins.total() == result.total == result.lasted_us * 128
    assert result.attempts <= result.faults.total() + 1


def test_the_same_seed_gives_the_same_output() -> None:
    results = [simulate(trace="mixed", gpus=464, days=0.5, seed=5) for _ in range(2)]
    first, second = (json.dumps(build_report(result)) + render_report(result) for result in results)
    assert first == second
    other = json.dumps(build_report(simulate(trace="mixed", gpus=464, days=0.5, seed=6)))
    assert not first.startswith(other)


def test_training_that_snapshots_keep_pays_for_failures() -> None:
    """Without reports of snapshots the service would give the job up after ten lost nodes."""
    result = simulate(mtbf_h=0.4, days=1)
    assert result.restarts["node"] > 40
    assert result.states == {JobState.RUNNING: 1}


def test_outages_do_not_affect_a_healthy_job() -> None:
    result = simulate(trace="outage", mtbf_h=NEVER_H, days=10)
    quiet = simulate(mtbf_h=NEVER_H, days=10)
    assert result.incidents > 5
    assert result.attempts == 1
    assert result.bins == quiet.bins


def test_a_program_that_fails_at_the_same_step_is_stopped() -> None:
    result = simulate(trace="crash-loop", mtbf_h=NEVER_H, job_hours=10)
    assert result.states == {JobState.FAILED: 1}
    assert result.decisions["give_up"] == 1
    assert result.restarts_in_place == 1  # then the same error again


def test_a_node_that_fails_again_and_again_is_avoided() -> None:
    result = simulate(trace="lemon", gpus=512, days=4)
    incidents_of_lemon = result.incidents - simulate(gpus=512, days=4).incidents
    assert incidents_of_lemon > 100
    assert result.restarts["node"] < 60


def test_preemption_keeps_the_work() -> None:
    result = simulate(trace="preemption-wave", mtbf_h=NEVER_H, days=6)
    assert result.restarts["preempted"] >= 5
    assert result.bins[Bin.RE_DONE] <= 64 * SECOND * result.scenario.interval_s(64)  # at the end of the simulation only


def test_an_elastic_job_continues_with_fewer_nodes_and_grows_again() -> None:
    result = simulate(nodes="4:8", days=4)
    assert result.decisions["grow_back"] >= 5
    assert result.decisions["mark_lost_nodes"] >= result.decisions["grow_back"]
    assert result.bins[Bin.IDLE] > 0
    assert set(result.restarts) == {"wished"}
    assert result.violations == []


def test_without_spares_a_job_waits_for_the_repair() -> None:
    result = simulate(spares=0, repair_h=2, days=4)
    failures = result.restarts["node"]
    assert result.bins[Bin.RECOVERING] >= failures * 2 * 3600 * 64 * SECOND * 0.9
    assert result.violations == []


def test_many_jobs_share_a_cluster() -> None:
    result = simulate(gpus=1024, mtbf_h=49.44, jobs=100, job_hours=0.25, pass_pause_s=60, days=2)
    assert result.violations == []
    assert result.states == {JobState.SUCCEEDED: 100}
    assert result.bins[Bin.QUEUE] > 0  # not all fit at once


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"gpus": 60}, "not a multiple"),
        ({"trace": "meteor"}, "unknown"),
        ({"nodes": "9"}, "more than the 8 nodes"),
        ({"without": ("gravity",)}, "no such rule"),
        ({"trace": "mixed"}, "or more"),
    ],
)
def test_an_impossible_scenario_is_refused(fields: dict[str, object], complaint: str) -> None:
    with pytest.raises(Refused, match=complaint):
        simulate(**fields)
