"""When and at which step a drill's fault hit, from the job's events."""

from __future__ import annotations

from orchestrator.cli.judging import find_strike
from orchestrator.domain.specs.trials import Strike
from orchestrator.wire.job_views import EventView
from tests.builders import at
from trainer.contract.chaos import Fault


def an_event(kind: str, second: float, *, generation: int = 1, **evidence: object) -> EventView:
    return EventView(
        id=1, job_id="j", at=at(second), kind=kind, sentence="", attempt=1, generation=generation, evidence=evidence
    )


def test_a_strike_has_the_first_time_and_the_farthest_step() -> None:
    failed = [an_event("worker.failed", 5, step=35), an_event("worker.failed", 6, step=36)]
    later = an_event("worker.failed", 9, generation=2, step=50)
    assert find_strike([*failed, later], Fault.KILL, at_step=35) == Strike(at=at(5), attempt=1, generation=1, step=36)
    told = an_event("chaos.injected", 2, fault="hang")
    assert find_strike([*failed, told], Fault.HANG, at_step=35) == Strike(at=at(2), attempt=1, generation=1, step=36)
    assert find_strike([told], Fault.PREEMPT, at_step=35) == Strike(at=at(2), attempt=1, generation=1, step=35)


def test_a_corrupted_snapshot_strikes_with_the_following_kill() -> None:
    events = [an_event("chaos.injected", 2, fault="corrupt-snapshot"), an_event("chaos.injected", 4, fault="kill")]
    strike = find_strike(events, Fault.CORRUPT_SNAPSHOT, at_step=35)
    assert strike is not None
    assert strike.at == at(4)


def test_a_job_without_events_has_no_strike() -> None:
    assert find_strike([], Fault.KILL, at_step=35) is None
    assert find_strike([an_event("restored", 3)], Fault.KILL, at_step=35) is None
