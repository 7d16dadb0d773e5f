"""Rules about clusters with their own queue: growth, avoided nodes and lost replicas."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.job import JobState
from orchestrator.domain.observation.node_record import Exclusion
from orchestrator.domain.observation.observation import Liveness, Observation, Presence, ReplicaSighting
from orchestrator.domain.policy.decide import decide
from orchestrator.domain.policy.decision import AvoidOnly, Decision, EndAttempt, Stop, Wait
from orchestrator.domain.policy.situation import Situation
from tests.unit.situations import a_job, a_replica, a_situation, a_spec, ago, an_attempt, an_exit, seen
from trainer.contract.exit_record import Outcome
from trainer.contract.failure import Failure, FailureKind

ELASTIC = a_spec(topology={"nodes": "1:3"}, supervise={"grow_back_after_s": 60})


def on(
    node: str | None, number: int, liveness: Liveness = Liveness.ALIVE, *, leftovers: bool = False
) -> ReplicaSighting:
    words = f"replica {number} is {liveness.value}"
    return ReplicaSighting(replica=number, liveness=liveness, evidence=words, node=node, leftovers=leftovers)


def given(observation: Observation, **sighting: object) -> Observation:
    return replace(observation, sighting=replace(observation.sighting, **sighting))  # type: ignore[arg-type]


def situation(observation: Observation, **fields: object) -> Situation:
    return a_situation(a_job(spec=ELASTIC), an_attempt(nodes="1:3"), observation, **fields)  # type: ignore[arg-type]


def small(spare: tuple[str, ...] | None) -> Observation:
    """Return an observation of two nodes, of at most three, that have trained for a while."""
    observation = seen(Presence.RUNNING, on("n1", 0), on("n2", 1), snapshots=1, resized_at=ago(100))
    return given(observation, nodes=2, spare_nodes=spare)


def test_a_job_that_got_fewer_nodes_grows_once_others_are_idle() -> None:
    grown = decide(situation(small(("n3",))))
    assert (grown.action, "from 2 to 3 nodes" in grown.sentence) == (Stop(force=False, grows=True), True)
    assert decide(situation(small(()))).action == Wait()
    assert decide(situation(small(None))).action == Wait()


def test_a_cluster_that_gave_fewer_nodes_is_asked_again_much_later() -> None:
    young, old = (replace(small(("n3",)), training=replace(small(None).training, resized_at=None)) for _ in range(2))
    attempts = [an_attempt(nodes="1:3", started_at=ago(seconds)) for seconds in (599, 601)]
    job = a_job(spec=ELASTIC)
    actions = [decide(a_situation(job, each, seen)).action for each, seen in zip(attempts, (young, old), strict=True)]
    assert actions == [Wait(), Stop(force=False, grows=True)]


def avoiding(*nodes: str) -> tuple[Exclusion, ...]:
    until = ago(-3600)
    return tuple(Exclusion(node=node, until=until, sentence=f"{node} broke") for node in nodes)


def test_an_avoided_node_is_no_room_to_grow() -> None:
    assert decide(situation(small(("n3",)), exclusions=avoiding("n3"))).action == Wait()
    assert decide(situation(small(("n3",)), exclusions=avoiding("n2"))).action == Wait()
    assert decide(situation(small(("n3", "n4")), exclusions=avoiding("n3"))).action == Stop(force=False, grows=True)


def test_a_job_grows_back_when_the_avoidance_ends_or_is_cleared() -> None:
    """Each pass reads the avoided nodes again; the attempt does not store them."""
    attempt = an_attempt(nodes="1:3", excluded_nodes=("n3",))
    job, observation = a_job(spec=ELASTIC), small(("n3",))
    assert decide(a_situation(job, attempt, observation, exclusions=avoiding("n3"))).action == Wait()
    assert decide(a_situation(job, attempt, observation)).action == Stop(force=False, grows=True)


def waiting(
    spare: tuple[str, ...] | None, *, age_s: float = 1, nodes: str = "1", strictly: bool = True, **fields: object
) -> Situation:
    """Return an attempt in a cluster's queue that avoids n1 and n2."""
    observation = given(seen(Presence.PENDING), spare_nodes=spare, avoids_strictly=strictly)
    attempt = an_attempt(
        AttemptState.PENDING, nodes=nodes, excluded_nodes=("n1", "n2"), created_at=ago(age_s), started_at=None
    )
    job = a_job(JobState.STARTING)
    return a_situation(job, attempt, observation, **{"exclusions": avoiding("n1", "n2"), **fields})  # type: ignore[arg-type]


