"""Requests to a job in each state: accepted, refused, or already requested."""

from __future__ import annotations

import pytest

from orchestrator.domain.errors import Conflict
from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.event import EventKind
from orchestrator.domain.job.job import Desired, JobState
from orchestrator.domain.job.job_summary import summarize
from orchestrator.domain.job.requests import (
    JobRequest,
    pending_requests,
    request_cancel,
    request_resume,
    request_snapshot,
    request_suspend,
)
from tests.unit.situations import a_job, a_spec, an_attempt

ENDED = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)
VERBS = {
    "suspend": request_suspend,
    "resume": request_resume,
    "take a snapshot of": lambda job: request_snapshot(job, 0),
}


def wanted(request: JobRequest | None) -> tuple[EventKind, Desired]:
    assert request is not None
    return request.kind, request.desired


def test_a_cancel_ends_a_suspension_and_is_not_repeated() -> None:
    kind, desired = wanted(request_cancel(a_job(desired=Desired(suspended=True))))
    assert (kind, desired) == (EventKind.CANCEL_REQUESTED, Desired(cancelled=True))
    assert request_cancel(a_job(desired=desired)) is None
    assert request_cancel(a_job(JobState.CANCELLED)) is None


@pytest.mark.parametrize("state", [JobState.SUCCEEDED, JobState.FAILED])
def test_a_job_that_succeeded_or_failed_cannot_be_cancelled(state: JobState) -> None:
    with pytest.raises(Conflict, match=f"has ended {state} already"):
        request_cancel(a_job(state))


@pytest.mark.parametrize("state", [*ENDED, JobState.RUNNING])
def test_a_cancel_withdraws_a_retry_that_has_not_started(state: JobState) -> None:
    retried = a_job(state, desired=Desired(retry_number=3, restore_from="step-00000001-a1-g1"), retries_done=2)
    request = request_cancel(retried)
    assert wanted(request) == (EventKind.CANCEL_REQUESTED, Desired(cancelled=True, retry_number=2))
    assert request is not None
    assert request.sentence == "the retry was withdrawn before it started"


def test_a_retry_of_a_cancelled_job_can_be_withdrawn() -> None:
    retried = a_job(JobState.CANCELLED, desired=Desired(cancelled=True, retry_number=1))
    assert wanted(request_cancel(retried))[1] == Desired(cancelled=True)


def test_suspend_and_resume_are_not_repeated() -> None:
    kind, suspended = wanted(request_suspend(a_job()))
    assert (kind, suspended) == (EventKind.SUSPEND_REQUESTED, Desired(suspended=True))
    assert request_suspend(a_job(desired=suspended)) is None
    kind, resumed = wanted(request_resume(a_job(desired=suspended)))
    assert (kind, resumed) == (EventKind.RESUME_REQUESTED, Desired())
    assert request_resume(a_job(desired=resumed)) is None


def test_a_pending_snapshot_is_not_requested_again() -> None:
    kind, desired = wanted(request_snapshot(a_job(desired=Desired(snapshot_number=4)), 4))
    assert (kind, desired) == (EventKind.SNAPSHOT_REQUESTED, Desired(snapshot_number=5))
    assert request_snapshot(a_job(desired=desired), 4) is None
    assert wanted(request_snapshot(a_job(desired=desired), 5))[1].snapshot_number == 6


def test_a_snapshot_needs_a_running_attempt() -> None:
    with pytest.raises(Conflict, match="is QUEUED: no attempt is running"):
        request_snapshot(a_job(JobState.QUEUED), None)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("state", ENDED)
def test_an_ended_job_accepts_no_request(state: JobState, verb: str) -> None:
    with pytest.raises(Conflict, match=f"has ended {state}; there is nothing to {verb}"):
        VERBS[verb](a_job(state))


@pytest.mark.parametrize("verb", VERBS)
def test_a_job_that_is_being_cancelled_accepts_no_request(verb: str) -> None:
    with pytest.raises(Conflict, match=f"is being cancelled; it is too late to {verb} it"):
        VERBS[verb](a_job(desired=Desired(cancelled=True)))


def test_a_request_is_pending_until_it_is_carried_out() -> None:
    everything = Desired(cancelled=True, suspended=True, retry_number=1, snapshot_number=1)
    scaled = a_job(desired=everything, spec=a_spec(topology={"nodes": "2"}))
    assert pending_requests(summarize(scaled, an_attempt())) == ["cancel", "suspend", "retry", "snapshot", "scale"]
    assert pending_requests(summarize(scaled)) == ["cancel", "suspend", "retry"]
    assert pending_requests(summarize(scaled, an_attempt(AttemptState.LOST))) == ["cancel", "suspend", "retry"]
    assert pending_requests(summarize(a_job(JobState.SUSPENDED, desired=Desired(suspended=True)))) == []
    assert pending_requests(summarize(a_job(JobState.SUSPENDED))) == ["resume"]
    assert pending_requests(summarize(a_job(JobState.CANCELLED, desired=Desired(cancelled=True, suspended=True)))) == []
