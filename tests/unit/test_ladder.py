"""The policy's rules about evidence, size, nodes, pauses and requests: one situation a row."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from orchestrator.domain.job.attempt import Attempt, AttemptState
from orchestrator.domain.job.job import Desired, JobState
from orchestrator.domain.observation.observation import Liveness, Observation, Presence, RankReport, ReplicaSighting
from orchestrator.domain.policy.deadlines import sleeps_until
from orchestrator.domain.policy.decide import decide
from orchestrator.domain.policy.decision import (
    Decision,
    EndAttempt,
    Finish,
    MarkNodes,
    NotePending,
    Start,
    Stop,
    Submit,
    TellAgents,
    Wait,
)
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
    with_attempt,
    with_seen,
)
from trainer.contract.exit_record import ExitRecord, Outcome
from trainer.contract.failure import Failure, FailureKind

ALIVE, DEAD = a_replica(), a_replica(Liveness.DEAD)
SUSPENDED = Desired(suspended=True)
ELASTIC = a_spec(topology={"nodes": "1:4"})


def on(node: str, number: int = 0, liveness: Liveness = Liveness.ALIVE) -> ReplicaSighting:
    return replace(a_replica(liveness, number), node=node)


# Evidence of a submission


def test_a_submission_that_may_be_under_way_is_not_repeated() -> None:
    intended = an_attempt(AttemptState.INTENDED, created_at=ago(99), tried_at=ago(9))
    s = a_situation(a_job(JobState.STARTING), intended, seen(Presence.ABSENT), submit_timeout_s=10)
    decision = decide(s)
    assert decision.action == Wait()
    assert decision.sentence == "waits to learn whether attempt 1 was submitted"
    assert decision.look_again_at == NOW + timedelta(seconds=1)
    assert decide(with_attempt(s, replace(intended, tried_at=ago(10)))).action == Submit()


def test_a_cluster_that_accepts_a_name_once_is_asked_again_sooner() -> None:
    intended = an_attempt(AttemptState.INTENDED, created_at=ago(99), tried_at=ago(4))
    s = a_situation(a_job(JobState.STARTING), intended, seen(Presence.ABSENT), submit_timeout_s=60, repeat_s=5)
    decision = decide(s)
    assert (decision.action, decision.look_again_at) == (Wait(), NOW + timedelta(seconds=1))
    assert decide(with_attempt(s, replace(intended, tried_at=ago(5)))).action == Submit()
    assert decide(with_attempt(s, replace(intended, tried_at=None, created_at=ago(5)))).action == Submit()
    assert decide(with_attempt(replace(s, submit_timeout_s=3), replace(intended, tried_at=ago(3)))).action == Submit()


@pytest.mark.parametrize("repeat_s", [None, 5])
@pytest.mark.parametrize(
    ("state", "desired", "stopping_since", "meanwhile"),
    [
        (AttemptState.SUBMITTED, Desired(), None, Wait),
        (AttemptState.INTENDED, Desired(cancelled=True), None, Stop),
        (AttemptState.INTENDED, Desired(), ago(1), Stop),
    ],
    ids=["accepted", "cancelled", "stopping"],
)
def test_an_attempt_that_may_be_under_way_does_not_end_before_the_look_up(
    state: AttemptState, desired: Desired, stopping_since: datetime | None, meanwhile: type, repeat_s: float | None
) -> None:
    attempt = an_attempt(state, tried_at=ago(9), stopping_since=stopping_since)
    job = a_job(JobState.STARTING, desired=desired)
    s = a_situation(job, attempt, seen(Presence.ABSENT), submit_timeout_s=10, repeat_s=repeat_s)
    assert isinstance(decide(s).action, meanwhile)
    assert isinstance(decide(replace(s, submit_timeout_s=9)).action, EndAttempt)


def test_an_attempt_in_the_clusters_queue_says_what_it_waits_for() -> None:
    s = a_situation(a_job(JobState.STARTING), an_attempt(AttemptState.SUBMITTED), seen(Presence.PENDING))
    decision = decide(s)
    assert (decision.action, decision.sentence) == (NotePending(), "it is pending")
    pending = with_attempt(s, an_attempt(AttemptState.PENDING))
    assert (decide(pending).action, decide(pending).sentence) == (Wait(), "it is pending")


# Causes that the cluster reports


def gone(cause: FailureKind, exits: dict[int, ExitRecord] | None = None) -> Observation:
    return seen(Presence.GONE, DEAD, cause=Failure(kind=cause, message="the cluster says so"), exits=exits)


@pytest.mark.parametrize(
    ("cause", "state"),
    [
        (FailureKind.PREEMPTED, AttemptState.PREEMPTED),
        (FailureKind.HOST_OOM, AttemptState.FAILED),
        (FailureKind.TIMEOUT, AttemptState.FAILED),
        (FailureKind.NODE, AttemptState.LOST),
    ],
)
def test_the_cluster_names_the_cause_of_a_loss(cause: FailureKind, state: AttemptState) -> None:
    action = decide(a_situation(a_job(), an_attempt(), gone(cause))).action
    assert isinstance(action, EndAttempt)
    assert action.failure is not None
    assert (action.state, action.failure.kind) == (state, cause)


def test_the_cluster_explains_a_signal_and_a_kill_without_a_cause() -> None:
    preempted_exit = {0: an_exit(Outcome.PREEMPTED)}
    action = decide(a_situation(a_job(), an_attempt(), gone(FailureKind.TIMEOUT, preempted_exit))).action
    assert isinstance(action, EndAttempt)
    assert action.failure == Failure(kind=FailureKind.TIMEOUT, message="the cluster says so")
    killed = {0: an_exit(Outcome.FAILED, FailureKind.UNKNOWN)}
    action = decide(a_situation(a_job(), an_attempt(), gone(FailureKind.HOST_OOM, killed))).action
    assert isinstance(action, EndAttempt)
    assert action.failure is not None
    assert action.failure.kind is FailureKind.HOST_OOM


def test_a_cause_that_the_agent_recorded_wins_over_the_clusters() -> None:
    raised = {0: an_exit(Outcome.FAILED, FailureKind.APPLICATION)}
    action = decide(a_situation(a_job(), an_attempt(), gone(FailureKind.HOST_OOM, raised))).action
    assert isinstance(action, EndAttempt)
    assert action.failure is not None
    assert action.failure.kind is FailureKind.APPLICATION


# Silence


def test_silence_before_the_service_listened_is_no_hang() -> None:
    job = a_job(spec=a_spec(supervise={"heartbeat_timeout_s": 30}))
    silent = seen(Presence.RUNNING, ALIVE, progress_at=ago(3600), heard_since=ago(39))
    assert decide(a_situation(job, an_attempt(), silent)).action == Wait()
    assert isinstance(decide(a_situation(job, an_attempt(), replace(silent, heard_since=ago(41)))).action, Stop)


def test_silence_of_an_attempt_that_cannot_be_seen_is_no_hang() -> None:
    job = a_job(JobState.STARTING, spec=a_spec(supervise={"heartbeat_timeout_s": 30, "startup_timeout_s": 30}))
    silent = seen(Presence.UNKNOWN, progress_at=ago(3600))
    assert decide(a_situation(job, an_attempt(), silent)).action == Wait()
    unformed = seen(Presence.UNKNOWN, formed_at=None, progress_at=None)
    assert decide(a_situation(job, an_attempt(started_at=ago(3600)), unformed)).action == Wait()


def test_a_start_is_slow_only_while_the_service_listened() -> None:
    job = a_job(JobState.STARTING, spec=a_spec(supervise={"startup_timeout_s": 60}))
    unformed = seen(Presence.RUNNING, ALIVE, formed_at=None, progress_at=None, heard_since=ago(59))
    assert decide(a_situation(job, an_attempt(started_at=ago(3600)), unformed)).action == Wait()
    longer = replace(unformed, heard_since=ago(61))
    assert isinstance(decide(a_situation(job, an_attempt(started_at=ago(3600)), longer)).action, Stop)


def test_a_hang_names_the_ranks_that_stopped_first_and_blames_their_nodes() -> None:
    def word(rank: int, step: int) -> RankReport:
        return RankReport(rank=rank, replica=rank, generation=1, phase="step", step=step, heard_at=ago(700))

    replicas = (on("n1", 0), on("n2", 1), on("n3", 2))
    silent = seen(Presence.RUNNING, *replicas, progress_at=ago(700), ranks=(word(0, 40), word(1, 39), word(2, 40)))
    decision = decide(a_situation(a_job(spec=a_spec(topology={"nodes": 3})), an_attempt(nodes="3"), silent))
    assert isinstance(decision.action, Stop)
    assert decision.action.failure is not None
    assert (decision.action.failure.kind, decision.action.failure.rank) == (FailureKind.HANG, 1)
    assert decision.sentence.endswith("(limit 610 s); rank 1 stopped first")
    assert decision.blames == ("n2",)


# Nodes


def test_a_node_lost_during_an_attempt_is_marked_once() -> None:
    lost = seen(Presence.RUNNING, on("n1"), on("n2", 1, Liveness.DEAD))
    s = a_situation(a_job(spec=ELASTIC), an_attempt(nodes="1:2"), lost)
    decision = decide(s)
    assert (decision.action, decision.blames) == (MarkNodes(), ("n2",))
    marked = an_attempt(nodes="1:2", marked_nodes=("n2",))
    assert decide(with_attempt(s, marked)).action == Wait()


def test_a_replica_with_a_record_or_a_stop_does_not_mark_its_node() -> None:
    dead = on("n2", 1, Liveness.DEAD)
    ended = seen(Presence.RUNNING, on("n1"), dead, exits={1: an_exit(Outcome.SUCCEEDED)})
    assert decide(a_situation(a_job(spec=ELASTIC), an_attempt(nodes="1:2"), ended)).action == Wait()
    stopping = an_attempt(nodes="1:2", stopping_since=ago(1))
    lost = seen(Presence.RUNNING, on("n1"), dead)
    assert isinstance(decide(a_situation(a_job(spec=ELASTIC), stopping, lost)).action, Stop)


def test_a_node_failure_blames_the_node_that_recorded_it() -> None:
    exits = {0: an_exit(Outcome.SUCCEEDED), 1: an_exit(Outcome.FAILED, FailureKind.NODE)}
    ended = seen(Presence.GONE, on("n1", 0, Liveness.DEAD), on("n2", 1, Liveness.DEAD), exits=exits)
    decision = decide(a_situation(a_job(spec=a_spec(topology={"nodes": 2})), an_attempt(nodes="2"), ended))
    assert decision.blames == ("n2",)
    exits[1] = an_exit(Outcome.FAILED, FailureKind.APPLICATION)
    ended = seen(Presence.GONE, on("n1", 0, Liveness.DEAD), on("n2", 1, Liveness.DEAD), exits=exits)
    assert decide(a_situation(a_job(), an_attempt(nodes="2"), ended)).blames == ()


def test_a_lost_node_is_blamed_and_a_preemption_blames_none() -> None:
    dead = on("n1", 0, Liveness.DEAD)
    marked = an_attempt(marked_nodes=("n1",))
    assert decide(a_situation(a_job(), marked, seen(Presence.GONE, dead))).blames == ("n1",)
    cause = Failure(kind=FailureKind.PREEMPTED, message="a job of higher priority")
    assert decide(a_situation(a_job(), marked, seen(Presence.GONE, dead, cause=cause))).blames == ()


# Size


def grown(could_have: int, *, alive: int = 1, patience: float | None = 600, **fields: object) -> Decision:
    training = {"snapshots": fields.pop("snapshots", 1), "restored": fields.pop("restored", None)}
    spec = a_spec(topology={"nodes": "1:4"}, supervise={"grow_back_after_s": patience})
    replicas = [a_replica(number=number) for number in range(alive)]
    attempt = an_attempt(**{"nodes": str(alive), "asked": "1:4", "started_at": ago(601), **fields})
    room = Admission(False, f"could have {could_have} nodes", could_have)
    return decide(a_situation(a_job(spec=spec), attempt, seen(Presence.RUNNING, *replicas, **training), room))


def test_a_job_that_could_have_more_nodes_is_stopped_to_grow() -> None:
    decision = grown(3)
    assert decision.action == Stop(force=False, grows=True)
    assert decision.sentence == "stopping after a snapshot, to grow from 1 to 3 nodes"


def test_a_job_does_not_grow_without_room_or_too_early_or_if_its_owner_forbids_it() -> None:
    assert grown(1).action == Wait()
    assert grown(2, alive=2).action == Wait()
    assert grown(3, patience=None).action == Wait()
    assert grown(3, started_at=ago(599)).action == Wait()
    assert grown(3, state=AttemptState.SUBMITTED).action != Stop(force=False, grows=True)


def test_a_program_that_takes_no_snapshots_is_not_stopped_to_grow() -> None:
    assert grown(3, snapshots=0).action == Wait()
    assert grown(3, snapshots=0, restored="step-00000040-a1-g1").action == Stop(force=False, grows=True)


def test_a_group_that_was_just_resized_or_is_ending_does_not_grow() -> None:
    spec = a_spec(topology={"nodes": "1:4"})
    room = Admission(False, "could have 4 nodes", 4)
    attempt = an_attempt(nodes="1:4", started_at=ago(9999))
    resized = seen(Presence.RUNNING, ALIVE, resized_at=ago(599), snapshots=1)
    assert decide(a_situation(a_job(spec=spec), attempt, resized, room)).action == Wait()
    ending = seen(Presence.RUNNING, ALIVE, DEAD, exits={1: an_exit(Outcome.SUCCEEDED)}, snapshots=1)
    assert decide(a_situation(a_job(spec=spec), attempt, ending, room)).action == Wait()
    nobody_seen = seen(Presence.RUNNING, a_replica(Liveness.UNKNOWN), snapshots=1)
    assert decide(a_situation(a_job(spec=spec), attempt, nobody_seen, room)).action == Wait()


def scaled(asked: str, wanted: str, room: Admission | None = None, **fields: object) -> Decision:
    spec = a_spec(topology={"nodes": wanted})
    attempt = an_attempt(**{"nodes": asked, "asked": asked, **fields})
    return decide(a_situation(a_job(spec=spec), attempt, seen(Presence.RUNNING, ALIVE), room))


def test_a_running_job_is_scaled_once_the_new_size_fits() -> None:
    assert scaled("1", "2", Admission(False, "could have 2 nodes", 2)).action == Stop(force=False)
    assert scaled("1", "2", Admission(False, "could have 1 node", 1)).action == Wait()
    assert scaled("1", "2").action == Wait(), "another job waits for slots"
    assert scaled("2", "1").action == Stop(force=False), "a smaller size always fits"
    assert scaled("2", "2").action == Wait()
    assert scaled("1:2", "2").action == Wait(), "it has that size already"
    assert not isinstance(scaled("2", "1", state=AttemptState.SUBMITTED).action, Stop)


def test_a_running_job_is_not_stopped_for_a_range_that_would_give_it_no_more_nodes() -> None:
    assert scaled("1:2", "1:4", Admission(False, "could have 2 nodes", 2)).action == Wait()
    assert scaled("1:2", "1:4", Admission(False, "could have 3 nodes", 3)).action == Stop(force=False)
    assert scaled("1", "3:4", Admission(False, "could have 2 nodes", 2)).action == Wait(), "fewer than it requests"


def test_the_attempt_after_a_resize_has_the_admitted_size() -> None:
    ended = an_attempt(AttemptState.CANCELLED, nodes="1:2", ended_at=ago(1))
    s = a_situation(a_job(JobState.RECOVERING, spec=ELASTIC), ended, admission=Admission(True, "free", 3))
    assert (decide(s).action, decide(s).sentence) == (Start(3), "starting attempt 2 on 3 nodes")
    waits = replace(s, admission=Admission(False, "needs 4 slots; 3 of 4 are free"))
    assert (decide(waits).action, decide(waits).sentence) == (Wait(), "needs 4 slots; 3 of 4 are free")
    assert decide(replace(s, admission=None)).action == Wait(), "a silent cluster admits no job"


# Requests


def test_a_suspended_job_is_stopped_and_then_rests() -> None:
    s = a_situation(a_job(desired=SUSPENDED), an_attempt(), seen(Presence.RUNNING, ALIVE))
    assert (decide(s).action, decide(s).sentence) == (Stop(force=False), "stopping: suspended by its owner")
    stopped = seen(Presence.GONE, DEAD, exits={0: an_exit(Outcome.CANCELLED)})
    ended = decide(a_situation(a_job(desired=SUSPENDED), an_attempt(stopping_since=ago(1)), stopped))
    assert ended.action == EndAttempt(AttemptState.CANCELLED, JobState.SUSPENDED)


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.RECOVERING])
def test_a_job_without_an_attempt_is_suspended_at_once(state: JobState) -> None:
    ended = None if state is JobState.QUEUED else an_attempt(AttemptState.LOST, ended_at=ago(1))
    s = a_situation(a_job(state, desired=SUSPENDED), ended)
    assert decide(s).action == Finish(JobState.SUSPENDED)
    assert decide(replace(s, job=a_job(JobState.SUSPENDED, desired=SUSPENDED))).action == Wait()


def test_a_resumed_job_goes_back_into_the_queue() -> None:
    decision = decide(a_situation(a_job(JobState.SUSPENDED), an_attempt(AttemptState.CANCELLED)))
    assert (decision.action, decision.sentence) == (Finish(JobState.QUEUED), "resumed by its owner")


def test_a_suspended_job_that_is_cancelled_ends() -> None:
    job = a_job(JobState.SUSPENDED, desired=Desired(suspended=True, cancelled=True))
    assert decide(a_situation(job)).action == Finish(JobState.CANCELLED)


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.SUSPENDED])
def test_a_cancelled_retry_that_has_not_started_leaves_the_success(state: JobState) -> None:
    job, ended = a_job(state, desired=Desired(cancelled=True)), {"ended_at": ago(60)}
    assert decide(a_situation(job)).action == Finish(JobState.CANCELLED)
    assert decide(a_situation(job, an_attempt(AttemptState.FAILED, **ended))).action == Finish(JobState.CANCELLED)
    decision = decide(a_situation(job, an_attempt(AttemptState.SUCCEEDED, **ended)))
    assert decision.action == Finish(JobState.SUCCEEDED)
    assert decision.sentence == "its owner cancelled the retry; training had finished before"


def test_a_success_during_a_suspension_counts() -> None:
    finished = seen(Presence.GONE, DEAD, exits={0: an_exit(Outcome.SUCCEEDED)})
    action = decide(a_situation(a_job(desired=SUSPENDED), an_attempt(stopping_since=ago(1)), finished)).action
    assert action == EndAttempt(AttemptState.SUCCEEDED, JobState.SUCCEEDED)


def test_a_retry_request_wins_over_a_suspension() -> None:
    requested = Desired(suspended=True, retry_number=1)
    stopped = seen(Presence.GONE, DEAD, exits={0: an_exit(Outcome.CANCELLED)})
    action = decide(a_situation(a_job(desired=requested), an_attempt(stopping_since=ago(1)), stopped)).action
    assert isinstance(action, EndAttempt)
    assert action.job_state is JobState.RECOVERING


def requesting(sent: int, **fields: object) -> Decision:
    attempt: Attempt = an_attempt(**{"snapshots_told": sent, **fields})
    requested = a_job(desired=Desired(snapshot_number=2))
    return decide(a_situation(requested, attempt, seen(Presence.RUNNING, ALIVE)))


def test_a_snapshot_is_requested_once() -> None:
    assert requesting(1).action == TellAgents()
    assert requesting(2).action == Wait()
    assert isinstance(requesting(1, stopping_since=ago(1)).action, Stop)


# When to look again


def looks_again(s: Situation) -> float | None:
    at = decide(s).look_again_at
    return None if at is None else round((at - NOW).total_seconds(), 3)


def test_each_time_limit_says_when_to_look_again() -> None:
    spec = a_spec(supervise={"heartbeat_timeout_s": 30, "max_runtime_s": 100})
    s = a_situation(a_job(spec=spec), an_attempt(started_at=ago(80)), seen(Presence.RUNNING, ALIVE, progress_at=ago(1)))
    assert looks_again(s) == 20.001
    told = seen(Presence.RUNNING, ALIVE, progress_at=ago(30))
    assert looks_again(with_seen(s, told)) == 10.001
    assert looks_again(with_seen(s, replace(told, heard_since=ago(25)))) == 15.001
    stopping = an_attempt(stopping_since=ago(5))
    assert looks_again(with_attempt(s, stopping)) == 10.001
    unformed = seen(Presence.RUNNING, ALIVE, formed_at=None, progress_at=None)
    starting = a_situation(a_job(JobState.STARTING), an_attempt(started_at=ago(80)), unformed)
    assert looks_again(starting) == 520.001
    elastic = a_situation(
        a_job(spec=ELASTIC),
        an_attempt(nodes="1:2", asked="1:4", started_at=ago(80)),
        seen(Presence.RUNNING, ALIVE, resized_at=ago(60), progress_at=None),
        Admission(False, "could have 4 nodes", 4),
    )
    assert looks_again(elastic) == 540.001
    assert looks_again(a_situation(a_job(), None)) is None
    submitted = an_attempt(AttemptState.SUBMITTED, tried_at=ago(9), started_at=None)
    unseen = seen(Presence.ABSENT, formed_at=None, progress_at=None)
    assert looks_again(a_situation(a_job(JobState.STARTING), submitted, unseen, submit_timeout_s=10)) == 1.001


def test_a_job_sleeps_until_its_next_time_limit_and_no_longer_than_its_shortest_silence() -> None:
    spec = a_spec(supervise={"heartbeat_timeout_s": 60})
    s = a_situation(a_job(spec=spec), an_attempt(), seen(Presence.RUNNING, ALIVE, progress_at=ago(1)))
    assert sleeps_until(s, NOW + timedelta(seconds=9)) == NOW + timedelta(seconds=9)
    assert sleeps_until(s, None) == NOW + timedelta(seconds=70)
    unheard = seen(Presence.RUNNING, ALIVE, progress_at=None)
    assert sleeps_until(with_seen(s, unheard), None) == NOW + timedelta(seconds=70)
    done = seen(Presence.RUNNING, ALIVE, progress_at=ago(5000), phase="done")
    assert sleeps_until(with_seen(s, done), None) == NOW + timedelta(seconds=70)


def test_only_a_job_whose_changes_would_all_show_sleeps() -> None:
    pending = a_situation(a_job(JobState.STARTING), an_attempt(AttemptState.PENDING), seen(Presence.PENDING))
    running = a_situation(a_job(), an_attempt(), seen(Presence.RUNNING, ALIVE))
    assert pending.steady
    assert running.steady
    assert not with_attempt(pending, an_attempt(AttemptState.SUBMITTED)).steady
    assert not with_seen(running, seen(Presence.RUNNING, ALIVE, a_replica(Liveness.UNKNOWN, 1))).steady
    assert not with_seen(running, seen(Presence.RUNNING, ALIVE, unheard=True)).steady


def test_a_silent_job_that_waits_for_the_report_of_another_rank_does_not_sleep() -> None:
    silent = seen(Presence.RUNNING, ALIVE, progress_at=ago(5000))
    assert sleeps_until(a_situation(a_job(), an_attempt(), silent), None) is None


# Size and budgets after changes


def with_replicas(
    *replicas: ReplicaSighting,
    resized_at: datetime | None = None,
    world_size: int | None = None,
    width: int | None = 4,
) -> Situation:
    """A job of one to two nodes that has run for long and could have two."""
    job = a_job(spec=a_spec(topology={"nodes": "1:2"}, supervise={"grow_back_after_s": 60}))
    observation = seen(Presence.RUNNING, *replicas, resized_at=resized_at, snapshots=1, world_size=world_size)
    attempt = an_attempt(nodes="1:2", started_at=ago(1000), workers_per_node=width)
    return a_situation(job, attempt, observation, Admission(False, "could have 2 nodes", 2))


def test_an_unknown_replica_is_no_reason_to_grow() -> None:
    s = with_replicas(a_replica(number=0), a_replica(Liveness.UNKNOWN, number=1))
    assert decide(s).rule == "wait"


def test_a_group_that_lost_a_replica_shrinks_before_it_grows_back() -> None:
    lost = (a_replica(number=0), a_replica(Liveness.DEAD, number=1))
    assert decide(with_replicas(*lost)).rule == "wait"
    assert decide(with_replicas(*lost, resized_at=ago(59))).rule == "wait"
    assert decide(with_replicas(*lost, resized_at=ago(61))).rule == "grow_back"


def test_a_group_that_has_grown_before_waits_as_long_after_the_loss_of_a_replica() -> None:
    """It has not noticed the loss yet, so its newest change of size is the growth."""
    lost = (a_replica(number=0), a_replica(Liveness.DEAD, number=1))
    assert decide(with_replicas(*lost, resized_at=ago(500), world_size=8)).rule == "wait"
    assert decide(with_replicas(*lost, resized_at=ago(59), world_size=4)).rule == "wait"
    assert decide(with_replicas(*lost, resized_at=ago(61), world_size=4)).rule == "grow_back"
    assert decide(with_replicas(*lost, resized_at=ago(61), world_size=8, width=None)).rule == "grow_back"


def test_a_job_with_a_spent_budget_is_not_revived_by_suspend_and_resume() -> None:
    hang = Failure(kind=FailureKind.HANG, message="no rank reported anything")
    spec = a_spec(supervise={"budgets": {"hang": 0}})
    job = a_job(JobState.RECOVERING, spec=spec, desired=Desired(number=1, suspended=True), spent={"hang": 1})
    assert decide(a_situation(job, an_attempt(AttemptState.FAILED, failure=hang))).rule == "give_up"
