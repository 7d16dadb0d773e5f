"""What an owner may wish of a job in which state, what is refused, and what is wished already."""

from __future__ import annotations

import pytest

from orchestrator.domain.errors import Conflict
from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.event import EventKind
from orchestrator.domain.job.job import Desired, JobState
from orchestrator.domain.job.requests import (
    Wish,
    pending_wishes,
    wish_cancel,
    wish_resume,
    wish_snapshot,
    wish_suspend,
)
from tests.unit.situations import a_job, a_spec, an_attempt

ENDED = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)
VERBS = {
    "suspend": wish_suspend,
    "resume": wish_resume,
    "take a snapshot of": lambda job: wish_snapshot(job, 0),
}


def wanted(wish: Wish | None) -> tuple[EventKind, Desired]:
    assert wish is not None
    return wish.kind, wish.desired


def test_to_cancel_ends_a_suspension_and_is_wished_once() -> None:
    kind, desired = wanted(wish_cancel(a_job(desired=Desired(suspended=True))))
    assert (kind, desired) == (EventKind.CANCEL_REQUESTED, Desired(cancelled=True))
    assert wish_cancel(a_job(desired=desired)) is None
    assert wish_cancel(a_job(JobState.CANCELLED)) is None


@pytest.mark.parametrize("state", [JobState.SUCCEEDED, JobState.FAILED])
def test_what_ended_otherwise_cannot_be_cancelled(state: JobState) -> None:
    with pytest.raises(Conflict, match=f"has ended {state} already"):
        wish_cancel(a_job(state))


@pytest.mark.parametrize("state", [*ENDED, JobState.RUNNING])
def test_to_cancel_withdraws_a_retry_that_has_not_begun(state: JobState) -> None:
    retried = a_job(state, desired=Desired(retry_number=3, restore_from="step-00000001-a1-g1"), retries_done=2)
    wish = wish_cancel(retried)
    assert wanted(wish) == (EventKind.CANCEL_REQUESTED, Desired(cancelled=True, retry_number=2))
    assert wish is not None
    assert wish.sentence == "the retry was withdrawn before it began"


def test_a_retry_that_was_wished_of_a_cancelled_job_can_be_withdrawn_again() -> None:
    retried = a_job(JobState.CANCELLED, desired=Desired(cancelled=True, retry_number=1))
    assert wanted(wish_cancel(retried))[1] == Desired(cancelled=True)


def test_to_suspend_is_wished_once_and_taken_back_once() -> None:
    kind, suspended = wanted(wish_suspend(a_job()))
    assert (kind, suspended) == (EventKind.SUSPEND_REQUESTED, Desired(suspended=True))
    assert wish_suspend(a_job(desired=suspended)) is None
    kind, resumed = wanted(wish_resume(a_job(desired=suspended)))
    assert (kind, resumed) == (EventKind.RESUME_REQUESTED, Desired())
    assert wish_resume(a_job(desired=resumed)) is None


def test_two_wishes_for_a_snapshot_are_one_until_the_agents_have_heard_of_it() -> None:
    kind, desired = wanted(wish_snapshot(a_job(desired=Desired(snapshot_number=4)), 4))
    assert (kind, desired) == (EventKind.SNAPSHOT_REQUESTED, Desired(snapshot_number=5))
    assert wish_snapshot(a_job(desired=desired), 4) is None
    assert wanted(wish_snapshot(a_job(desired=desired), 5))[1].snapshot_number == 6


def test_of_what_does_not_run_no_snapshot_can_be_taken() -> None:
    with pytest.raises(Conflict, match="is QUEUED: nothing of it runs"):
        wish_snapshot(a_job(JobState.QUEUED), None)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("state", ENDED)
def test_of_an_ended_job_nothing_can_be_wished(state: JobState, verb: str) -> None:
    with pytest.raises(Conflict, match=f"has ended {state}; there is nothing to {verb}"):
        VERBS[verb](a_job(state))


@pytest.mark.parametrize("verb", VERBS)
def test_of_a_job_that_is_being_cancelled_nothing_can_be_wished(verb: str) -> None:
    with pytest.raises(Conflict, match=f"is being cancelled; it is too late to {verb} it"):
        VERBS[verb](a_job(desired=Desired(cancelled=True)))


def test_a_wish_is_pending_until_it_is_carried_out() -> None:
    everything = Desired(cancelled=True, suspended=True, retry_number=1, snapshot_number=1)
    scaled = a_job(desired=everything, spec=a_spec(topology={"nodes": "2"}))
    assert pending_wishes(scaled, an_attempt()) == ["cancel", "suspend", "retry", "snapshot", "scale"]
    assert pending_wishes(scaled, None) == ["cancel", "suspend", "retry"]
    assert pending_wishes(scaled, an_attempt(AttemptState.LOST)) == ["cancel", "suspend", "retry"]
    assert pending_wishes(a_job(JobState.SUSPENDED, desired=Desired(suspended=True)), None) == []
    assert pending_wishes(a_job(JobState.SUSPENDED), None) == ["resume"]
    assert pending_wishes(a_job(JobState.CANCELLED, desired=Desired(cancelled=True, suspended=True)), None) == []
