"""Copies in memory: which failures they survive, what is repeated, and what the closed form expects."""

from __future__ import annotations

import json
import math
import statistics
from typing import Any

import pytest

from orchestrator.domain.accounting.goodput import Bin
from orchestrator.domain.errors import Refused
from orchestrator.simulator.failure_traces import TRACES, WORKER_SHARE
from orchestrator.simulator.memory_tier import Copies, MemoryTier
from orchestrator.simulator.report import build_report, closed_form, daly_ettr, ettr, render_report
from orchestrator.simulator.simulation import Result, Simulation
from orchestrator.simulator.two_tiers import TwoTiers, mean_restart_s, two_tier_ettr
from orchestrator.simulator.virtual_clock import SECOND

from .scenarios import make_scenario, simulate

NODES = ("a", "b", "c", "d", "e", "f")


def make_tier(**fields: Any) -> MemoryTier:
    return MemoryTier(**{"interval_s": 60, "stall_s": 0.5, "restart_s": 20, **fields})


def make_copies(**fields: Any) -> Copies:
    copies = Copies(make_tier(**fields))
    copies.renew()
    return copies


def simulate_tier(tier: dict[str, Any], **fields: Any) -> Result:
    return simulate(memory=make_tier(**tier), **fields)


# Which copies a failure leaves


def test_a_lost_node_takes_its_copies_with_it() -> None:
    copies = make_copies()
    copies.lose_nodes([2], NODES)
    assert not copies.whole


def test_a_buddy_has_the_copies_of_a_lost_node() -> None:
    copies = make_copies(buddies=2)
    copies.lose_nodes([2], NODES)
    copies.lose_nodes([0, 4], NODES)  # one node of each other ring
    assert copies.whole


@pytest.mark.parametrize("lost", [[[2, 3]], [[2], [3]], [[3], [0], [2]]])
def test_two_nodes_of_one_ring_lose_the_state_until_the_next_copy(lost: list[list[int]]) -> None:
    copies, renewed = make_copies(buddies=2), make_copies(buddies=2)
    for replicas in lost:
        copies.lose_nodes(replicas, NODES)
        renewed.renew()
        renewed.lose_nodes(replicas, NODES)
    assert not copies.whole
    assert renewed.whole is (len(lost) > 1)


def test_a_buddy_is_known_by_its_name_because_a_new_attempt_numbers_its_nodes_anew() -> None:
    copies = make_copies(buddies=2)
    copies.lose_nodes([0], NODES)
    copies.lose_nodes([0], ("b", "c", "d", "e", "f", "g"))
    assert not copies.whole


def test_the_last_node_of_an_odd_number_has_no_buddy() -> None:
    copies = make_copies(buddies=2)
    copies.lose_nodes([4], NODES[:5])
    assert not copies.whole


# What is repeated


def test_a_killed_worker_repeats_at_most_one_interval_of_the_copies() -> None:
    result = simulate_tier({}, worker_share=1, days=6)
    assert result.sources["memory"] > 10
    assert result.sources["disk"] <= 1
    at_most_us = (result.sources.total() + 1) * 61 * SECOND * 64
    assert result.bins[Bin.RE_DONE] <= at_most_us
    assert result.bins[Bin.RE_DONE] < simulate(worker_share=1, days=6).bins[Bin.RE_DONE] / 3


def test_survivors_repeat_less_than_a_step() -> None:
    result = simulate_tier({"survivors": True}, worker_share=1, days=6)
    assert result.sources["survivor"] > 10
    ends = result.sources.total() + 1
    assert result.bins[Bin.RE_DONE] <= ends * result.scenario.step_s * SECOND * 64


def test_a_lost_node_is_restored_from_disk_or_from_its_buddy() -> None:
    assert set(simulate_tier({}, worker_share=0, days=6).sources) == {"disk"}
    buddies = simulate_tier({"buddies": 2}, worker_share=0, days=6)
    assert set(buddies.sources) == {"memory"}
    assert buddies.bins[Bin.RE_DONE] <= (buddies.sources.total() + 1) * 61 * SECOND * 64


def test_a_restart_from_memory_takes_as_long_as_the_scenario_says() -> None:
    result = simulate_tier({"buddies": 2, "restart_s": 33}, worker_share=0, days=6)
    per_restart_s = result.bins[Bin.RECOVERING] / result.restarts["node"] / 64 / SECOND
    assert per_restart_s == pytest.approx(33.01, abs=0.02)


def test_a_rack_takes_both_nodes_of_a_ring() -> None:
    """A ring of two fails with its rack of 32 nodes."""
    result = simulate_tier({"buddies": 2}, worker_share=0, trace="rack", gpus=512, mtbf_h=2, days=4)
    assert result.sources["disk"] > 0
    assert result.sources["memory"] > result.sources["disk"]


def test_work_that_memory_loses_counts_as_re_done() -> None:
    """Snapshots are so rare that each loss of memory costs hours. The bins still add up."""
    result = simulate_tier({}, worker_share=0.7, snapshot_interval_s=6 * 3600, days=6)
    plain = Simulation(result.scenario.without_memory()).run()
    assert set(result.sources) == {"memory", "disk"}
    assert result.bins.total() == result.total
    assert result.violations == plain.violations == []
    assert min(result.bins.values()) >= 0


