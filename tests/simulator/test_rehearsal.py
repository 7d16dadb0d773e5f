"""Rehearsals of small clusters: what they count is right, and what must never happen does not."""

from __future__ import annotations

import json
import statistics

import pytest

from orchestrator.domain.errors import Refused
from orchestrator.domain.job.job import JobState
from orchestrator.simulator.rehearsal.agenda import SECOND
from orchestrator.simulator.rehearsal.goodput import Bin
from orchestrator.simulator.rehearsal.report import build_report, closed_form, ettr, render_report
from orchestrator.simulator.rehearsal.traces import TRACES

from .scenarios import NEVER_H, make_scenario, rehearse


def test_without_failures_all_is_known() -> None:
    account = rehearse(mtbf_h=NEVER_H, snapshot_interval_s=95, days=1)
    device_us = 64 * SECOND
    assert account.bins[Bin.START_UP] == 90 * device_us
    # 86310 s are 863 cycles of 95 s and 5 s, and 10 s that no snapshot has kept at the end.
    assert account.bins[Bin.PRODUCTIVE] == 863 * 95 * device_us
    assert account.bins[Bin.SNAPSHOT_STALL] == 863 * 5 * device_us
    assert account.bins[Bin.RE_DONE] == 10 * device_us
    assert account.whole == 86400 * device_us
    assert account.tally.attempts == 1


def test_a_job_that_is_through_ends_the_rehearsal() -> None:
    account = rehearse(mtbf_h=NEVER_H, snapshot_interval_s=595, job_hours=1, days=1)
    assert account.states == {JobState.SUCCEEDED: 1}
    assert account.bins[Bin.PRODUCTIVE] == 3600 * 64 * SECOND
    assert account.lasted_us == (90 + 3600 + 7 * 5) * SECOND


def test_the_mean_of_three_seeds_is_near_dalys_form() -> None:
    """The benchmark simulate_ettr holds the mean of thirty seeds of the large clusters against it."""
    scenario = make_scenario(mtbf_h=3.09, days=54)
    ratios = [ettr(rehearse(mtbf_h=3.09, days=54, seed=seed)) for seed in (1, 2, 3)]
    assert statistics.mean(ratios) == pytest.approx(closed_form(scenario), rel=0.005)


def test_a_restart_takes_what_it_is_said_to_take() -> None:
    account = rehearse(days=6)
    restarts = account.tally.restarts["node"]
    assert restarts > 10
    per_restart_s = account.bins[Bin.RECOVERING] / restarts / 64 / SECOND
    assert per_restart_s == pytest.approx(90.01, abs=0.02)  # one decision at once after another: 10 ms


@pytest.mark.parametrize("trace", sorted(set(TRACES) - {"mixed"}))
@pytest.mark.parametrize("spares", [None, 2])
def test_every_trace_keeps_the_invariants(trace: str, spares: int | None) -> None:
    account = rehearse(trace=trace, spares=spares, gpus=128, days=4)
    assert account.violations == []
    assert account.bins.total() == account.whole == account.lasted_us * 128
    assert account.tally.attempts <= account.faults.total() + 1


def test_the_same_seed_gives_the_same_output() -> None:
    accounts = [rehearse(trace="mixed", gpus=512, days=1, seed=5) for _ in range(2)]
    first, second = (json.dumps(build_report(account)) + render_report(account) for account in accounts)
    assert first == second
    other = json.dumps(build_report(rehearse(trace="mixed", gpus=512, days=1, seed=6)))
    assert not first.startswith(other)


def test_silence_costs_a_healthy_job_nothing() -> None:
    account = rehearse(trace="outage", mtbf_h=NEVER_H, days=10)
    quiet = rehearse(mtbf_h=NEVER_H, days=10)
    assert account.incidents > 5
    assert account.tally.attempts == 1
    assert account.bins == quiet.bins


def test_a_program_that_fails_at_the_same_step_is_stopped() -> None:
    account = rehearse(trace="crash-loop", mtbf_h=NEVER_H, job_hours=10)
    assert account.states == {JobState.FAILED: 1}
    assert account.tally.decisions["give_up"] == 1
    assert account.in_place == 1  # once more in place; then the same error again


def test_a_node_that_fails_again_and_again_is_avoided() -> None:
    account = rehearse(trace="lemon", gpus=512, days=4)
    strikes_of_lemon = account.incidents - rehearse(gpus=512, days=4).incidents
    assert strikes_of_lemon > 100
    assert account.tally.restarts["node"] < 60


def test_preemption_keeps_the_work() -> None:
    account = rehearse(trace="preemption-wave", mtbf_h=NEVER_H, days=6)
    assert account.tally.restarts["preempted"] >= 5
    assert account.bins[Bin.RE_DONE] <= 64 * SECOND * account.scenario.interval_s(64)  # the end of the rehearsal alone


def test_an_elastic_job_goes_on_with_fewer_nodes_and_grows_again() -> None:
    account = rehearse(nodes="4:8", days=4)
    assert account.tally.decisions["grow_back"] >= 5
    assert account.tally.decisions["mark_lost_nodes"] >= account.tally.decisions["grow_back"]
    assert account.bins[Bin.IDLE] > 0
    assert set(account.tally.restarts) == {"wished"}
    assert account.violations == []


def test_without_spares_a_job_waits_for_the_repair() -> None:
    account = rehearse(spares=0, repair_h=2, days=4)
    failures = account.tally.restarts["node"]
    assert account.bins[Bin.RECOVERING] >= failures * 2 * 3600 * 64 * SECOND * 0.9
    assert account.violations == []


def test_a_thousand_jobs_share_a_cluster() -> None:
    account = rehearse(gpus=16384, mtbf_h=3.09, jobs=1000, job_hours=0.25, pass_pause_s=60, days=2)
    assert account.violations == []
    assert account.states == {JobState.SUCCEEDED: 1000}
    assert account.bins[Bin.QUEUE] > 0  # they did not all fit


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"gpus": 60}, "no multiple"),
        ({"trace": "meteor"}, "unknown"),
        ({"nodes": "9"}, "more than the 8 nodes"),
        ({"without": ("gravity",)}, "no such rule"),
        ({"trace": "mixed"}, "is the least"),
    ],
)
def test_what_cannot_be_rehearsed_is_refused(fields: dict[str, object], complaint: str) -> None:
    with pytest.raises(Refused, match=complaint):
        rehearse(**fields)
