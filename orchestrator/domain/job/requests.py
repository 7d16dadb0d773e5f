"""The requests that an owner may make of a job, and when they are refused. Pure.

Each function returns what to write, or None if the same is requested already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from orchestrator.domain.errors import Conflict
from orchestrator.domain.job.event import EventKind
from orchestrator.domain.job.job import Desired, Job, JobState, RequestedChaos, RequestedStacks
from orchestrator.domain.job.job_summary import AttemptSummary, JobSummary
from orchestrator.domain.specs.spec import JobSpec
from trainer.contract.chaos import Chaos
from trainer.contract.launch import DesiredDocument, DesiredState


@dataclass(frozen=True, slots=True)
class JobRequest:
    """What to write for a request: what is desired from now on, and the event."""

    desired: Desired
    kind: EventKind
    sentence: str
    spec: JobSpec | None = None
    evidence: Mapping[str, object] = field(default_factory=dict)


def request_cancel(job: Job) -> JobRequest | None:
    retrying = job.retry_requested
    if (job.state is JobState.CANCELLED or job.desired.cancelled) and not retrying:
        return None
    if job.state.terminal and not retrying:
        raise Conflict(f"job {job.id} has ended {job.state} already; there is nothing to cancel")
    # Withdraws a retry that has not started. A retry that starts at this moment sees `cancelled`.
    number = job.retries_done if retrying else job.desired.retry_number
    desired = replace(job.desired, cancelled=True, suspended=False, retry_number=number, restore_from=None)
    sentence = "the retry was withdrawn before it started" if retrying else "its owner asked to cancel it"
    return JobRequest(desired, EventKind.CANCEL_REQUESTED, sentence)


def request_suspend(job: Job) -> JobRequest | None:
    require_going_on(job, "suspend")
    if job.desired.suspended:
        return None
    sentence = "its owner asked to suspend it"
    return JobRequest(replace(job.desired, suspended=True), EventKind.SUSPEND_REQUESTED, sentence)


def request_resume(job: Job) -> JobRequest | None:
    require_going_on(job, "resume")
    if not job.desired.suspended:
        return None
    sentence = "its owner asked to resume it"
    return JobRequest(replace(job.desired, suspended=False), EventKind.RESUME_REQUESTED, sentence)


def request_snapshot(job: Job, passed_on: int | None) -> JobRequest | None:
    require_going_on(job, "take a snapshot of")
    if passed_on is None:
        raise Conflict(f"job {job.id} is {job.state}: no attempt is running, so there is nothing to take a snapshot of")
    if job.desired.snapshot_number > passed_on:
        return None
    desired = replace(job.desired, snapshot_number=job.desired.snapshot_number + 1)
    return JobRequest(desired, EventKind.SNAPSHOT_REQUESTED, "its owner asked for a snapshot")


def desired_of_attempt(desired: Desired, attempt: int, *, stop: bool = False) -> DesiredDocument:
    """Return the requests of a job as the document for the agents of one attempt."""
    stacks, chaos = desired.stacks, desired.chaos
    mine = stacks if stacks is not None and stacks.attempt == attempt else None
    return DesiredDocument(
        state=DesiredState.STOP if stop else DesiredState.RUN,
        snapshot=desired.snapshot_number,
        number=desired.number,
        stacks=0 if mine is None else mine.number,
        stacks_rank=None if mine is None else mine.rank,
        chaos=None
        if chaos is None or chaos.attempt != attempt
        else Chaos(number=chaos.number, fault=chaos.fault, rank=chaos.rank, replica=chaos.replica),
    )


def pending_requests(job: JobSummary) -> list[str]:
    """Return the verbs of the requests that are not carried out yet."""
    desired = job.desired
    rests = job.state is JobState.SUSPENDED
    rows = (
        ("cancel", desired.cancelled and not job.state.terminal),
        ("suspend", desired.suspended and not job.state.terminal and not rests),
        ("resume", rests and not desired.suspended and not desired.cancelled),
        ("retry", desired.retry_number > job.retries_done),
        *_pending_of_attempt(job),
    )
    return [verb for verb, is_pending in rows if is_pending]


def _pending_of_attempt(job: JobSummary) -> Sequence[tuple[str, bool]]:
    """Return the requests that a live attempt carries out."""
    attempt, desired = job.attempt, job.desired
    if attempt is None or attempt.state.terminal:
        return ()
    return (
        ("snapshot", desired.snapshot_number > attempt.snapshots_sent),
        ("stacks", _is_pending(desired.stacks, attempt)),
        ("chaos", _is_pending(desired.chaos, attempt)),
        ("scale", attempt.asked != job.asked),
    )


def _is_pending(request: RequestedStacks | RequestedChaos | None, attempt: AttemptSummary) -> bool:
    return request is not None and request.attempt == attempt.number and request.number > attempt.errand_sent


def require_going_on(job: Job, verb: str) -> None:
    if job.state.terminal:
        raise Conflict(f"job {job.id} has ended {job.state}; there is nothing to {verb}")
    if job.desired.cancelled:
        raise Conflict(f"job {job.id} is being cancelled; it is too late to {verb} it")