@pytest.mark.parametrize("trace", sorted(set(TRACES) - {"mixed"}))
@pytest.mark.parametrize("tier", [{"survivors": True}, {"buddies": 2}])
def test_every_trace_keeps_the_invariants_with_copies(trace: str, tier: dict[str, Any]) -> None:
    result = simulate_tier(tier, trace=trace, spares=2, gpus=128, days=2, worker_share=0.5)
    assert result.violations == []
    assert result.bins.total() == result.total == result.lasted_us * 128


def test_elastic_jobs_have_copies_too() -> None:
    result = simulate_tier({"buddies": 2, "survivors": True}, nodes="4:8", days=4, worker_share=0.5)
    assert result.violations == []
    assert {"memory", "survivor"} <= set(result.sources)


# The closed form


def make_tiers(**fields: Any) -> TwoTiers:
    values = {
        "memory_rate": 1 / 4000,
        "disk_rate": 1 / 9000,
        "copy_interval_s": 60,
        "copy_stall_s": 1,
        "copies": 10,
        "snapshot_stall_s": 5,
        "memory_restart_s": 20,
        "disk_restart_s": 90,
    }
    return TwoTiers(**{**values, **fields})


def test_without_failures_for_memory_the_two_tiers_are_dalys_model() -> None:
    expected = daly_ettr(interval_s=600, stall_s=15, restart_s=90, mtbf_s=9000)
    assert two_tier_ettr(make_tiers(memory_rate=0.0)) == pytest.approx(expected, rel=1e-12)


def test_without_failures_for_disk_each_copy_is_a_snapshot_of_dalys_model() -> None:
    tiers = make_tiers(disk_rate=0.0, snapshot_stall_s=0)
    expected = daly_ettr(interval_s=60, stall_s=1, restart_s=20, mtbf_s=4000)
    assert two_tier_ettr(tiers) == pytest.approx(expected, rel=1e-12)


def test_if_both_tiers_cost_the_same_the_kinds_of_failures_do_not_matter() -> None:
    """One copy for each snapshot, without a stall between them."""
    same = {"copies": 1, "snapshot_stall_s": 0, "memory_restart_s": 90}
    expected = daly_ettr(interval_s=60, stall_s=1, restart_s=90, mtbf_s=1 / (1 / 4000 + 1 / 9000))
    assert two_tier_ettr(make_tiers(**same)) == pytest.approx(expected, rel=1e-12)


def test_several_restart_times_cost_as_much_as_their_mean_one() -> None:
    assert mean_restart_s([(0.5, 30), (0.5, 30)], 1000) == pytest.approx(30)
    # -1000 ln((e^-0.02 + e^-0.09) / 2)
    assert mean_restart_s([(0.5, 20), (0.5, 90)], 1000) == pytest.approx(-1000 * math.log((0.9801987 + 0.9139312) / 2))


def test_the_mean_of_some_seeds_is_close_to_the_closed_form() -> None:
    """The next test has more failures and more kinds of tiers."""
    fields = {"mtbf_h": 1, "days": 4, "worker_share": 0.3}
    results = [simulate_tier({"buddies": 2}, seed=seed, **fields) for seed in range(1, 7)]
    assert all(result.lasted_us == 4 * 86400 * SECOND for result in results)
    expected = closed_form(results[0].scenario)
    assert statistics.mean(ettr(result) for result in results) == pytest.approx(expected, rel=0.005)


@pytest.mark.long
@pytest.mark.parametrize(
    ("tier", "share"), [({}, 0.5), ({"buddies": 2}, 0.3), ({"survivors": True}, 0.5), ({"interval_s": 300}, 0.2)]
)
def test_the_mean_of_several_seeds_is_close_to_the_closed_form(tier: dict[str, Any], share: float) -> None:
    """The tolerance is half a percent. The standard errors of these means are at most a tenth of a percent."""
    fields = {"mtbf_h": 3, "days": 20, "worker_share": share}
    results = [simulate_tier(tier, seed=seed, **fields) for seed in range(1, 7)]
    assert all(result.lasted_us == 20 * 86400 * SECOND for result in results)
    expected = closed_form(results[0].scenario)
    assert statistics.mean(ettr(result) for result in results) == pytest.approx(expected, rel=0.005)
    plain = [ettr(simulate(seed=seed, **fields)) for seed in range(1, 7)]
    assert statistics.mean(plain) == pytest.approx(closed_form(results[0].scenario.without_memory()), rel=0.005)


# What is printed


def test_the_report_compares_with_the_same_failures_without_copies() -> None:
    result = simulate_tier({}, days=2)
    plain = Simulation(result.scenario.without_memory()).run()
    assert result.scenario.workers_share == plain.scenario.workers_share == WORKER_SHARE
    assert result.incidents == plain.incidents
    report = json.loads(json.dumps(build_report(result, plain)))
    assert (report["ettr_without_memory"], report["restarts_by_source"]) == (ettr(plain), dict(result.sources))
    assert report["ettr_closed_form_without_memory"] == closed_form(plain.scenario)
    text = render_report(result, plain)
    assert f"  without copies   {ettr(plain):.6f}\n" in text
    assert "restarts by source" in text
    assert "restarts by source" not in render_report(plain)


def test_a_ring_of_one_node_is_refused() -> None:
    with pytest.raises(Refused, match="is no ring"):
        make_scenario(memory=make_tier(buddies=1)).check()
