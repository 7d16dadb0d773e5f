"""One incident of a node is one mark, however many jobs report it and in whatever order."""

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


def _tell(reports: list[tuple[float, FailureKind]], *, later_s: float = 0) -> list[NodeFailure]:
    """Each by a job of its own."""
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
def test_reports_of_one_incident_are_one_mark_in_any_number_and_order(
    reports: list[tuple[float, FailureKind]], order: Random
) -> None:
    told = _tell(reports)
    order.shuffle(told)
    last = max(report.at for report in told)
    (incident,) = find_incidents(told, cooldown_s=COOLDOWN_S)
    assert set(incident.reports) == set(told)
    (only,) = exclude(told, now=last, cooldown_s=COOLDOWN_S)
    assert only.until == last + timedelta(seconds=COOLDOWN_S), "as long as after one report"


@given(st.integers(1, 8), reports_of_one, orders)
def test_each_further_incident_is_a_mark_of_its_own(
    count: int, reports: list[tuple[float, FailureKind]], order: Random
) -> None:
    told = [one for number in range(count) for one in _tell(reports, later_s=number * (2 * INCIDENT_S + 1))]
    order.shuffle(told)
    found = find_incidents(told, cooldown_s=COOLDOWN_S)
    assert [len(each.reports) for each in found] == [len(reports)] * count
