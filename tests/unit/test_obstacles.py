"""What happens next to a job that waits."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import pytest

from orchestrator.backends.slurm.listing import SlurmJob
from orchestrator.backends.slurm.states import REASONS, explain_wait
from orchestrator.domain.explanation.obstacles import tell_next
from orchestrator.domain.job.attempt import Attempt, AttemptState
from orchestrator.domain.job.job import JobState
from orchestrator.domain.queueing.admission import Limits, Quota, admit, claimant_of
from tests.unit.situations import a_job, a_spec, an_attempt

DOES_NOTHING = ("Nothing to do.", "The cluster starts the job once it has room.")
OF_THE_OWNER = re.compile(r"cancel (it|this job)|scale it|release it|change [a-z]+|raise the limit|ask its")


@pytest.mark.parametrize(
    ("state", "next_step"),
    [
        (AttemptState.PENDING, "The cluster starts the job once it has room."),
        (AttemptState.SUBMITTED, "Nothing to do. The job starts by itself."),
        (None, "Nothing to do. The job starts by itself."),
    ],
)
def test_a_job_without_an_obstacle_waits_for_the_cluster_only_if_it_was_submitted(
    state: AttemptState | None, next_step: str
) -> None:
    attempt = None if state is None else an_attempt(state=state)
    assert tell_next(a_job(reason=""), attempt).startswith(next_step)


def reasons() -> Iterator[tuple[str, Attempt | None]]:
    """Yield what the queue and Slurm say of jobs that wait."""
    too_large = itertools.product(
        (Limits(slots=1), Limits(quotas={"default": Quota(max_devices=1)})),
        ({"workers_per_node": 3}, {"nodes": "2", "workers_per_node": 1}),
    )
    for limits, topology in too_large:
        job = a_job(JobState.QUEUED, spec=a_spec(topology=topology))
        (verdict,) = admit([claimant_of(job, None)], limits, dependencies={}).values()
        yield verdict.sentence, None
    for states in ({}, {"other": JobState.FAILED}):
        job = a_job(JobState.QUEUED, spec=a_spec(after=["other"]))
        (verdict,) = admit([claimant_of(job, None)], Limits(), dependencies=states).values()
        yield verdict.sentence, None
    for word, _ in REASONS:
        yield explain_wait(SlurmJob(id=7, name="a", state="PENDING", reason=word)), an_attempt(AttemptState.PENDING)


ASKING = [each for each in reasons() if OF_THE_OWNER.search(each[0])]


def test_every_sentence_that_asks_something_of_the_owner_is_recognized() -> None:
    assert len(ASKING) == 16, [reason for reason, _ in ASKING]


@pytest.mark.parametrize(("reason", "attempt"), ASKING)
def test_a_reason_that_asks_something_of_the_owner_is_not_followed_by_nothing_to_do(
    reason: str, attempt: Attempt | None
) -> None:
    state = JobState.QUEUED if attempt is None else JobState.STARTING
    assert not tell_next(a_job(state, reason=reason), attempt).startswith(DOES_NOTHING), reason


WAITING = an_attempt(AttemptState.PENDING)


@pytest.mark.parametrize(
    ("reason", "attempt", "next_step"),
    [
        ("waits: torchx (lsf) has not answered for 10 s", WAITING, "orchestrator doctor --cluster "),
        ("waits for job a-1 to succeed; it is SUSPENDED", None, "is suspended"),
        ("waits for job a-1 to succeed; it is QUEUED", None, "Run `orchestrator why` on that job"),
        ("waits for job a-1, which no longer exists; cancel this job", None, "The job can never start."),
        ("stopping: cancelled by its owner", WAITING, "Nothing to do. The attempt ends."),
        ("stopping: cancelled; cannot continue now: cannot reach slurmrestd", WAITING, "The service tries again"),
        ("stopping: cancelled; cannot continue now: Slurm cannot be observed: x", WAITING, "starts and stops nothing"),
        ("waits: Slurm cannot be observed: no answer within 5 s", WAITING, "orchestrator doctor --cluster "),
        ("waits: Slurm cannot be observed: no answer within 5 s", None, "orchestrator doctor --cluster "),
        ("cannot continue now: cannot reach slurmrestd", WAITING, "The service tries again by itself."),
        ("waits: project research runs 2 jobs; its limit is 2", None, "Nothing to do. The job starts by itself."),
        ("waits in Slurm's queue as job 7: Resources (no nodes are free for it)", WAITING, "once it has room"),
    ],
)
def test_the_next_step_fits_the_reason(reason: str, attempt: Attempt | None, next_step: str) -> None:
    state = JobState.QUEUED if attempt is None else JobState.STARTING
    assert next_step in tell_next(a_job(state, reason=reason), attempt)


@pytest.mark.parametrize(
    ("remedy", "next_step"),
    [
        ("scale or cancel it", "The job can never start with so many nodes"),
        ("cancel it", "One node of the job already exceeds"),
    ],
)
def test_a_job_between_attempts_that_is_too_large_is_told_to_scale_or_cancel(remedy: str, next_step: str) -> None:
    job = a_job(JobState.RECOVERING, reason=f"needs 4 slots, but the cluster has 2; {remedy}")
    assert tell_next(job, an_attempt(AttemptState.LOST)).startswith(next_step)
