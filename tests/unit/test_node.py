"""Node records: which nodes are avoided, and until when."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.observation.node_record import INCIDENT_S, NodeFailure, exclude, find_incidents
from tests.unit.situations import NOW, ago
from trainer.contract.failure import FailureKind


def mark(node: str, age_s: float = 0, kind: FailureKind = FailureKind.NODE, job: str = "job") -> NodeFailure:
    return NodeFailure(
        cluster="lab", node=node, at=ago(age_s), key=AttemptKey(job, 1), kind=kind, sentence=f"{node} broke"
    )


def excluded(*marks: NodeFailure) -> list[str]:
    return [each.node for each in exclude(marks, now=NOW, cooldown_s=100)]


def test_a_lost_node_is_avoided_until_its_cool_down_ends() -> None:
    assert excluded(mark("n1", 99)) == ["n1"]
    assert excluded(mark("n1", 100)) == []


def test_each_further_incident_doubles_the_cool_down() -> None:
    assert excluded(mark("n1", 199), mark("n1", 350, job="b")) == ["n1"]
    assert excluded(mark("n1", 200), mark("n1", 350, job="b")) == []
    many = [mark("n1", 3199 + 101 * number, job=str(number)) for number in range(50)]
    assert excluded(*many) == ["n1"]
    assert excluded(*[mark("n1", 3200 + 101 * number, job=str(number)) for number in range(50)]) == []


def test_one_power_loss_counts_once_whatever_its_jobs_report() -> None:
    kinds = (FailureKind.NODE, FailureKind.NODE, FailureKind.INFRASTRUCTURE, FailureKind.NODE)
    four = [mark("n1", 30 + 10 * number, kind, job=str(number)) for number, kind in enumerate(kinds)]
    (only,) = exclude(four, now=NOW, cooldown_s=3600)
    assert (only.until - NOW).total_seconds() == 3600 - 30
    assert len(find_incidents(four, cooldown_s=3600)) == 1
    assert len(find_incidents([replace(each, began_at=ago(500)) for each in four], cooldown_s=3600)) == 1


def cleared(*marks: NodeFailure, ago_s: float) -> list[NodeFailure]:
    return [replace(each, cleared_at=ago(ago_s)) for each in marks]


def test_a_cleared_incident_does_not_count_even_if_a_report_comes_late() -> None:
    assert excluded(*cleared(mark("n1", 50), mark("n1", 20, job="late"), ago_s=40)) == []
    assert excluded(*cleared(mark("n1", 50), ago_s=50)) == []


def test_an_incident_after_the_clearing_counts_as_the_first_one() -> None:
    again = cleared(mark("n1", 5000), mark("n1", 4000, job="b"), mark("n1", 60, job="c"), ago_s=3000)
    (only,) = exclude(again, now=NOW, cooldown_s=1000)
    assert (only.until - NOW).total_seconds() == 940
    hangs = cleared(mark("n1", 90, FailureKind.HANG), mark("n1", 1, FailureKind.HANG, job="b"), ago_s=80)
    assert exclude(hangs, now=NOW, cooldown_s=50) == [], "the other hang was cleared"


def test_an_attempt_from_after_the_clearing_reports_a_new_incident() -> None:
    early = cleared(mark("n1", 400), mark("n1", 200, job="b"), ago_s=300)
    assert excluded(*early) == [], "the second is a late report of the first"
    again = replace(early[1], began_at=ago(250))
    (only,) = exclude([early[0], again], now=NOW, cooldown_s=1000)
    assert (only.until - NOW).total_seconds() == 800
    late = replace(early[1], at=ago(100), key=AttemptKey("c", 1), began_at=ago(500))
    assert len(find_incidents([early[0], again, late], cooldown_s=1000)) == 1
    assert find_incidents([early[0], late], cooldown_s=1000) == [], "its attempt is from before the clearing"


def test_a_later_failure_is_a_new_incident() -> None:
    flapping = [mark("n1", INCIDENT_S + 1), mark("n1", 0, job="b")]
    (only,) = exclude(flapping, now=NOW, cooldown_s=3600)
    assert (only.until - NOW).total_seconds() == 7200
    often = [mark("n1", 300 * number, job=str(number)) for number in range(7)]
    assert len(find_incidents(often, cooldown_s=3600)) == 3, "a chain of failures is split into incidents"


def test_a_hang_counts_only_if_two_attempts_report_one() -> None:
    assert excluded(mark("n1", 1, FailureKind.HANG)) == []
    assert excluded(mark("n1", 1, FailureKind.HANG), mark("n1", 2, FailureKind.HANG, job="b")) == ["n1"]


def test_the_sentence_has_the_newest_reason() -> None:
    (only,) = exclude([mark("n1", 10)], now=NOW, cooldown_s=100)
    assert only.sentence == "node n1 is avoided: n1 broke"
    assert (only.until - NOW).total_seconds() == 90
