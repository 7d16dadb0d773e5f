"""The first cause of an end: exit records, the scheduler's reason, unreachable nodes and the service's own stop."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.job import Desired, Job, JobState
from orchestrator.domain.observation.observation import Liveness, Observation, Presence, ReplicaSighting
from orchestrator.domain.policy.decide import decide
from orchestrator.domain.policy.decision import EndAttempt, Stop, Wait
from tests.unit.situations import a_job, a_replica, a_situation, a_spec, ago, an_attempt, an_exit, seen
from trainer.contract.exit_record import ExitRecord, Outcome
from trainer.contract.failure import Failure, FailureKind

ALIVE, DEAD = a_replica(), a_replica(Liveness.DEAD)
DEAD_1 = a_replica(Liveness.DEAD, 1)
UNREACHABLE_1 = replace(
    a_replica(Liveness.UNKNOWN, 1), evidence="node n2 does not answer", node="n2", node_unreachable=True
)
LOST_1 = replace(UNREACHABLE_1, liveness=Liveness.DEAD)
TWO = a_job(spec=a_spec(topology={"nodes": "2"}))
ELASTIC = a_job(spec=a_spec(topology={"nodes": "1:2"}))
LOST_PEER = an_exit(Outcome.FAILED, FailureKind.RENDEZVOUS)
RENDEZVOUS = LOST_PEER.failure
assert RENDEZVOUS is not None


def an_end(observation: Observation, **attempt: object) -> EndAttempt:
    action = decide(a_situation(TWO, an_attempt(nodes="2", **attempt), observation)).action
    assert isinstance(action, EndAttempt)
    return action


def of_generation(record: ExitRecord, generation: int) -> ExitRecord:
    return replace(record, generation=generation)


# The service's own stop is no cause


def test_a_stop_after_a_lost_peer_keeps_the_lost_peer_as_its_failure() -> None:
    observation = seen(Presence.RUNNING, DEAD, a_replica(number=1), exits={0: LOST_PEER})
    decision = decide(a_situation(TWO, an_attempt(nodes="2"), observation))
    assert decision.action == Stop(force=False, failure=RENDEZVOUS)
    assert decision.sentence == f"{RENDEZVOUS.message}; stopping the remaining processes of the attempt"


@pytest.mark.parametrize("outcome", [Outcome.CANCELLED, Outcome.PREEMPTED])
def test_an_attempt_stopped_after_a_lost_peer_does_not_end_as_cancelled(outcome: Outcome) -> None:
    stopped = an_exit(outcome, at="2026-11-20T11:59:30Z")
    observation = seen(Presence.GONE, DEAD, DEAD_1, exits={0: LOST_PEER, 1: stopped})
    end = an_end(observation, stopping_since=ago(5), failure=RENDEZVOUS)
    assert end == EndAttempt(AttemptState.FAILED, JobState.RECOVERING, RENDEZVOUS)


@pytest.mark.parametrize("known", [True, False])
def test_a_late_record_of_the_true_cause_wins_over_the_lost_peer(known: bool) -> None:
    true = an_exit(Outcome.FAILED, FailureKind.HOST_OOM, at="2026-11-20T11:59:30Z")
    observation = seen(Presence.GONE, DEAD, DEAD_1, exits={0: LOST_PEER, 1: true})
    end = an_end(observation, stopping_since=ago(5), failure=RENDEZVOUS if known else None)
    assert end.failure == true.failure


def test_a_cancel_is_the_cause_even_if_agents_lose_each_other_during_it() -> None:
    cancelled = an_exit(Outcome.CANCELLED, at="2026-11-20T11:59:30Z")
    observation = seen(Presence.GONE, DEAD, DEAD_1, exits={0: LOST_PEER, 1: cancelled})
    job = replace(TWO, desired=Desired(cancelled=True))
    action = decide(a_situation(job, an_attempt(nodes="2", stopping_since=ago(5)), observation)).action
    assert action == EndAttempt(AttemptState.CANCELLED, JobState.CANCELLED)


def test_the_schedulers_word_on_a_stop_by_the_service_is_no_cause() -> None:
    said = Failure(kind=FailureKind.PREEMPTED, message="the job was cancelled in Slurm")
    observation = seen(Presence.GONE, DEAD, DEAD_1, exits={0: LOST_PEER}, cause=said)
    assert an_end(observation, stopping_since=ago(5), failure=RENDEZVOUS).failure == RENDEZVOUS
    assert an_end(observation).failure == said


# A node that its scheduler cannot reach


@pytest.mark.parametrize("replica", [UNREACHABLE_1, LOST_1])
def test_a_lost_peer_on_an_unreachable_node_is_a_lost_node(replica: ReplicaSighting) -> None:
    observation = seen(Presence.UNKNOWN, DEAD, replica, exits={0: LOST_PEER})
    decision = decide(a_situation(TWO, an_attempt(nodes="2"), observation))
    assert isinstance(decision.action, Stop | EndAttempt)
    assert decision.action.failure is not None
    assert (decision.action.failure.kind, decision.blames) == (FailureKind.NODE, ("n2",))
    assert "node n2 does not answer" in decision.action.failure.message


def test_a_stop_for_a_lost_peer_ends_as_a_lost_node_once_the_scheduler_reports_it() -> None:
    observation = seen(Presence.GONE, DEAD, LOST_1, exits={0: LOST_PEER})
    end = an_end(observation, stopping_since=ago(5), failure=RENDEZVOUS)
    assert end.failure is not None
    assert (end.state, end.failure.kind) == (AttemptState.LOST, FailureKind.NODE)


def test_an_error_of_the_program_wins_over_an_unreachable_node() -> None:
    record = an_exit(Outcome.FAILED, FailureKind.APPLICATION)
    observation = seen(Presence.GONE, DEAD, LOST_1, exits={0: record})
    assert an_end(observation).failure == record.failure


def test_a_group_that_lost_an_unreachable_node_is_stopped_for_the_lost_node() -> None:
    observation = replace(seen(Presence.RUNNING, ALIVE, UNREACHABLE_1), missed=frozenset({1}))
    decision = decide(a_situation(TWO, an_attempt(nodes="2"), observation))
    assert isinstance(decision.action, Stop)
    assert decision.action.failure is not None
    assert (decision.action.failure.kind, decision.action.force) == (FailureKind.NODE, False)
    assert decision.blames == ("n2",)


def test_a_node_is_lost_only_if_scheduler_and_agents_agree() -> None:
    unreachable = seen(Presence.RUNNING, ALIVE, UNREACHABLE_1)
    missed = replace(seen(Presence.RUNNING, ALIVE, a_replica(number=1)), missed=frozenset({1}))
    for observation in (unreachable, missed):
        assert isinstance(decide(a_situation(TWO, an_attempt(nodes="2"), observation)).action, Wait)


def test_a_group_that_waits_silently_for_a_lost_replica_is_a_lost_node_and_no_hang() -> None:
    """Even if the scheduler reports the node as healthy, as when its network fails in one direction."""
    silent = seen(Presence.RUNNING, ALIVE, replace(a_replica(number=1), node="n2"), progress_at=ago(5000))
    situation = a_situation(TWO, an_attempt(nodes="2"), replace(silent, missed=frozenset({1})))
    decision = decide(situation)
    assert isinstance(decision.action, Stop)
    assert decision.action.failure is not None
    assert decision.action.failure.kind is FailureKind.NODE
    assert decision.sentence.startswith("the group lost replica 1 on n2, and no rank reported anything for ")
    assert decision.blames == ("n2",)


@pytest.mark.parametrize(("job", "nodes", "missed"), [(TWO, "2", frozenset[int]()), (ELASTIC, "1:2", frozenset({1}))])
def test_a_silent_group_that_needs_no_lost_replica_hangs(job: Job, nodes: str, missed: frozenset[int]) -> None:
    silent = seen(Presence.RUNNING, ALIVE, a_replica(number=1), progress_at=ago(5000))
    action = decide(a_situation(job, an_attempt(nodes=nodes), replace(silent, missed=missed))).action
    assert isinstance(action, Stop)
    assert action.failure is not None
    assert action.failure.kind is FailureKind.HANG


def test_a_group_that_can_spare_a_lost_node_continues() -> None:
    observation = replace(seen(Presence.RUNNING, ALIVE, UNREACHABLE_1), missed=frozenset({1}))
    assert isinstance(decide(a_situation(ELASTIC, an_attempt(nodes="1:2"), observation)).action, Wait)


# Survivors


def test_a_late_record_of_a_lost_replica_does_not_end_the_survivors() -> None:
    observation = seen(Presence.RUNNING, ALIVE, DEAD_1, exits={1: of_generation(LOST_PEER, 1)}, generation=2)
    assert isinstance(decide(a_situation(ELASTIC, an_attempt(nodes="1:2"), observation)).action, Wait)


@pytest.mark.parametrize("record", [LOST_PEER, an_exit(Outcome.PREEMPTED), an_exit(Outcome.FAILED, FailureKind.NODE)])
def test_a_group_that_can_spare_a_failed_replica_gets_time_to_continue(record: ExitRecord) -> None:
    observation = seen(Presence.RUNNING, ALIVE, DEAD_1, exits={1: record}, generation=1)
    assert isinstance(decide(a_situation(ELASTIC, an_attempt(nodes="1:2"), observation)).action, Wait)


def test_an_error_of_the_program_ends_an_elastic_group() -> None:
    record = an_exit(Outcome.FAILED, FailureKind.APPLICATION)
    observation = seen(Presence.RUNNING, ALIVE, DEAD_1, exits={1: record}, generation=1)
    assert isinstance(decide(a_situation(ELASTIC, an_attempt(nodes="1:2"), observation)).action, Stop)


def test_survivors_succeed_without_the_replica_that_they_lost() -> None:
    exits = {0: of_generation(an_exit(Outcome.SUCCEEDED), 2), 1: of_generation(LOST_PEER, 1)}
    observation = seen(Presence.GONE, DEAD, DEAD_1, exits=exits, generation=2)
    action = decide(a_situation(ELASTIC, an_attempt(nodes="1:2"), observation)).action
    assert action == EndAttempt(AttemptState.SUCCEEDED, JobState.SUCCEEDED)


def test_a_later_failure_of_a_survivor_is_the_cause() -> None:
    failed = of_generation(an_exit(Outcome.FAILED, FailureKind.NUMERIC, at="2026-11-20T11:59:30Z"), 2)
    lost = of_generation(an_exit(Outcome.PREEMPTED), 1)
    observation = seen(Presence.GONE, DEAD, DEAD_1, exits={0: failed, 1: lost}, generation=2)
    action = decide(a_situation(ELASTIC, an_attempt(nodes="1:2"), observation)).action
    assert isinstance(action, EndAttempt)
    assert action.failure == failed.failure


def test_the_agent_that_closed_the_group_is_the_cause_even_if_the_group_had_formed_without_it() -> None:
    """The agent was frozen. The others formed a new group, and it recorded its program's error after it woke up."""
    raised = an_exit(Outcome.FAILED, FailureKind.APPLICATION)
    assert raised.failure is not None
    message = f"the rendezvous is closed: {raised.failure.message}"
    closed = replace(LOST_PEER, generation=2, failure=Failure(kind=FailureKind.RENDEZVOUS, message=message))
    observation = seen(Presence.GONE, DEAD, DEAD_1, exits={0: closed, 1: raised}, generation=2)
    action = decide(a_situation(ELASTIC, an_attempt(nodes="1:2"), observation)).action
    assert action == EndAttempt(AttemptState.FAILED, JobState.RECOVERING, raised.failure)