def test_a_job_that_avoids_a_free_node_says_so_and_until_when() -> None:
    decision = decide(waiting(("n2",)))
    assert decision.action == Wait()
    assert decision.sentence.startswith(
        "it is pending; node n2 is avoided after a failure until 2026-11-20 13:00:00 UTC"
    )
    assert "`orchestrator nodes clear n2`" in decision.sentence
    assert "n1" not in decision.sentence, "it is not free: the job waits for it in any case"
    assert decision.look_again_at == waiting(()).now + timedelta(seconds=299)
    for elsewhere in (waiting(()), waiting(None), waiting(("n2",), nodes="2"), waiting(("n2",), strictly=False)):
        assert decide(elsewhere).sentence == "it is pending"


def test_the_last_free_node_that_fits_is_avoided_for_at_most_five_minutes() -> None:
    assert decide(waiting(("n2",), age_s=299)).action == Wait()
    decision = decide(waiting(("n2",), age_s=300))
    assert decision.action == AvoidOnly(("n1",))
    assert decision.sentence == "no longer avoids n2: no other node that fits became free in five minutes"
    assert decision.settles
    for else_why in (waiting((), age_s=900), waiting(None, age_s=900), waiting(("n2",), age_s=900, nodes="2")):
        assert decide(else_why).action == Wait(), "the avoidance is not what keeps it waiting"
    assert decide(waiting(("n2",), age_s=900, strictly=False)).action == Wait(), "a request that the cluster may break"


def test_a_waiting_job_no_longer_avoids_a_cleared_node() -> None:
    for spare in (None, (), ("n2",)):
        decision = decide(waiting(spare, exclusions=avoiding("n1")))
        assert decision.action == AvoidOnly(("n1",))
        assert decision.sentence == "no longer avoids n2: its cool-down is over or its record was cleared"
    assert decide(waiting((), exclusions=())).action == AvoidOnly(())
    assert decide(waiting((), exclusions=(), strictly=False)).action == Wait()


def test_a_running_job_is_not_moved_to_another_node() -> None:
    running = given(seen(Presence.RUNNING, a_replica()), avoids_strictly=True)
    attempt = an_attempt(excluded_nodes=("n1", "n2"), created_at=ago(900))
    assert decide(a_situation(a_job(), attempt, running)).action == Wait()


def test_the_next_look_is_when_the_job_may_grow() -> None:
    early = replace(small(("n3",)), training=replace(small(None).training, resized_at=ago(10)))
    decision = decide(situation(early))
    assert decision.action == Wait()
    assert decision.look_again_at is not None
    assert 49 < (decision.look_again_at - situation(early).now).total_seconds() < 51


def test_a_replica_that_the_cluster_never_gave_is_not_lost() -> None:
    ended = given(seen(Presence.RUNNING, exits={0: an_exit(Outcome.SUCCEEDED), 1: an_exit(Outcome.SUCCEEDED)}), nodes=2)
    done = decide(situation(ended))
    assert done.action == EndAttempt(AttemptState.SUCCEEDED, JobState.SUCCEEDED)
    assert isinstance(decide(situation(given(ended, nodes=None))).action, Wait)


def lost(*replicas: ReplicaSighting, kind: FailureKind | None = None) -> Decision:
    cause = None if kind is None else Failure(kind=kind, message=f"as Slurm says: {kind.value}")
    return decide(situation(given(seen(Presence.GONE, *replicas), cause=cause)))


def test_leftovers_of_a_lost_attempt_are_ended_with_the_clusters_reason_and_blame_its_node() -> None:
    gone = on("n1", 0, Liveness.DEAD, leftovers=True)
    by_node, by_hand, unsaid = (lost(gone, kind=kind) for kind in (FailureKind.NODE, FailureKind.PREEMPTED, None))
    for decision, kind, blames in (
        (by_node, FailureKind.NODE, ("n1",)),
        (by_hand, FailureKind.PREEMPTED, ()),
        (unsaid, FailureKind.NODE, ("n1",)),
    ):
        assert isinstance(decision.action, Stop)
        assert decision.action.force
        assert decision.action.failure is not None
        assert (decision.action.failure.kind, decision.blames) == (kind, blames)


