"""Guards of the policy that no other test would miss. Each was found by removing it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from orchestrator.domain.errors import InvalidTransition
from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.job import Desired, JobState
from orchestrator.domain.job.launch_plan import restarts_left
from orchestrator.domain.observation.observation import Liveness, Presence, Training
from orchestrator.domain.observation.watched import Watched, is_lost_peer
from orchestrator.domain.policy.budget import charge
from orchestrator.domain.policy.decide import decide
from orchestrator.domain.policy.decision import EndAttempt, Finish, MarkNodes, Start, Stop, Wait
from orchestrator.domain.policy.evidence import Source, permits_end
from orchestrator.domain.policy.situation import Situation
from orchestrator.domain.queueing.admission import Admission
from tests.unit.situations import NOW, a_job, a_replica, a_situation, a_spec, ago, an_attempt, an_exit, seen
from trainer.contract.exit_record import ExitRecord, Outcome
from trainer.contract.failure import Failure, FailureKind, is_taken_port, parse_failure, parse_pattern
from trainer.contract.fence import parse_term
from trainer.contract.restart_policy import Setback, repeats

ALIVE, DEAD = a_replica(), a_replica(Liveness.DEAD)
TWO = a_spec(topology={"nodes": "2"})
HANG = Failure(kind=FailureKind.HANG, message="silent")


# Ends


def test_an_attempt_that_vanishes_during_a_stop_ends_with_the_failure_that_it_was_stopped_for() -> None:
    s = a_situation(a_job(), an_attempt(stopping_since=ago(1), failure=HANG), seen(Presence.GONE, DEAD))
    assert decide(s).action == EndAttempt(AttemptState.FAILED, JobState.RECOVERING, HANG)


@pytest.mark.parametrize(
    ("record", "state"),
    [
        (an_exit(Outcome.FAILED, FailureKind.APPLICATION), AttemptState.FAILED),
        (an_exit(Outcome.FAILED, FailureKind.RENDEZVOUS), AttemptState.LOST),
    ],
)
def test_a_vanished_replica_explains_a_lost_peer_but_no_other_error(record: ExitRecord, state: AttemptState) -> None:
    observation = seen(Presence.GONE, DEAD, a_replica(Liveness.DEAD, 1), exits={1: record})
    action = decide(a_situation(a_job(spec=TWO), an_attempt(nodes="2"), observation)).action
    assert isinstance(action, EndAttempt)
    assert action.state is state


def test_a_lost_peer_without_a_lost_replica_is_a_failure_like_any_other() -> None:
    records = {number: an_exit(Outcome.FAILED, FailureKind.RENDEZVOUS) for number in (0, 1)}
    observation = seen(Presence.GONE, DEAD, a_replica(Liveness.DEAD, 1), exits=records)
    action = decide(a_situation(a_job(spec=TWO), an_attempt(nodes="2"), observation)).action
    assert isinstance(action, EndAttempt)
    assert (action.state, action.failure) == (AttemptState.FAILED, records[0].failure)


def test_a_kill_that_the_cluster_does_not_explain_stays_unknown() -> None:
    observation = seen(Presence.GONE, DEAD, exits={0: an_exit(Outcome.FAILED, FailureKind.UNKNOWN)})
    action = decide(a_situation(a_job(), an_attempt(), observation)).action
    assert isinstance(action, EndAttempt)
    assert action.failure is not None
    assert (action.state, action.failure.kind) == (AttemptState.FAILED, FailureKind.UNKNOWN)


@pytest.mark.parametrize(
    ("asked", "state"),
    [(Desired(cancelled=True), JobState.CANCELLED), (Desired(suspended=True), JobState.RECOVERING)],
)
def test_a_failure_during_a_requested_stop_keeps_its_cause(asked: Desired, state: JobState) -> None:
    record = an_exit(Outcome.FAILED, FailureKind.APPLICATION)
    assert record.failure is not None
    s = a_situation(a_job(desired=asked), an_attempt(), seen(Presence.GONE, DEAD, exits={0: record}))
    assert decide(s).action == EndAttempt(AttemptState.FAILED, state, record.failure)
    assert decide(s).sentence == ("cancelled by its owner" if asked.cancelled else record.failure.message)


# What is seen


def watched(nodes: str, *replicas: object, presence: Presence = Presence.RUNNING, exits: object = None) -> Watched:
    return Watched(an_attempt(nodes=nodes), seen(presence, *replicas, exits=exits))  # type: ignore[arg-type]


def test_an_attempt_has_not_succeeded_while_a_replica_is_out_of_sight() -> None:
    done = {0: an_exit(Outcome.SUCCEEDED)}
    unseen = a_replica(Liveness.UNKNOWN, 1)
    assert not watched("1:2", DEAD, unseen, presence=Presence.UNKNOWN, exits=done).all_succeeded()
    assert watched("1:2", DEAD, unseen, presence=Presence.GONE, exits=done).all_succeeded()


def test_a_group_that_is_gone_cannot_spare_a_replica() -> None:
    lost = a_replica(Liveness.DEAD, 1)
    assert watched("1:2", DEAD, lost, presence=Presence.GONE, exits={0: an_exit(Outcome.SUCCEEDED)}).vanished()
    assert watched("1:2", ALIVE, lost).vanished() is None
    assert watched("2", ALIVE, lost).vanished() == lost.evidence


def test_a_group_that_is_gone_has_no_leftovers_out_of_sight() -> None:
    assert not watched("2", DEAD, presence=Presence.GONE).leftovers()
    assert not watched("2", presence=Presence.ABSENT).leftovers()
    assert watched("2", DEAD).leftovers()


@pytest.mark.parametrize(
    ("kind", "message", "follows"),
    [
        (FailureKind.APPLICATION, "KeyError", False),
        (FailureKind.APPLICATION, "[gloo] Connection closed by peer", True),
        (FailureKind.NUMERIC, "NonFiniteLoss: loss is nan at step 3; look at rank 0", True),
        (FailureKind.RENDEZVOUS, "no store answers", True),
        (FailureKind.RENDEZVOUS, "EADDRINUSE", False),
    ],
)
def test_only_a_lost_peer_is_a_consequence(kind: FailureKind, message: str, follows: bool) -> None:
    assert is_lost_peer(Failure(kind=kind, message=message)) is follows


def test_a_living_agent_or_missing_evidence_permits_no_end() -> None:
    alive, dead, unknown = Liveness.ALIVE, Liveness.DEAD, Liveness.UNKNOWN

    def permits(scheduler: Liveness, agents: Liveness, exits: Liveness) -> bool:
        return permits_end(
            {Source.SCHEDULER: scheduler, Source.AGENTS: agents, Source.EXITS: exits, Source.PROGRESS: dead}
        )

    assert permits(dead, unknown, unknown)
    assert permits(unknown, unknown, dead)
    assert permits(unknown, dead, unknown)
    assert not permits(unknown, unknown, unknown), "stalled progress alone is no end"
    assert not permits(dead, alive, dead)


# Stops and requests


def test_an_attempt_within_its_limit_or_not_yet_started_is_not_overlong() -> None:
    job = a_job(spec=a_spec(supervise={"max_runtime_s": 60}))
    assert decide(a_situation(job, an_attempt(started_at=ago(60)), seen(Presence.RUNNING, ALIVE))).action == Wait()
    waiting = an_attempt(AttemptState.PENDING, started_at=None)
    assert decide(a_situation(job, waiting, seen(Presence.PENDING))).action == Wait()


def test_a_group_that_has_not_formed_is_not_stopped_to_grow() -> None:
    job = a_job(JobState.STARTING, spec=a_spec(topology={"nodes": "1:4"}, supervise={"startup_timeout_s": 9999}))
    attempt = an_attempt(nodes="1:2", asked="1:4", started_at=ago(700))
    unformed = seen(Presence.RUNNING, ALIVE, formed_at=None, progress_at=None, snapshots=1)
    room = Admission(False, "could have 4 nodes", 4)
    assert decide(a_situation(job, attempt, unformed, room)).action == Wait()


def test_a_snapshot_is_requested_from_running_agents_only() -> None:
    job = a_job(JobState.STARTING, desired=Desired(snapshot_number=1))
    s = a_situation(job, an_attempt(AttemptState.PENDING), seen(Presence.PENDING))
    assert decide(s).action == Wait()


def test_a_node_without_a_name_is_not_marked() -> None:
    elastic = a_job(spec=a_spec(topology={"nodes": "1:2"}))
    lost = seen(Presence.RUNNING, ALIVE, a_replica(Liveness.DEAD, 1))
    assert not isinstance(decide(a_situation(elastic, an_attempt(nodes="1:2"), lost)).action, MarkNodes)


# Nothing runs


def test_the_owners_time_limit_ends_the_job_and_a_schedulers_does_not() -> None:
    spec = a_spec(supervise={"max_runtime_s": 60})
    running = a_situation(a_job(spec=spec), an_attempt(started_at=ago(61)), seen(Presence.RUNNING, ALIVE))
    stop = decide(running).action
    assert isinstance(stop, Stop)
    walltime = Failure(kind=FailureKind.TIMEOUT, message="the scheduler's time limit")
    for failure, action in ((stop.failure, Finish(JobState.FAILED)), (walltime, Start(1))):
        ended = an_attempt(AttemptState.FAILED, failure=failure, ended_at=ago(1))
        s = a_situation(a_job(JobState.RECOVERING, spec=spec), ended, admission=Admission(True, "free", 1))
        assert decide(s).action == action


@pytest.mark.parametrize("asked", [Desired(cancelled=True), Desired(suspended=True)])
def test_an_ended_job_stays_as_it_ended(asked: Desired) -> None:
    assert decide(a_situation(a_job(JobState.SUCCEEDED, desired=asked))).action == Wait()


def test_a_job_that_was_queued_again_is_not_judged_by_its_last_failure() -> None:
    hopeless = an_attempt(
        AttemptState.FAILED, failure=Failure(kind=FailureKind.LAUNCH, message="no such file"), ended_at=ago(1)
    )
    s = a_situation(a_job(JobState.QUEUED), hopeless, admission=Admission(True, "free", 1))
    assert decide(s).action == Start(1)


def between(**fields: object) -> Situation:
    failure = Failure(kind=FailureKind.NODE, message="gone")
    ended = an_attempt(AttemptState.LOST, **{"failure": failure, "ended_at": ago(1), **fields})
    job = a_job(JobState.RECOVERING, retry_at=NOW + timedelta(seconds=4))
    return a_situation(job, ended, admission=Admission(True, "free", 1))


def test_a_pause_says_its_length_and_its_cause() -> None:
    assert decide(between()).sentence == "gone; attempt 2 starts after a pause of 5 s"
    assert decide(between(failure=None)).sentence == "attempt 2 starts after a pause of 5 s"
    assert decide(between(ended_at=None)).sentence == "so far"


def test_a_pause_ends() -> None:
    s = a_situation(
        a_job(JobState.RECOVERING, retry_at=NOW),
        an_attempt(AttemptState.LOST, failure=Failure(kind=FailureKind.NODE, message="gone"), ended_at=ago(5)),
        admission=Admission(True, "free", 1),
    )
    assert decide(s).action == Start(1)


def test_a_pause_set_before_the_clock_was_set_back_is_over() -> None:
    job = a_job(JobState.RECOVERING, retry_at=NOW + timedelta(days=1))
    assert decide(replace(between(), job=job)).action == Start(1)


def test_an_ended_job_is_at_rest_until_a_retry_is_requested() -> None:
    assert a_job(JobState.FAILED).at_rest
    assert not a_job(JobState.FAILED, desired=Desired(retry_number=1)).at_rest
    assert not a_job(JobState.RUNNING).at_rest


# States


def test_states_change_only_along_their_edges() -> None:
    with pytest.raises(InvalidTransition):
        a_job(JobState.SUCCEEDED).to(JobState.RUNNING, reason="", now=NOW)
    with pytest.raises(InvalidTransition):
        an_attempt(AttemptState.LOST).to(AttemptState.RUNNING, reason="", now=NOW)
    assert a_job(JobState.SUCCEEDED, finished_at=ago(9)).to(JobState.SUCCEEDED, reason="x", now=NOW).finished_at == ago(
        9
    )
    assert an_attempt().to(AttemptState.RUNNING, reason="x", now=NOW).reason == "x"


# Accounts


def test_a_program_that_reports_no_steps_is_healthy_while_it_runs() -> None:
    failure = Failure(kind=FailureKind.NODE, message="gone")
    for training in (Training(), Training(progress_at=ago(3590)), Training(step_s=1.0)):
        job = charge(a_job(spent={"node": 5}), an_attempt(started_at=ago(3600)), training, failure, NOW)
        assert job.spent == {"node": 1}
    never_began = charge(a_job(spent={"node": 5}), an_attempt(started_at=None), Training(), failure, NOW)
    assert never_began.spent == {"node": 6}


def test_unlimited_restarts_in_place_are_a_number_that_no_job_reaches() -> None:
    assert restarts_left(a_job(spec=a_spec(supervise={"budgets": {"application": None}}))) == 1_000_000
    assert restarts_left(a_job(spent={"application": 2})) == 1
    assert restarts_left(a_job(spent={"application": 9})) == 0


# The contract


def test_a_first_step_is_progress() -> None:
    error = Failure(kind=FailureKind.APPLICATION, message="KeyError")
    before, after = Setback(failure=error, step=None, ran_s=1), Setback(failure=error, step=1, ran_s=1)
    assert not repeats(before, after)
    assert repeats(after, after)


def test_only_the_rendezvous_has_a_taken_port() -> None:
    assert is_taken_port(Failure(kind=FailureKind.RENDEZVOUS, message="EADDRINUSE"))
    assert not is_taken_port(Failure(kind=FailureKind.RENDEZVOUS, message="the group did not form"))
    assert not is_taken_port(Failure(kind=FailureKind.RENDEZVOUS, message="EADDRINUSE", rank=1))
    assert not is_taken_port(Failure(kind=FailureKind.APPLICATION, message="EADDRINUSE: my own server"))


def test_an_absent_text_stays_absent() -> None:
    assert parse_failure({"kind": "node", "message": "gone"}).traceback is None


@pytest.mark.parametrize("text", [7, "", None, "("])
def test_a_pattern_needs_a_text_that_is_an_expression(text: object) -> None:
    with pytest.raises(ValueError, match="pattern: text"):
        parse_pattern({"text": text, "kind": "node"})


def test_a_foreign_file_in_the_fence_is_no_term() -> None:
    assert parse_term("a00001-g00001.json") is not None
    assert parse_term("README") is None
