"""Failures that followed from requested faults are marked, and no others."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from orchestrator.domain.accounting.goodput import Bin, Stretch
from orchestrator.domain.accounting.injections import Injection, chaos_us, find_cause, mark_stretches, read_injections
from orchestrator.domain.job.event import Event
from tests.builders import at, make_event
from trainer.contract.chaos import Fault


def requested(number: int, fault: str = "kill", *, attempt: int | None = 1, actor: str | None = "alice") -> Event:
    evidence: dict[str, object] = {"number": number, "fault": fault, "attempt": attempt}
    return make_event("chaos.requested", at=at(1), actor=actor, evidence=evidence)


def injected(number: object, *, seconds: float = 5, attempt: int | None = 1, generation: int | None = 1) -> Event:
    return make_event(
        "chaos.injected",
        at=at(seconds),
        attempt=attempt,
        generation=generation,
        sentence="on purpose: rank 1 was killed",
        evidence={"number": number, "fault": "kill"},
    )


def an_injection(number: int = 1, fault: Fault = Fault.KILL, **fields: object) -> Injection:
    known = {"at": at(5), "attempt": 1, "generation": 1, "actor": "alice", "sentence": "so it was"}
    return Injection(number=number, fault=fault, **{**known, **fields})  # type: ignore[arg-type]


def test_an_agents_report_of_a_fault_counts_with_its_request() -> None:
    (found,) = read_injections([requested(3, "hang"), injected(3)])
    assert found == Injection(
        number=3,
        fault=Fault.HANG,
        at=at(5),
        attempt=1,
        generation=1,
        actor="alice",
        sentence="on purpose: rank 1 was killed",
    )
    (without,) = read_injections([requested(3), injected(3, generation=None)])
    assert without.generation == 0


@pytest.mark.parametrize(
    "events",
    [
        [injected(3)],
        [requested(3)],
        [requested(2), injected(3)],
        [requested(3), injected("3")],
        [requested(3), injected([3])],
        [requested(3, attempt=2), injected(3)],
        [requested(3), injected(3, attempt=None)],
        [requested(3, attempt=None), injected(3, attempt=None)],
        [requested(3), replace(injected(3), kind="worker.failed")],
    ],
)
def test_a_report_without_a_request_is_no_fault(events: list[Event]) -> None:
    assert read_injections(events) == ()


def test_each_preempted_agent_reports_the_fault() -> None:
    assert len(read_injections([requested(3, "preempt"), injected(3), injected(3)])) == 2


@pytest.mark.parametrize("fault", [Fault.KILL, Fault.HANG, Fault.PREEMPT, Fault.NODE_LOSS])
def test_a_failure_of_the_same_generation_after_the_fault_follows_from_it(fault: Fault) -> None:
    one = an_injection(fault=fault)
    assert find_cause([one], attempt=1, generation=1, at=at(6)) is one
    assert find_cause([one], attempt=1, generation=None, at=at(6)) is one
    assert find_cause([one], attempt=1, generation=1, at=at(0)) is one, "clocks differ by seconds"


@pytest.mark.parametrize(
    ("attempt", "generation", "seconds"), [(2, 1, 6.0), (2, None, 6.0), (1, 2, 6.0), (1, 1, -0.5), (1, None, -0.5)]
)
def test_a_failure_elsewhere_or_before_does_not_follow_from_the_fault(
    attempt: int, generation: int | None, seconds: float
) -> None:
    assert find_cause([an_injection()], attempt=attempt, generation=generation, at=at(seconds)) is None


@pytest.mark.parametrize("fault", [Fault.SLOW, Fault.DISK_FULL, Fault.CORRUPT_SNAPSHOT])
def test_a_fault_that_ends_no_worker_is_no_cause(fault: Fault) -> None:
    assert find_cause([an_injection(fault=fault)], attempt=1, generation=1, at=at(6)) is None


def test_the_later_of_two_faults_is_the_cause() -> None:
    early, late = an_injection(1), an_injection(2, at=at(5.5))
    assert find_cause([late, early], attempt=1, generation=1, at=at(6)) is late


def stretches(*parts: tuple[Bin, int | None], attempt: int | None = 1) -> list[Stretch]:
    """Stretches of one second with two devices in use; each part names its bin and generation."""
    ends = [at(second) for second in range(len(parts) + 1)]
    return [
        Stretch(bin=each, since=since, until=until, devices=2, used=2, attempt=attempt, generation=generation)
        for (each, generation), (since, until) in zip(parts, pairwise(ends), strict=True)
    ]


KILLED = (
    (Bin.PRODUCTIVE, 1),
    (Bin.RE_DONE, 1),
    (Bin.STALLED, 1),
    (Bin.RECOVERING, None),
    (Bin.RECOVERING, 2),
    (Bin.PRODUCTIVE, 2),
    (Bin.RE_DONE, 2),
)


def numbers(found: tuple[Stretch, ...]) -> list[int | None]:
    return [each.chaos for each in found]


def test_losses_until_training_continues_follow_from_the_fault() -> None:
    found = mark_stretches(stretches(*KILLED), [an_injection(7)])
    assert numbers(found) == [None, 7, 7, 7, 7, None, None]
    assert chaos_us(found) == 8_000_000
    assert chaos_us(mark_stretches(stretches(*KILLED), [])) == 0


def test_a_loss_without_a_generation_belongs_to_the_one_before() -> None:
    life = stretches((Bin.PRODUCTIVE, 1), (Bin.RECOVERING, None), (Bin.PRODUCTIVE, 2), (Bin.RECOVERING, None))
    assert numbers(mark_stretches(life, [an_injection(7)])) == [None, 7, None, None]
    assert numbers(mark_stretches(life, [an_injection(8, generation=2)])) == [None, None, None, 8]


def test_a_fault_during_a_recovery_is_marked_from_there() -> None:
    found = mark_stretches(stretches(*KILLED), [an_injection(9, generation=2)])
    assert numbers(found) == [None, None, None, None, 9, None, 9]


def test_losses_of_another_attempt_are_not_marked() -> None:
    assert set(numbers(mark_stretches(stretches(*KILLED, attempt=2), [an_injection()]))) == {None}
    assert set(numbers(mark_stretches(stretches(*KILLED, attempt=None), [an_injection()]))) == {None}
    assert set(numbers(mark_stretches(stretches(*KILLED), [an_injection(fault=Fault.SLOW)]))) == {None}
    first = stretches((Bin.RECOVERING, None), attempt=None)
    assert numbers(mark_stretches(first, [an_injection()])) == [None]