def test_a_machine_that_died_first_is_the_cause_of_a_stop_of_the_rest() -> None:
    """The others lost the store that it held, recorded that, and were ended before the cluster noticed."""
    attempt = an_attempt(nodes="1:3", stopping_since=ago(5))
    record = an_exit(Outcome.FAILED, FailureKind.RENDEZVOUS)
    dead = (on(None, 1, Liveness.DEAD), on(None, 2, Liveness.DEAD))

    def ended(cause: Failure | None) -> Decision:
        gone = seen(Presence.GONE, on("n1", 0, Liveness.DEAD), *dead, exits={1: record, 2: record}, cause=cause)
        return decide(a_situation(a_job(spec=ELASTIC), attempt, gone))

    known, unknown = ended(Failure(kind=FailureKind.NODE, message="n1 is down")), ended(None)
    assert isinstance(known.action, EndAttempt)
    assert (known.action.state, known.blames) == (AttemptState.LOST, ("n1",))
    assert isinstance(unknown.action, EndAttempt)
    assert (unknown.action.state, unknown.blames) == (AttemptState.FAILED, ())


def test_an_attempt_that_was_stopped_for_a_preemption_ends_preempted() -> None:
    failure = Failure(kind=FailureKind.PREEMPTED, message="it was requeued by somebody else")
    attempt = an_attempt(nodes="1:3", stopping_since=ago(5), failure=failure)
    gone = seen(Presence.GONE, on(None, 0, Liveness.DEAD))
    ended = decide(a_situation(a_job(spec=ELASTIC), attempt, gone))
    assert ended.action == EndAttempt(AttemptState.PREEMPTED, JobState.RECOVERING, failure)


def test_an_agent_that_vanishes_during_a_stop_is_no_loss_unless_the_cluster_lost_its_machine() -> None:
    hang, node = (Failure(kind=kind, message=kind.value) for kind in (FailureKind.HANG, FailureKind.NODE))

    def ended(failure: Failure | None, cause: Failure | None) -> tuple[AttemptState, Failure | None]:
        attempt = an_attempt(stopping_since=ago(5), failure=failure)
        gone = seen(Presence.GONE, on("n1", 0, Liveness.DEAD), cause=cause)
        action = decide(a_situation(a_job(), attempt, gone)).action
        assert isinstance(action, EndAttempt)
        return action.state, action.failure

    assert ended(None, None) == (AttemptState.CANCELLED, None)
    assert ended(None, node) == (AttemptState.LOST, node)
    assert ended(hang, node) == (AttemptState.FAILED, hang)


def test_a_notice_keeps_the_clusters_reason_from_before_the_stop() -> None:
    evicted = Failure(kind=FailureKind.PREEMPTED, message="it was evicted")
    exits, alive = {0: an_exit(Outcome.PREEMPTED), 1: an_exit(Outcome.PREEMPTED)}, (on("n1", 0), on("n2", 1))
    noticed = seen(Presence.RUNNING, *alive, exits=exits, cause=evicted)
    stopped = decide(a_situation(a_job(), an_attempt(nodes="2"), noticed))
    assert stopped.action == Stop(force=False, failure=evicted)
    assert stopped.sentence == "it was evicted; stopping the remaining processes of the attempt"
    # After that the cluster may report nothing, or an effect of the stop.
    attempt = an_attempt(nodes="2", stopping_since=ago(1), failure=evicted)
    gone = tuple(replace(one, liveness=Liveness.DEAD) for one in alive)
    for cause in (None, Failure(kind=FailureKind.PREEMPTED, message="its Job was deleted")):
        still = decide(a_situation(a_job(), attempt, seen(Presence.RUNNING, *alive, exits=exits, cause=cause)))
        assert (still.action, still.sentence) == (stopped.action, stopped.sentence)
        ended = decide(a_situation(a_job(), attempt, seen(Presence.GONE, *gone, exits=exits, cause=cause)))
        assert ended.action == EndAttempt(AttemptState.PREEMPTED, JobState.RECOVERING, evicted)


def test_an_unexplained_end_keeps_the_clusters_reason_from_before_the_stop() -> None:
    memory = Failure(kind=FailureKind.HOST_OOM, message="it used more memory than its limit")
    exits = {0: an_exit(Outcome.FAILED, FailureKind.UNKNOWN)}
    noticed = seen(Presence.RUNNING, on("n1", 0), on("n2", 1), exits=exits, cause=memory)
    assert decide(a_situation(a_job(), an_attempt(nodes="2"), noticed)).action == Stop(force=False, failure=memory)


def test_a_record_of_another_failure_wins_over_a_notice() -> None:
    exits = {0: an_exit(Outcome.FAILED, FailureKind.APPLICATION)}
    evicted = Failure(kind=FailureKind.PREEMPTED, message="it was evicted")
    noticed = seen(Presence.RUNNING, on("n1", 0), on("n2", 1), exits=exits, cause=evicted)
    assert decide(a_situation(a_job(), an_attempt(nodes="2"), noticed)).action == Stop(force=False)
