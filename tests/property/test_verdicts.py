"""The verdict names the injected fault, for any delay and order of its signs.

One fault is injected into a running attempt. Each sign of it (exit records, the scheduler's cause, lost peers) becomes
visible after its own delay. The policy decides at every step, and its stops cause further signs. If a sign of the fault
was visible before the end, the verdict is that fault. Otherwise it may also be a lost peer. It is never another fault,
and it is "cancelled" only if the owner cancelled the job.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.domain.job.attempt import Attempt, AttemptState
from orchestrator.domain.job.job import Desired, Job
from orchestrator.domain.observation.observation import Liveness, Observation, Presence, ReplicaSighting
from orchestrator.domain.observation.watched import Watched
from orchestrator.domain.policy.decide import decide
from orchestrator.domain.policy.decision import EndAttempt, Stop
from orchestrator.domain.policy.situation import Situation
from tests.examples import examples
from tests.unit.situations import NOW, a_job, a_replica, a_spec, an_attempt, an_exit, seen
from trainer.contract.clock import render_time
from trainer.contract.exit_record import ExitRecord, Outcome
from trainer.contract.failure import Failure, FailureKind

STEP_S, LAST_S, STOP_TIMEOUT_S = 5, 1200, 15.0
DELAYS_S = st.sampled_from([0, 5, 20, 60, 200])
EXPLAINS = {
    "program": {FailureKind.APPLICATION},
    "killed": {FailureKind.UNKNOWN},
    "out of memory": {FailureKind.HOST_OOM},
    "preempted": {FailureKind.PREEMPTED},
    "power": {FailureKind.NODE},
    "cut": {FailureKind.NODE},
    "agent": {FailureKind.NODE},
}
LOST_PEER = Failure(kind=FailureKind.RENDEZVOUS, message="the rendezvous store is lost")


@dataclass
class Scene:
    """What is visible of an attempt. `plan` has the later signs, each with its time."""

    nodes: int
    least: int
    delays: list[int]
    now_s: int = 0
    exits: dict[int, ExitRecord] = field(default_factory=dict)
    replicas: dict[int, ReplicaSighting] = field(default_factory=dict)
    missed: set[int] = field(default_factory=set)
    cause: Failure | None = None
    generation: int = 1
    plan: list[tuple[int, Callable[[], None]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.replicas = {number: replace(a_replica(number=number), node=f"n{number}") for number in range(self.nodes)}

    def later(self, sign: Callable[[], None], *, after_s: int = 0) -> None:
        delay_s = self.delays.pop() if self.delays else 0
        self.plan.append((self.now_s + after_s + delay_s, sign))

    def advance(self) -> None:
        self.now_s += STEP_S
        due = [each for each in self.plan if each[0] <= self.now_s]
        self.plan = [each for each in self.plan if each[0] > self.now_s]
        for _, sign in sorted(due, key=lambda each: each[0]):
            sign()

    def records(self, number: int, outcome: Outcome, failure: Failure | None = None, *, after_s: int = 0) -> None:
        """The agent ends now. It is silent until its record becomes visible."""
        at = render_time(NOW + timedelta(seconds=self.now_s + after_s))
        generation = self.generation

        def end() -> None:
            if number not in self.exits:
                record = replace(an_exit(outcome, at=at), failure=failure, generation=generation)
                self.exits[number] = record
                self.look(number, Liveness.DEAD)

        self.look(number, Liveness.UNKNOWN)
        self.later(end, after_s=after_s)

    def look(self, number: int, liveness: Liveness, *, unreachable: bool | None = None) -> None:
        known = self.replicas[number]
        silent = known.node_unreachable if unreachable is None else unreachable
        evidence = f"replica {number} is {liveness.value}"
        self.replicas[number] = replace(known, liveness=liveness, node_unreachable=silent, evidence=evidence)

    def observation(self) -> Observation:
        said = {one.liveness for one in self.replicas.values()}
        presence = Presence.RUNNING if Liveness.ALIVE in said else Presence.UNKNOWN
        presence = Presence.GONE if said == {Liveness.DEAD} else presence
        observation = seen(
            presence,
            *self.replicas.values(),
            exits=dict(self.exits),
            cause=self.cause,
            generation=self.generation,
            progress_at=NOW + timedelta(seconds=self.now_s),
        )
        return replace(observation, missed=frozenset(self.missed))


def inject(scene: Scene, fault: str, victim: int) -> None:
    """Inject the fault, and plan its signs and the reactions of the other replicas."""
    others = [number for number in range(scene.nodes) if number != victim]
    match fault:
        case "program":
            scene.records(victim, Outcome.FAILED, Failure(kind=FailureKind.APPLICATION, message="KeyError"))
        case "killed":
            scene.records(victim, Outcome.FAILED, Failure(kind=FailureKind.UNKNOWN, message="killed by SIGKILL"))
        case "out of memory":
            scene.records(victim, Outcome.FAILED, Failure(kind=FailureKind.UNKNOWN, message="killed by SIGKILL"))
            scene.cause = Failure(kind=FailureKind.HOST_OOM, message="OOMKilled")
        case "preempted":
            scene.records(victim, Outcome.PREEMPTED)
        case "agent":
            scene.later(lambda: scene.look(victim, Liveness.DEAD))
        case "power" | "cut":
            scene.later(lambda: silence(scene, victim))
            scene.later(lambda: scene.missed.add(victim))
            scene.later(lambda: scene.look(victim, Liveness.DEAD, unreachable=True), after_s=300)
            if fault == "cut" and others:
                scene.records(victim, Outcome.FAILED, LOST_PEER, after_s=60)
    continues = fault in ("preempted", "power", "cut", "agent") and len(others) >= scene.least
    if continues:
        scene.later(lambda: setattr(scene, "generation", 2))
        return
    for number in others:  # they cannot continue, and report that
        scene.records(number, Outcome.FAILED, LOST_PEER, after_s=30)
        scene.look(number, Liveness.ALIVE)


def silence(scene: Scene, victim: int) -> None:
    if victim not in scene.exits:
        scene.look(victim, Liveness.UNKNOWN, unreachable=True)


def stop(scene: Scene, *, force: bool, reaches: set[int]) -> None:
    """Stop the replicas that can be reached. By force they leave no record."""
    for number in reaches - scene.exits.keys():
        if force:
            scene.look(number, Liveness.DEAD)
        elif scene.replicas[number].liveness is Liveness.ALIVE:
            scene.records(number, Outcome.CANCELLED)
            scene.look(number, Liveness.ALIVE)


def play(scene: Scene, job: Job, fault: str, victim: int, cancel_at_s: int | None) -> EndAttempt | None:
    """The end that the policy decides. None if the attempt continues."""
    nodes = str(scene.nodes) if scene.nodes == scene.least else f"{scene.least}:{scene.nodes}"
    attempt: Attempt = an_attempt(AttemptState.RUNNING, nodes=nodes, started_at=NOW, created_at=NOW)
    reaches = set(range(scene.nodes)) - ({victim} if fault in ("power", "cut", "agent") else set())
    inject(scene, fault, victim)
    while scene.now_s < LAST_S:
        scene.advance()
        now = NOW + timedelta(seconds=scene.now_s)
        if cancel_at_s is not None and scene.now_s >= cancel_at_s:
            job = replace(job, desired=Desired(cancelled=True))
        watched = Watched(attempt, scene.observation())
        action = decide(
            Situation(now=now, job=job, attempt=attempt, live=watched, admission=None, stop_timeout_s=STOP_TIMEOUT_S)
        ).action
        if isinstance(action, EndAttempt):
            return action
        if isinstance(action, Stop):
            if attempt.stopping_since is None:
                attempt = replace(attempt, stopping_since=now, failure=action.failure)
                stop(scene, force=False, reaches=reaches)
            if action.force:
                stop(scene, force=True, reaches=reaches)
    assert attempt.stopping_since is None, "the stop was never completed"
    return None


@settings(max_examples=examples(250, 5000), derandomize=True, database=None)
@given(
    fault=st.sampled_from(sorted(EXPLAINS)),
    nodes=st.sampled_from([(1, 1), (2, 2), (3, 3), (1, 2), (2, 3), (1, 3)]),
    victim=st.integers(0, 2),
    delays=st.lists(DELAYS_S, min_size=8, max_size=8),
    cancel_at_s=st.sampled_from([None, None, None, 10, 100]),
)
def test_the_verdict_names_the_injected_fault(
    fault: str, nodes: tuple[int, int], victim: int, delays: list[int], cancel_at_s: int | None
) -> None:
    least, most = nodes
    victim %= most
    scene = Scene(most, least, list(delays))
    job = a_job(spec=a_spec(topology={"nodes": str(most) if least == most else f"{least}:{most}"}))
    end = play(scene, job, fault, victim, cancel_at_s)
    spared = fault in ("preempted", "power", "cut", "agent") and most - 1 >= least
    if end is None:
        assert spared, "the attempt is over but continues"
        return
    if end.failure is None:
        assert cancel_at_s is not None, f"{fault}: cancelled without a request"
        return
    assert not spared or cancel_at_s is not None, f"{fault}: survivors were ended for {end.failure}"
    is_visible = victim in scene.exits
    if fault in ("power", "cut", "agent"):
        is_visible = scene.replicas[victim].node_unreachable
    possible = EXPLAINS[fault] if is_visible else {*EXPLAINS[fault], FailureKind.RENDEZVOUS}
    assert end.failure.kind in possible, end.failure
