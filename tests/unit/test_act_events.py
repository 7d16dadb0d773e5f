"""The events that record what the supervisor did."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.event import EventKind
from orchestrator.domain.job.job import JobState
from orchestrator.domain.policy.decision import Action, Decision, Finish, NoteRunning, Stop
from orchestrator.supervisor import act_events
from tests.unit.situations import NOW, a_job, a_situation, ago, an_attempt
from trainer.contract.failure import Failure, FailureKind, render_failure

ERROR = Failure(kind=FailureKind.APPLICATION, message="KeyError: 7", traceback="Traceback\nKeyError: 7")
FAILED = an_attempt(AttemptState.FAILED, failure=ERROR, ended_at=ago(1))


def a_decision(action: Action, sentence: str = "for a reason") -> Decision:
    return replace(Decision(action=action, sentence=sentence), rule="a_rule")


def test_a_failed_job_shows_its_last_failure() -> None:
    job = a_job(JobState.FAILED)
    event = act_events.finished(a_situation(job, FAILED), job, a_decision(Finish(JobState.FAILED)))
    assert event.evidence == {
        "state": "FAILED",
        "rule": "a_rule",
        "rung": "stop",
        "failure": render_failure(ERROR),
    }


@pytest.mark.parametrize(
    ("state", "attempt"),
    [
        (JobState.CANCELLED, FAILED),
        (JobState.QUEUED, FAILED),
        (JobState.FAILED, None),
        (JobState.FAILED, an_attempt(AttemptState.CANCELLED)),
    ],
)
def test_other_ends_show_no_failure(state: JobState, attempt: object) -> None:
    job = a_job(state)
    s = a_situation(job, attempt)  # type: ignore[arg-type]
    event = act_events.finished(s, job, a_decision(Finish(state)))
    assert (event.kind, event.evidence) == (EventKind.JOB_STATE, {"state": state.value, "rule": "a_rule"})


def test_only_a_stop_that_makes_room_adds_a_second_event() -> None:
    def kinds(action: Action) -> list[str]:
        return [event.kind for event in act_events.stopping(an_attempt(), a_decision(action), NOW)]

    assert kinds(Stop(force=False, grows=True)) == [EventKind.ATTEMPT_STATE, EventKind.GREW_BACK]
    assert kinds(Stop(force=False)) == [EventKind.ATTEMPT_STATE]
    assert kinds(Finish(JobState.CANCELLED)) == [EventKind.ATTEMPT_STATE]


def test_a_stop_gives_its_reason_once() -> None:
    (event,) = act_events.stopping(an_attempt(), a_decision(Stop(force=False), "stopping: cancelled by its owner"), NOW)
    assert event.sentence == "attempt 1 is asked to end: cancelled by its owner"


def test_a_recovery_has_its_seconds_and_a_first_start_is_no_recovery() -> None:
    decision = a_decision(NoteRunning(formed=True))
    assert act_events.recovered(a_job(), an_attempt(), decision, NOW) == []
    (event,) = act_events.recovered(a_job(recovering_since=ago(7.25)), an_attempt(), decision, NOW)
    assert event.kind == EventKind.RECOVERED
    assert event.evidence == {"rung": "new-attempt", "seconds": 7.25, "rule": "a_rule"}


@pytest.mark.parametrize(
    ("failure", "cost", "kept_step", "words"),
    [
        (ERROR, {"application": 1}, None, "attempt 1 ended FAILED"),
        (ERROR, {"application": 1}, 40, "attempt 1 ended FAILED; a snapshot keeps its steps up to 40"),
        (ERROR, {}, 40, "attempt 1 ended FAILED; a snapshot keeps its steps up to 40, so it costs no budget"),
        (None, {}, 40, "attempt 1 ended FAILED; a snapshot keeps its steps up to 40"),
    ],
)
def test_an_end_says_what_is_kept_and_what_it_costs(
    failure: Failure | None, cost: dict[str, int], kept_step: int | None, words: str
) -> None:
    attempt = an_attempt(AttemptState.FAILED, failure=failure, ended_at=NOW)
    event = act_events.ended(
        a_situation(a_job(), attempt), attempt, a_decision(Finish(JobState.FAILED)), cost, kept_step
    )
    assert (event.sentence, event.evidence["cost"], event.evidence.get("kept_step")) == (words, cost, kept_step)