@pytest.mark.parametrize(
    ("last", "first"),
    [
        (Failure(kind=FailureKind.APPLICATION, message="ValueError: boom"), "boom"),
        (None, "boom"),
        (RENDEZVOUS, None),
    ],
    ids=["its own", "none", "a lost peer"],
)
def test_the_end_of_an_earlier_generation_is_no_cause_unless_a_lost_peer_quotes_it(
    last: Failure | None, first: str | None
) -> None:
    said = None if first is None else Failure(kind=FailureKind.APPLICATION, message=first)
    exits = {
        0: replace(LOST_PEER, generation=2, failure=last),
        1: replace(an_exit(Outcome.FAILED, at="2026-11-20T11:58:00Z"), failure=said),
    }
    observation = seen(Presence.GONE, DEAD, DEAD_1, exits=exits, generation=2)
    action = decide(a_situation(ELASTIC, an_attempt(nodes="1:2"), observation)).action
    assert isinstance(action, EndAttempt)
    assert action.failure is not None
    assert action.failure.message == ("the agent recorded a failure without a cause" if last is None else last.message)


def test_a_stop_that_the_service_did_not_request_is_an_infrastructure_failure() -> None:
    action = decide(
        a_situation(a_job(), an_attempt(), seen(Presence.GONE, DEAD, exits={0: an_exit(Outcome.CANCELLED)}))
    ).action
    assert isinstance(action, EndAttempt)
    assert action.failure is not None
    assert action.failure.kind is FailureKind.INFRASTRUCTURE


