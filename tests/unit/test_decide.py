"""The policy, rule by rule: each row is one situation and the decision that it must bring."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.job import Desired, JobState
from orchestrator.domain.observation.observation import Liveness, Presence
from orchestrator.domain.policy.decide import POLICY, decide
from orchestrator.domain.policy.decision import BeginRetry, EndAttempt, Finish, NoteRunning, Start, Stop, Submit, Wait
from orchestrator.domain.policy.situation import Situation
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
from trainer.contract.exit_record import Outcome
from trainer.contract.failure import Failure, FailureKind

ALIVE, DEAD = a_replica(), a_replica(Liveness.DEAD)
ORPHANED = a_replica(Liveness.DEAD, leftovers=True)
CANCELLED = a_job(desired=Desired(cancelled=True))
RETRY = Desired(retry_number=1)
TWO_NODES = a_spec(topology={"nodes": "2"})


def test_success_recorded_by_every_replica_ends_the_job_well() -> None:
    s = a_situation(a_job(), an_attempt(), seen(Presence.GONE, DEAD, exits={0: an_exit(Outcome.SUCCEEDED)}))
    assert decide(s).action == EndAttempt(AttemptState.SUCCEEDED, JobState.SUCCEEDED)


def test_success_wins_over_a_request_to_cancel() -> None:
    s = a_situation(CANCELLED, an_attempt(), seen(Presence.GONE, DEAD, exits={0: an_exit(Outcome.SUCCEEDED)}))
    assert decide(s).action == EndAttempt(AttemptState.SUCCEEDED, JobState.SUCCEEDED)


def test_success_of_one_replica_of_two_is_not_the_end() -> None:
    observation = seen(Presence.RUNNING, DEAD, a_replica(number=1), exits={0: an_exit(Outcome.SUCCEEDED)})
    s = a_situation(a_job(spec=TWO_NODES), an_attempt(nodes="2"), observation)
    assert isinstance(decide(s).action, Wait)


def test_an_elastic_attempt_succeeds_without_the_replica_that_it_lost() -> None:
    job = a_job(spec=a_spec(topology={"nodes": "1:2"}))
    attempt = an_attempt(nodes="1:2")
    exits = {0: an_exit(Outcome.SUCCEEDED)}
    lost = seen(Presence.GONE, DEAD, a_replica(Liveness.DEAD, 1), exits=exits)
    assert decide(a_situation(job, attempt, lost)).action == EndAttempt(AttemptState.SUCCEEDED, JobState.SUCCEEDED)
    alive = seen(Presence.RUNNING, DEAD, a_replica(number=1), exits=exits)
    assert isinstance(decide(a_situation(job, attempt, alive)).action, Wait)


def test_a_patched_topology_is_for_the_next_attempt() -> None:
    job = a_job(spec=TWO_NODES, desired=RETRY)
    observation = seen(Presence.GONE, DEAD, exits={0: an_exit(Outcome.SUCCEEDED)})
    action = decide(a_situation(job, an_attempt(stopping_since=ago(1)), observation)).action
    assert action == EndAttempt(AttemptState.SUCCEEDED, JobState.SUCCEEDED)


def test_a_record_of_a_replica_that_is_none_counts_for_nothing() -> None:
    observation = seen(Presence.RUNNING, ALIVE, exits={7: an_exit(Outcome.SUCCEEDED)})
    assert isinstance(decide(a_situation(a_job(), an_attempt(), observation)).action, Wait)


def test_a_record_of_success_beside_a_living_agent_is_not_yet_the_end() -> None:
    observation = seen(Presence.RUNNING, ALIVE, exits={0: an_exit(Outcome.SUCCEEDED)})
    assert isinstance(decide(a_situation(a_job(), an_attempt(), observation)).action, Wait)


def test_what_a_finished_attempt_left_running_is_ended_before_the_job() -> None:
    observation = seen(Presence.GONE, ORPHANED, exits={0: an_exit(Outcome.SUCCEEDED)})
    assert decide(a_situation(a_job(), an_attempt(), observation)).action == Stop(force=False)
    overdue = an_attempt(stopping_since=ago(16))
    assert decide(a_situation(a_job(), overdue, observation)).action == Stop(force=True)
    for ahead, force in ((1, False), (3600, True)):  # another service's clock, and one that was set back
        decision = decide(a_situation(a_job(), an_attempt(stopping_since=ago(-ahead)), observation))
        assert decision.action == Stop(force=force)


def test_a_replica_out_of_sight_holds_the_end_up_and_is_stopped_by_force_in_time() -> None:
    failed = {0: an_exit(Outcome.FAILED, FailureKind.APPLICATION)}
    observation = seen(Presence.UNKNOWN, DEAD, a_replica(Liveness.UNKNOWN, 1), exits=failed)
    job = a_job(spec=TWO_NODES)
    for stopping, force in ((None, False), (ago(14), False), (ago(16), True), (ago(9999), True)):
        attempt = an_attempt(nodes="2", stopping_since=stopping)
        assert decide(a_situation(job, attempt, observation)).action == Stop(force=force)


def test_a_refused_double_start_says_nothing_about_the_attempt() -> None:
    refused = {0: an_exit(Outcome.REFUSED)}
    s = a_situation(a_job(), an_attempt(), seen(Presence.RUNNING, ALIVE, exits=refused))
    assert isinstance(decide(s).action, Wait)
    action = decide(a_situation(a_job(), an_attempt(), seen(Presence.GONE, DEAD, exits=refused))).action
    assert isinstance(action, EndAttempt)
    assert action.state is AttemptState.LOST


def test_a_recorded_failure_ends_the_attempt_with_its_cause() -> None:
    record = an_exit(Outcome.FAILED, FailureKind.APPLICATION)
    s = a_situation(a_job(), an_attempt(), seen(Presence.GONE, DEAD, exits={0: record}))
    assert decide(s).action == EndAttempt(AttemptState.FAILED, JobState.RECOVERING, record.failure)


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


def test_an_agent_gone_without_a_record_is_a_lost_attempt() -> None:
    action = decide(a_situation(a_job(), an_attempt(), seen(Presence.GONE, DEAD))).action
    assert isinstance(action, EndAttempt)
    assert (action.state, action.job_state) == (AttemptState.LOST, JobState.RECOVERING)
    assert action.failure is not None
    assert action.failure.kind is FailureKind.NODE


def test_orphaned_workers_are_ended_by_force_before_the_attempt_counts_as_lost() -> None:
    action = decide(a_situation(a_job(), an_attempt(), seen(Presence.GONE, ORPHANED))).action
    assert isinstance(action, Stop)
    assert action.force
    assert action.failure is not None


def test_the_other_replica_of_a_dead_one_is_asked_to_end_first() -> None:
    observation = seen(Presence.RUNNING, DEAD, a_replica(number=1))
    action = decide(a_situation(a_job(spec=TWO_NODES), an_attempt(nodes="2"), observation)).action
    assert isinstance(action, Stop)
    assert not action.force


def test_within_an_elastic_range_a_dead_replica_is_left_to_the_agents() -> None:
    spec = a_spec(topology={"nodes": "1:2"})
    observation = seen(Presence.RUNNING, DEAD, a_replica(number=1))
    assert isinstance(decide(a_situation(a_job(spec=spec), an_attempt(nodes="1:2"), observation)).action, Wait)


@pytest.mark.parametrize("state", [AttemptState.INTENDED, AttemptState.SUBMITTED, AttemptState.RUNNING])
def test_an_unknown_sight_never_ends_an_attempt(state: AttemptState) -> None:
    observation = seen(Presence.UNKNOWN, a_replica(Liveness.UNKNOWN), formed_at=None, progress_at=None)
    assert isinstance(decide(a_situation(a_job(), an_attempt(state), observation)).action, Wait)


def test_a_submitted_attempt_of_which_nothing_is_there_has_failed_to_launch() -> None:
    s = a_situation(a_job(JobState.STARTING), an_attempt(AttemptState.SUBMITTED), seen(Presence.ABSENT))
    action = decide(s).action
    assert isinstance(action, EndAttempt)
    assert action.state is AttemptState.LOST


def test_an_intended_attempt_that_was_never_submitted_is_submitted() -> None:
    s = a_situation(a_job(JobState.STARTING), an_attempt(AttemptState.INTENDED), seen(Presence.ABSENT))
    assert decide(s).action == Submit()


def test_a_cancelled_job_is_asked_to_end_then_made_to() -> None:
    s = a_situation(CANCELLED, an_attempt(), seen(Presence.RUNNING, ALIVE))
    assert decide(s).action == Stop(force=False)
    overdue = a_situation(CANCELLED, an_attempt(stopping_since=ago(16)), seen(Presence.RUNNING, ALIVE))
    assert decide(overdue).action == Stop(force=True)


def test_a_cancelled_job_that_never_left_the_service_ends_at_once() -> None:
    job = a_job(JobState.STARTING, desired=Desired(cancelled=True))
    s = a_situation(job, an_attempt(AttemptState.INTENDED), seen(Presence.ABSENT))
    assert decide(s).action == EndAttempt(AttemptState.CANCELLED, JobState.CANCELLED)


def test_a_cancelled_attempt_that_is_gone_cancels_the_job() -> None:
    s = a_situation(CANCELLED, an_attempt(stopping_since=ago(2)), seen(Presence.GONE, DEAD))
    assert decide(s).action == EndAttempt(AttemptState.CANCELLED, JobState.CANCELLED)


def test_a_queued_job_that_is_cancelled_ends_without_an_attempt() -> None:
    s = a_situation(a_job(JobState.QUEUED, desired=Desired(cancelled=True)), admission=Admission(True, "free", 1))
    assert decide(s).action == Finish(JobState.CANCELLED)


def test_a_retry_stops_the_running_attempt_first() -> None:
    s = a_situation(a_job(desired=RETRY), an_attempt(), seen(Presence.RUNNING, ALIVE))
    assert decide(s).action == Stop(force=False)


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.CANCELLED, JobState.SUCCEEDED])
def test_a_retry_brings_an_ended_job_back(state: JobState) -> None:
    ended = an_attempt(AttemptState.FAILED, ended_at=ago(5))
    assert decide(a_situation(a_job(state, desired=RETRY), ended)).action == BeginRetry()


def test_an_attempt_stopped_before_it_could_claim_its_place_ends() -> None:
    failure = Failure(kind=FailureKind.NODE, message="replica 1 never came up")
    stopping = an_attempt(AttemptState.INTENDED, stopping_since=ago(1), failure=failure)
    action = decide(a_situation(a_job(JobState.STARTING), stopping, seen(Presence.ABSENT))).action
    assert action == EndAttempt(AttemptState.LOST, JobState.RECOVERING, failure)


def test_a_stop_that_was_begun_is_seen_through() -> None:
    hang = Failure(kind=FailureKind.HANG, message="no progress")
    s = a_situation(a_job(), an_attempt(stopping_since=ago(16), failure=hang), seen(Presence.RUNNING, ALIVE))
    assert decide(s).action == Stop(force=True, failure=hang)


def test_an_attempt_stopped_for_a_hang_ends_as_a_hang() -> None:
    hang = Failure(kind=FailureKind.HANG, message="no progress")
    observation = seen(Presence.GONE, DEAD, exits={0: an_exit(Outcome.CANCELLED)})
    s = a_situation(a_job(), an_attempt(stopping_since=ago(9), failure=hang), observation)
    assert decide(s).action == EndAttempt(AttemptState.FAILED, JobState.RECOVERING, hang)


def test_a_preempted_attempt_is_told_from_a_failed_one() -> None:
    observation = seen(Presence.GONE, DEAD, exits={0: an_exit(Outcome.PREEMPTED)})
    action = decide(a_situation(a_job(), an_attempt(), observation)).action
    assert isinstance(action, EndAttempt)
    assert action.state is AttemptState.PREEMPTED


def test_a_silent_attempt_is_stopped() -> None:
    job = a_job(spec=a_spec(supervise={"heartbeat_timeout_s": 30}))
    for silence, expected in ((39, Wait), (41, Stop)):
        s = a_situation(job, an_attempt(), seen(Presence.RUNNING, ALIVE, progress_at=ago(silence)))
        assert isinstance(decide(s).action, expected)


def test_workers_that_form_no_group_in_time_are_stopped() -> None:
    job = a_job(JobState.STARTING, spec=a_spec(supervise={"startup_timeout_s": 60}))
    observation = seen(Presence.RUNNING, ALIVE, formed_at=None, progress_at=None)
    assert isinstance(decide(a_situation(job, an_attempt(started_at=ago(61)), observation)).action, Stop)
    assert isinstance(decide(a_situation(job, an_attempt(started_at=ago(59)), observation)).action, Wait)


def test_an_attempt_that_outlives_its_limit_is_stopped() -> None:
    job = a_job(spec=a_spec(supervise={"max_runtime_s": 60}))
    action = decide(a_situation(job, an_attempt(started_at=ago(61)), seen(Presence.RUNNING, ALIVE))).action
    assert isinstance(action, Stop)
    assert action.failure is not None
    assert action.failure.kind is FailureKind.TIMEOUT


def test_a_living_agent_and_a_formed_group_are_each_noted_once() -> None:
    job, attempt = a_job(JobState.STARTING), an_attempt(AttemptState.SUBMITTED, started_at=None)
    unformed = seen(Presence.RUNNING, ALIVE, formed_at=None, progress_at=None)
    assert decide(a_situation(job, attempt, unformed)).action == NoteRunning(formed=False)
    assert decide(a_situation(job, an_attempt(), seen(Presence.RUNNING, ALIVE))).action == NoteRunning(formed=True)
    assert isinstance(decide(a_situation(a_job(), an_attempt(), seen(Presence.RUNNING, ALIVE))).action, Wait)


def recovering(kind: FailureKind, **fields: object) -> Situation:
    failure = Failure(kind=kind, message="it broke")
    ended = an_attempt(AttemptState.FAILED, failure=failure, ended_at=ago(1))
    return a_situation(a_job(JobState.RECOVERING, **fields), ended, admission=Admission(True, "its place is free", 1))


def test_a_job_recovers_until_its_budget_is_spent() -> None:
    assert decide(recovering(FailureKind.APPLICATION, spent={"application": 3})).action == Start(1)
    assert decide(recovering(FailureKind.APPLICATION, spent={"application": 4})).action == Finish(JobState.FAILED)


def test_a_spent_budget_of_another_class_does_not_matter() -> None:
    assert decide(recovering(FailureKind.NODE, spent={"application": 99})).action == Start(1)


def test_a_preemption_and_a_taken_port_cost_nothing() -> None:
    assert decide(recovering(FailureKind.PREEMPTED, spent={"preemption": 99})).action == Start(1)


def test_what_no_attempt_can_fix_ends_the_job_at_once() -> None:
    decision = decide(recovering(FailureKind.LAUNCH))
    assert decision.action == Finish(JobState.FAILED)
    assert "it broke" in decision.sentence


def test_the_same_error_twice_in_a_row_ends_the_job_unless_it_is_the_disks() -> None:
    def repeated(kind: FailureKind) -> Situation:
        s = recovering(kind)
        assert s.attempt is not None
        failure = Failure(kind=kind, message="it broke", repeated=True)
        return replace(s, attempt=replace(s.attempt, failure=failure))

    decision = decide(repeated(FailureKind.APPLICATION))
    assert decision.action == Finish(JobState.FAILED)
    assert decision.sentence == "it broke; the same error twice in a row"
    assert decide(repeated(FailureKind.STORAGE)).action == Start(1)


def test_a_recovering_job_waits_for_its_back_off() -> None:
    later = NOW + timedelta(seconds=3)
    decision = decide(recovering(FailureKind.NODE, retry_at=later))
    assert isinstance(decision.action, Wait)
    assert decision.sentence == "waits 4 s before its next attempt after: it broke"
    assert decision.look_again_at == later


def test_a_queued_job_starts_when_admitted_and_else_says_what_it_waits_for() -> None:
    queued = a_job(JobState.QUEUED)
    assert decide(a_situation(queued, admission=Admission(True, "2 of 2 slots are free", 1))).action == Start(1)
    waiting = decide(a_situation(queued, admission=Admission(False, "waits for 2 of 2 slots")))
    assert isinstance(waiting.action, Wait)
    assert waiting.sentence == "waits for 2 of 2 slots"


def test_every_decision_names_its_rule_and_every_rule_is_documented() -> None:
    assert decide(a_situation(a_job(JobState.QUEUED), admission=Admission(True, "free", 1))).rule == "start"
    assert all(rule.__doc__ for rule in POLICY)
