"""The policy: each case is a situation and the decision for it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from orchestrator.domain.job.attempt import Attempt, AttemptState
from orchestrator.domain.job.job import Desired, Job, JobState
from orchestrator.domain.observation.observation import Liveness, Presence
from orchestrator.domain.policy.decide import POLICY, decide
from orchestrator.domain.policy.decision import (
    Action,
    BeginRetry,
    EndAttempt,
    Finish,
    NoteRunning,
    Start,
    Stop,
    Submit,
    Wait,
)
from orchestrator.domain.policy.situation import RETRY_REQUESTED, Situation
from orchestrator.domain.queueing.admission import Admission
from tests.unit.situations import (
    NOW,
    a_job,
    a_replica,
    a_situation,
    a_spec,
    ago,
    an_attempt,
    an_exit,
    seen,
)
from trainer.contract.exit_record import ExitRecord, Outcome
from trainer.contract.failure import Failure, FailureKind

ALIVE, DEAD = a_replica(), a_replica(Liveness.DEAD)
ORPHANED = a_replica(Liveness.DEAD, leftovers=True)
CANCELLED = a_job(desired=Desired(cancelled=True))
RETRY = Desired(retry_number=1)
TWO_NODES = a_spec(topology={"nodes": "2"})
ELASTIC = a_spec(topology={"nodes": "1:2"})


def lost_replica(**fields: Any) -> Situation:
    """Two nodes, of which one is gone."""
    observation = seen(Presence.RUNNING, DEAD, a_replica(number=1), **fields)
    return a_situation(a_job(spec=TWO_NODES), an_attempt(nodes="2"), observation)


def gone(exits: dict[int, ExitRecord], *, job: Job | None = None, **attempt: Any) -> Situation:
    """An attempt of one node that is gone."""
    return a_situation(job or a_job(), an_attempt(**attempt), seen(Presence.GONE, DEAD, exits=exits))


def alive(job: Job | None = None, attempt: Attempt | None = None, **fields: Any) -> Situation:
    return a_situation(job or a_job(), attempt or an_attempt(), seen(Presence.RUNNING, ALIVE, **fields))


def absent(attempt: Attempt, **job: Any) -> Situation:
    return a_situation(a_job(JobState.STARTING, **job), attempt, seen(Presence.ABSENT))


def recovering(kind: FailureKind, **fields: Any) -> Situation:
    repeated = fields.pop("repeated", False)
    failure = Failure(kind=kind, message="it broke", repeated=repeated)
    ended = an_attempt(AttemptState.FAILED, failure=failure, ended_at=ago(1))
    return a_situation(a_job(JobState.RECOVERING, **fields), ended, admission=FREE)


SUCCEEDED = EndAttempt(AttemptState.SUCCEEDED, JobState.SUCCEEDED)
DONE = {0: an_exit(Outcome.SUCCEEDED)}
FAILED = an_exit(Outcome.FAILED, FailureKind.APPLICATION)
HANG = Failure(kind=FailureKind.HANG, message="no progress")
LOST = Failure(kind=FailureKind.NODE, message="replica 0 is dead")
NEVER_UP = Failure(kind=FailureKind.NODE, message="replica 1 never came up")
FREE = Admission(True, "free", 1)
UNFORMED = {"formed_at": None, "progress_at": None}
HEARTBEATS = a_job(spec=a_spec(supervise={"heartbeat_timeout_s": 30}))
STARTS_IN_60_S = a_job(JobState.STARTING, spec=a_spec(supervise={"startup_timeout_s": 60}))
STOPPING = an_attempt(AttemptState.INTENDED, stopping_since=ago(1), failure=NEVER_UP)

# The situation, and the action or its class.
CASES: dict[str, tuple[Situation, Action | type[Action]]] = {
    "success recorded by every replica ends the job": (gone(DONE), SUCCEEDED),
    "success wins over a request to cancel": (gone(DONE, job=CANCELLED), SUCCEEDED),
    "success of one replica of two is not the end": (lost_replica(exits=DONE), Wait),
    "a patched topology is for the next attempt": (
        gone(DONE, job=a_job(spec=TWO_NODES, desired=RETRY), stopping_since=ago(1)),
        SUCCEEDED,
    ),
    "the record of a replica that does not exist does not count": (alive(exits={7: an_exit(Outcome.SUCCEEDED)}), Wait),
    "a record of success beside a living agent is not yet the end": (alive(exits=DONE), Wait),
    "a refused double start does not end the first": (alive(exits={0: an_exit(Outcome.REFUSED)}), Wait),
    "a refused double start is not the record of the first": (
        gone({0: an_exit(Outcome.REFUSED)}),
        EndAttempt(AttemptState.LOST, JobState.RECOVERING, LOST),
    ),
    "a recorded failure ends the attempt with its cause": (
        gone({0: FAILED}),
        EndAttempt(AttemptState.FAILED, JobState.RECOVERING, FAILED.failure),
    ),
    "an agent gone without a record is a lost attempt": (
        gone({}),
        EndAttempt(AttemptState.LOST, JobState.RECOVERING, LOST),
    ),
    "an attempt that was stopped for a hang ends as a hang": (
        gone({0: an_exit(Outcome.CANCELLED)}, stopping_since=ago(9), failure=HANG),
        EndAttempt(AttemptState.FAILED, JobState.RECOVERING, HANG),
    ),
    "a cancelled attempt that is gone cancels the job": (
        gone({}, job=CANCELLED, stopping_since=ago(2)),
        EndAttempt(AttemptState.CANCELLED, JobState.CANCELLED),
    ),
    "orphaned workers are killed before the attempt counts as lost": (
        a_situation(a_job(), an_attempt(), seen(Presence.GONE, ORPHANED)),
        Stop(force=True, failure=LOST),
    ),
    "the other replica of a dead one is asked to end first": (lost_replica(), Stop(force=False, failure=LOST)),
    "within an elastic range the agents handle a dead replica": (
        a_situation(a_job(spec=ELASTIC), an_attempt(nodes="1:2"), seen(Presence.RUNNING, DEAD, a_replica(number=1))),
        Wait,
    ),
    "a submitted attempt that the cluster does not have failed to launch": (
        absent(an_attempt(AttemptState.SUBMITTED)),
        EndAttempt,
    ),
    "an attempt that was never submitted is submitted": (absent(an_attempt(AttemptState.INTENDED)), Submit),
    "a cancelled attempt that was never submitted ends at once": (
        absent(an_attempt(AttemptState.INTENDED), desired=Desired(cancelled=True)),
        EndAttempt(AttemptState.CANCELLED, JobState.CANCELLED),
    ),
    "an attempt that was stopped before its agents started ends": (
        absent(STOPPING),
        EndAttempt(AttemptState.LOST, JobState.RECOVERING, NEVER_UP),
    ),
    "a cancelled attempt is asked to end": (alive(CANCELLED), Stop(force=False)),
    "a cancelled attempt is killed after the stop timeout": (
        alive(CANCELLED, an_attempt(stopping_since=ago(16))),
        Stop(force=True),
    ),
    "a stop continues": (
        alive(attempt=an_attempt(stopping_since=ago(16), failure=HANG)),
        Stop(force=True, failure=HANG),
    ),
    "a cancelled job in the queue ends without an attempt": (
        a_situation(a_job(JobState.QUEUED, desired=Desired(cancelled=True)), admission=FREE),
        Finish(JobState.CANCELLED),
    ),
    "a retry stops the running attempt first": (alive(a_job(desired=RETRY)), Stop(force=False)),
    "silence within the limit is no hang": (alive(HEARTBEATS, progress_at=ago(39)), Wait),
    "a silent attempt is stopped": (alive(HEARTBEATS, progress_at=ago(41)), Stop),
    "workers have time to form a group": (alive(STARTS_IN_60_S, an_attempt(started_at=ago(59)), **UNFORMED), Wait),
    "workers that form no group in time are stopped": (
        alive(STARTS_IN_60_S, an_attempt(started_at=ago(61)), **UNFORMED),
        Stop,
    ),
    "a living agent is recorded": (
        alive(a_job(JobState.STARTING), an_attempt(AttemptState.SUBMITTED, started_at=None), **UNFORMED),
        NoteRunning(formed=False),
    ),
    "a formed group is recorded": (alive(a_job(JobState.STARTING)), NoteRunning(formed=True)),
    "a formed group is recorded once": (alive(), Wait),
    "a job recovers while its budget lasts": (recovering(FailureKind.APPLICATION, spent={"application": 3}), Start(1)),
    "a job fails once its budget is spent": (
        recovering(FailureKind.APPLICATION, spent={"application": 4}),
        Finish(JobState.FAILED),
    ),
    "a spent budget of another kind does not matter": (
        recovering(FailureKind.NODE, spent={"application": 99}),
        Start(1),
    ),
    "a preemption costs nothing": (recovering(FailureKind.PREEMPTED, spent={"preemption": 99}), Start(1)),
    "a failure that no attempt can fix ends the job": (recovering(FailureKind.LAUNCH), Finish(JobState.FAILED)),
    "the same storage error twice does not end the job": (recovering(FailureKind.STORAGE, repeated=True), Start(1)),
    "an admitted job starts": (a_situation(a_job(JobState.QUEUED), admission=FREE), Start(1)),
}


@pytest.mark.parametrize(("s", "expected"), CASES.values(), ids=CASES)
def test_each_situation_brings_its_action(s: Situation, expected: Action | type[Action]) -> None:
    action = decide(s).action
    assert isinstance(action, expected) if isinstance(expected, type) else action == expected


def test_an_elastic_attempt_succeeds_without_the_replica_that_it_lost() -> None:
    job = a_job(spec=ELASTIC)
    attempt = an_attempt(nodes="1:2")
    lost = seen(Presence.GONE, DEAD, a_replica(Liveness.DEAD, 1), exits=DONE)
    assert decide(a_situation(job, attempt, lost)).action == EndAttempt(AttemptState.SUCCEEDED, JobState.SUCCEEDED)
    seen_alive = seen(Presence.RUNNING, DEAD, a_replica(number=1), exits=DONE)
    assert isinstance(decide(a_situation(job, attempt, seen_alive)).action, Wait)


def test_processes_of_a_finished_attempt_are_ended_before_the_job() -> None:
    observation = seen(Presence.GONE, ORPHANED, exits=DONE)
    assert decide(a_situation(a_job(), an_attempt(), observation)).action == Stop(force=False)
    overdue = an_attempt(stopping_since=ago(16))
    assert decide(a_situation(a_job(), overdue, observation)).action == Stop(force=True)
    for ahead, force in ((1, False), (3600, True)):  # another service's clock, and one that was set back
        decision = decide(a_situation(a_job(), an_attempt(stopping_since=ago(-ahead)), observation))
        assert decision.action == Stop(force=force)


def test_a_replica_out_of_sight_delays_the_end_and_is_killed_after_the_stop_time_out() -> None:
    failed = {0: an_exit(Outcome.FAILED, FailureKind.APPLICATION)}
    observation = seen(Presence.UNKNOWN, DEAD, a_replica(Liveness.UNKNOWN, 1), exits=failed)
    job = a_job(spec=TWO_NODES)
    for stopping, force in ((None, False), (ago(14), False), (ago(16), True), (ago(9999), True)):
        attempt = an_attempt(nodes="2", stopping_since=stopping)
        assert decide(a_situation(job, attempt, observation)).action == Stop(force=force)


def test_of_two_failures_the_earlier_is_the_cause() -> None:
    first = an_exit(Outcome.FAILED, FailureKind.NUMERIC, at="2026-11-20T11:58:00Z")
    later = an_exit(Outcome.FAILED, FailureKind.STORAGE)
    observation = seen(Presence.GONE, DEAD, a_replica(Liveness.DEAD, 1), exits={0: later, 1: first})
    action = decide(a_situation(a_job(spec=TWO_NODES), an_attempt(nodes="2"), observation)).action
    assert action == EndAttempt(AttemptState.FAILED, JobState.RECOVERING, first.failure)


def test_an_agent_that_lost_its_peer_is_a_consequence_of_the_peers_loss() -> None:
    lost_store = an_exit(Outcome.FAILED, FailureKind.RENDEZVOUS)
    observation = seen(Presence.GONE, DEAD, a_replica(Liveness.DEAD, 1), exits={1: lost_store})
    action = decide(a_situation(a_job(spec=TWO_NODES), an_attempt(nodes="2"), observation)).action
    assert isinstance(action, EndAttempt)
    assert action.failure is not None
    assert (action.state, action.failure.kind) == (AttemptState.LOST, FailureKind.NODE)


@pytest.mark.parametrize("state", [AttemptState.INTENDED, AttemptState.SUBMITTED, AttemptState.RUNNING])
def test_an_attempt_that_cannot_be_seen_never_ends(state: AttemptState) -> None:
    observation = seen(Presence.UNKNOWN, a_replica(Liveness.UNKNOWN), formed_at=None, progress_at=None)
    assert isinstance(decide(a_situation(a_job(), an_attempt(state), observation)).action, Wait)


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.CANCELLED, JobState.SUCCEEDED])
def test_a_retry_brings_an_ended_job_back(state: JobState) -> None:
    ended = an_attempt(AttemptState.FAILED, ended_at=ago(5))
    decision = decide(a_situation(a_job(state, desired=RETRY), ended))
    assert decision.action == BeginRetry()
    assert decision.sentence != RETRY_REQUESTED, "the event of the request says that"


def test_a_preempted_attempt_ends_preempted() -> None:
    observation = seen(Presence.GONE, DEAD, exits={0: an_exit(Outcome.PREEMPTED)})
    action = decide(a_situation(a_job(), an_attempt(), observation)).action
    assert isinstance(action, EndAttempt)
    assert action.state is AttemptState.PREEMPTED


def test_an_attempt_that_outlives_its_limit_is_stopped() -> None:
    job = a_job(spec=a_spec(supervise={"max_runtime_s": 60}))
    action = decide(a_situation(job, an_attempt(started_at=ago(61)), seen(Presence.RUNNING, ALIVE))).action
    assert isinstance(action, Stop)
    assert action.failure is not None
    assert action.failure.kind is FailureKind.TIMEOUT


def test_the_same_error_twice_in_a_row_ends_the_job() -> None:
    decision = decide(recovering(FailureKind.APPLICATION, repeated=True))
    assert decision.action == Finish(JobState.FAILED)
    assert decision.sentence == "it broke; the same error occurred twice in a row"


def test_a_recovering_job_waits_for_its_back_off() -> None:
    later = NOW + timedelta(seconds=3)
    decision = decide(recovering(FailureKind.NODE, retry_at=later))
    assert isinstance(decision.action, Wait)
    assert decision.sentence == "it broke; attempt 2 starts after a pause of 4 s"
    assert decision.look_again_at == later


def test_a_queued_job_says_what_it_waits_for() -> None:
    waiting = decide(a_situation(a_job(JobState.QUEUED), admission=Admission(False, "waits for 2 of 2 slots")))
    assert (waiting.action, waiting.sentence) == (Wait(), "waits for 2 of 2 slots")


def test_every_decision_names_its_rule_and_every_rule_is_documented() -> None:
    assert decide(a_situation(a_job(JobState.QUEUED), admission=FREE)).rule == "start"
    assert all(rule.__doc__ for rule in POLICY)