def test_a_kill_of_unknown_cause_wins_over_a_lost_peer() -> None:
    killed = replace(an_exit(Outcome.FAILED), failure=Failure(kind=FailureKind.UNKNOWN, message="killed by SIGKILL"))
    observation = seen(Presence.GONE, DEAD, DEAD_1, exits={0: LOST_PEER, 1: killed})
    assert an_end(observation).failure == killed.failure


def test_a_stopped_attempt_that_its_cluster_forgot_ends_for_the_reason_of_the_stop() -> None:
    hang = Failure(kind=FailureKind.HANG, message="no rank reported anything")
    attempt = an_attempt(handle="slurm:7", stopping_since=ago(20), failure=hang)
    decision = decide(a_situation(a_job(), attempt, seen(Presence.ABSENT)))
    assert decision.action == EndAttempt(AttemptState.FAILED, JobState.RECOVERING, hang)


BROKEN_CONNECTION = replace(
    an_exit(Outcome.FAILED), failure=Failure(kind=FailureKind.APPLICATION, message="Connection closed by peer")
)


def test_a_lost_replica_explains_a_broken_connection_even_with_leftovers() -> None:
    complaint = BROKEN_CONNECTION
    left = (a_replica(Liveness.DEAD, number=0), a_replica(Liveness.DEAD, number=1, leftovers=True))
    decision = decide(a_situation(a_job(), an_attempt(nodes="2"), seen(Presence.GONE, *left, exits={0: complaint})))
    assert isinstance(decision.action, Stop)
    assert decision.action.failure is not None
    assert decision.action.failure.kind is FailureKind.NODE


def test_a_replica_that_the_service_killed_does_not_explain_an_earlier_broken_connection() -> None:
    complaint = BROKEN_CONNECTION
    gone = (a_replica(Liveness.DEAD, number=0), a_replica(Liveness.DEAD, number=1))
    stopped = an_attempt(nodes="2", stopping_since=ago(20))
    decision = decide(a_situation(a_job(), stopped, seen(Presence.GONE, *gone, exits={0: complaint})))
    assert decision.action == EndAttempt(AttemptState.FAILED, JobState.RECOVERING, complaint.failure)
