"""Failure traces: means, distributions, order, and reproducibility."""

from __future__ import annotations

import math
import statistics
from itertools import islice, pairwise

import pytest

from orchestrator.simulator.failure_traces import TRACES, WEIBULL_SHAPE, IncidentKind, build_trace

HOUR_US = 3600 * 1_000_000


def gaps_us(name: str, kind: IncidentKind) -> list[int]:
    incidents = (each for each in build_trace(name, mtbf_us=HOUR_US, seed=1) if each.kind is kind)
    times = [0, *(each.at_us for each in islice(incidents, 20_000))]
    return [later - earlier for earlier, later in pairwise(times)]


def test_exponential_gaps_have_the_given_mean_and_standard_deviation() -> None:
    gaps = gaps_us("exponential", IncidentKind.NODE)
    assert statistics.mean(gaps) == pytest.approx(HOUR_US, rel=0.03)
    assert statistics.stdev(gaps) == pytest.approx(HOUR_US, rel=0.05)


def test_weibull_gaps_have_the_given_mean_and_cluster() -> None:
    gaps = gaps_us("weibull", IncidentKind.NODE)
    assert statistics.mean(gaps) == pytest.approx(HOUR_US, rel=0.03)
    # Gamma(1 + 2/k) / Gamma(1 + 1/k)^2 - 1 is the squared coefficient of variation: 1.46 for k = 0.7, 1 for k = 1.
    variation = math.sqrt(math.gamma(1 + 2 / WEIBULL_SHAPE) / math.gamma(1 + 1 / WEIBULL_SHAPE) ** 2 - 1)
    assert variation == pytest.approx(1.46, abs=0.01)
    assert statistics.stdev(gaps) / statistics.mean(gaps) == pytest.approx(variation, rel=0.06)


def test_failed_nodes_are_spread_over_all_nodes() -> None:
    where = [each.where for each in islice(build_trace("exponential", mtbf_us=HOUR_US, seed=3), 10_000)]
    assert min(where) >= 0
    assert max(where) < 1
    assert statistics.mean(where) == pytest.approx(0.5, abs=0.02)
    assert statistics.pvariance(where) == pytest.approx(1 / 12, abs=0.005)


@pytest.mark.parametrize("name", TRACES)
def test_a_seed_gives_one_trace_in_order_of_time(name: str) -> None:
    one, same, other = (list(islice(build_trace(name, mtbf_us=HOUR_US, seed=seed), 200)) for seed in (7, 7, 8))
    assert one == same != other
    assert one == sorted(one)


def test_the_mixed_trace_has_every_kind_of_incident() -> None:
    trace = build_trace("mixed", mtbf_us=HOUR_US, seed=1, worker_share=0.5)
    assert {each.kind for each in islice(trace, 2000)} == set(IncidentKind)


def test_a_share_of_the_failures_spares_the_node_at_the_same_times_and_places() -> None:
    whole = list(islice(build_trace("rack", mtbf_us=HOUR_US, seed=1), 5000))
    shared = list(islice(build_trace("rack", mtbf_us=HOUR_US, seed=1, worker_share=0.25), 5000))
    assert [(each.at_us, each.where) for each in shared] == [(each.at_us, each.where) for each in whole]
    changed = [(before.kind, after.kind) for before, after in zip(whole, shared, strict=True)]
    single = changed.count((IncidentKind.NODE, IncidentKind.NODE))
    spared = changed.count((IncidentKind.NODE, IncidentKind.WORKER))
    assert spared / (single + spared) == pytest.approx(0.25, abs=0.02)
    assert all(after is IncidentKind.RACK for before, after in changed if before is IncidentKind.RACK)
