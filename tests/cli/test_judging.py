"""When a drill's job was struck, from what its events tell."""

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


def test_the_first_word_of_the_fault_is_when_it_struck_and_the_farthest_step_what_it_cost() -> None:
    failed = [an_event("worker.failed", 5, step=35), an_event("worker.failed", 6, step=36)]
    later = an_event("worker.failed", 9, generation=2, step=50)
    assert find_strike([*failed, later], Fault.KILL, at_step=35) == Strike(at=at(5), attempt=1, generation=1, step=36)
    told = an_event("chaos.injected", 2, fault="hang")
    assert find_strike([*failed, told], Fault.HANG, at_step=35) == Strike(at=at(2), attempt=1, generation=1, step=36)
    assert find_strike([told], Fault.PREEMPT, at_step=35) == Strike(at=at(2), attempt=1, generation=1, step=35)


def test_damage_to_a_snapshot_strikes_with_the_kill_that_shows_it() -> None:
    events = [an_event("chaos.injected", 2, fault="corrupt-snapshot"), an_event("chaos.injected", 4, fault="kill")]
    strike = find_strike(events, Fault.CORRUPT_SNAPSHOT, at_step=35)
    assert strike is not None
    assert strike.at == at(4)


def test_a_job_that_tells_of_nothing_was_not_struck() -> None:
    assert find_strike([], Fault.KILL, at_step=35) is None
    assert find_strike([an_event("restored", 3)], Fault.KILL, at_step=35) is None
