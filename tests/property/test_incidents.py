"""One incident of a node counts once, for any number and order of the jobs that report it."""

from __future__ import annotations

from datetime import timedelta
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.observation.node_record import GRAVE, INCIDENT_S, NodeFailure, exclude, find_incidents
from tests.unit.situations import NOW
from trainer.contract.failure import FailureKind

COOLDOWN_S = 3600.0

reports_of_one = st.lists(
    st.tuples(st.floats(0, INCIDENT_S), st.sampled_from(sorted(GRAVE, key=lambda kind: kind.value))),
    min_size=1,
    max_size=40,
)
orders = st.randoms(use_true_random=False)


def _failures(reports: list[tuple[float, FailureKind]], *, later_s: float = 0) -> list[NodeFailure]:
    """The reports, each from another job."""
    return [
        NodeFailure(
            cluster="lab",
            node="n1",
            at=NOW + timedelta(seconds=later_s + after_s),
            key=AttemptKey(f"job-{job}", 1),
            kind=kind,
            sentence="gone",
        )
        for job, (after_s, kind) in enumerate(reports)
    ]


@given(reports_of_one, orders)
def test_any_number_of_reports_of_one_incident_count_once_in_any_order(
    reports: list[tuple[float, FailureKind]], order: Random
) -> None:
    failures = _failures(reports)
    order.shuffle(failures)
    last = max(report.at for report in failures)
    (incident,) = find_incidents(failures, cooldown_s=COOLDOWN_S)
    assert set(incident.reports) == set(failures)
    (only,) = exclude(failures, now=last, cooldown_s=COOLDOWN_S)
    assert only.until == last + timedelta(seconds=COOLDOWN_S), "the same time as after one report"


@given(st.integers(1, 8), reports_of_one, orders)
def test_each_incident_counts(count: int, reports: list[tuple[float, FailureKind]], order: Random) -> None:
    failures = [one for number in range(count) for one in _failures(reports, later_s=number * (2 * INCIDENT_S + 1))]
    order.shuffle(failures)
    found = find_incidents(failures, cooldown_s=COOLDOWN_S)
    assert [len(each.reports) for each in found] == [len(reports)] * count
