"""`why` of a job that cannot start: the message of Kubernetes, and what happens next."""

from __future__ import annotations

import pytest

from orchestrator.domain.accounting.chronicle import Chronicle, read_life
from orchestrator.domain.accounting.goodput import Ledger
from orchestrator.domain.explanation.why import Why, explain
from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.job import JobState
from tests.builders import NOW, make_attempt, make_job, make_spec
from tests.kubernetes import records
from tests.kubernetes.records import Watched, look

CLAIM = 'pod train-0 has no node (Unschedulable: 0/2 nodes are available: persistentvolumeclaim "runs" not found.)'
CONFIG = 'its container cannot be configured (pod train-0, CreateContainerConfigError: secret "hub-token" not found)'
QUOTA = (
    'replica 0 has no pod yet (FailedCreate: Error creating: pods "train-0-x" is forbidden: exceeded quota: team, '
    "requested: cpu=4, used: cpu=8, limited: cpu=8)"
)
REFUSED = (
    'replica 0 has no pod yet (FailedCreate: Error creating: pods "train-0-x" is forbidden: violates PodSecurity '
    '"restricted:latest": allowPrivilegeEscalation != false)'
)
RIGHT = (
    "waits: the service has no right to do this in the cluster: "
    + records.answer("forbidden: a service account without a role, create")["body"]["message"]
)
TAINT = "pod x has no node (Unschedulable: 0/2 nodes are available: 2 node(s) had untolerated taint {gpu: true})"
MIXED = TAINT.replace("2 node(s) had", "1 Insufficient cpu, 1 node(s) had")
AWAY = "waits: the Kubernetes API server has not answered since 14:02 UTC: [Errno 111] Connection refused"


def recorded(stream: str, t: float) -> str:
    watched = Watched()
    watched.feed(records.until(records.lines(stream), t))
    return look(watched, stream, t).evidence


def why(reason: str, state: JobState = JobState.STARTING, attempt: AttemptState = AttemptState.PENDING) -> Why:
    job = make_job("train-1", state=state, reason=reason, spec=make_spec(cluster="k8s"))
    chronicle = Chronicle(job=job, attempts=[make_attempt("train-1", state=attempt)], events=[], kept={}, heard_at={})
    return explain(chronicle, read_life(chronicle), Ledger(), NOW)


@pytest.mark.parametrize(
    ("reason", "then"),
    [
        (recorded("07-unschedulable-gpu", 5.0), "The scheduler places the job once enough of it is free"),
        (recorded("06-image-registry-unreachable", 5.0), "`orchestrator retry train-1 --set run.image=...`"),
        (recorded("06-image-registry-unreachable", 20.0), "until the launch budget is spent"),
        (CLAIM, "once the claim exists and is bound"),
        (CONFIG, "Then the job fails with this message"),
        (QUOTA, "once other jobs in the namespace have ended"),
        (REFUSED, "Then the job fails with this message"),
        (RIGHT, "the missing rights, which `orchestrator doctor --cluster k8s` lists"),
        (TAINT, "no node may take the job now"),
        (MIXED, "The scheduler places the job once enough of it is free"),
        (AWAY, "starts and stops nothing on the cluster until it answers"),
    ],
)
def test_the_verdict_is_the_cluster_s_message_with_what_happens_next(reason: str, then: str) -> None:
    found = why(reason)
    assert reason[1:] in found.verdict
    assert then in found.next
    assert not found.next.startswith("Nothing to do. The job starts by itself")


def test_a_queued_job_shows_the_same_while_its_cluster_does_not_answer() -> None:
    assert why(AWAY, JobState.QUEUED).next == why(AWAY).next


def test_without_a_known_obstacle_the_next_step_is_named() -> None:
    assert why("Slurm job 7 waits (Priority)").next.startswith("The cluster starts the job once it has room")
    assert why("starting", attempt=AttemptState.SUBMITTED).next == "Nothing to do. The job starts by itself."
    assert (
        why("pauses", JobState.RECOVERING, AttemptState.LOST).next
        == "Nothing to do. The next attempt starts by itself."
    )


@pytest.mark.parametrize(
    "words",
    [
        "ValueError: the config is invalid: lr",
        "RuntimeError: Insufficient memory",
        "KeyError: 'Unschedulable'",
        "AssertionError: it can never start",
    ],
)
def test_a_program_s_error_is_not_taken_for_an_obstacle_of_the_cluster(words: str) -> None:
    for reason in (words, f"{words}; attempt 2 starts after a pause of 10 s"):
        assert (
            why(reason, JobState.RECOVERING, AttemptState.FAILED).next
            == "Nothing to do. The next attempt starts by itself."
        )
    assert why(AWAY, JobState.RECOVERING, AttemptState.FAILED).next == why(AWAY).next
