"""One pass: what it observes, which jobs it decides on, and what an error with one job does to the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from orchestrator.domain.errors import BackendBusy, BackendUnavailable
from orchestrator.domain.job.attempt import AttemptKey, AttemptState
from orchestrator.domain.job.job import Desired, JobState
from orchestrator.domain.observation.membership import Members
from orchestrator.domain.observation.node_record import NodeFailure
from orchestrator.domain.observation.observation import (
    Liveness,
    Observation,
    Presence,
    ReplicaSighting,
    Sighting,
    Training,
)
from orchestrator.domain.policy.decision import Decision, Wait
from orchestrator.domain.policy.situation import Situation
from orchestrator.domain.queueing.admission import Limits
from orchestrator.ports.cluster import Backend
from orchestrator.ports.supervision import Change, Supervised
from orchestrator.simulator.memory_store import MemoryStore
from orchestrator.simulator.memory_supervision import MemorySupervisorStore
from orchestrator.simulator.virtual_clock import VirtualClock
from orchestrator.supervisor.act import Actor
from orchestrator.supervisor.observe import Facts, Observer
from orchestrator.supervisor.reconcile import PassSettings, Reconciler
from tests.builders import NOW, make_attempt, make_batch, make_event, make_job, make_progress, make_spec
from tests.fakes.memory_leases import MemoryLeaseStore
from trainer.contract.failure import FailureKind
from trainer.contract.progress import Progress

KEY = AttemptKey("job-1", 1)
HOUR = timedelta(hours=1)


class World:
    """A fake cluster, journals and actor that record the calls to them."""

    def __init__(self, *, by_reports_alone: bool = False) -> None:
        self.clock, self.memory = VirtualClock(), MemoryStore()
        lease = MemoryLeaseStore(self.memory, self.clock).acquire("local", "test", ttl_s=10**6)
        assert lease is not None
        self.store = MemorySupervisorStore(self.memory, self.clock, lease)
        self.observer = Observer(
            "local",
            self.store,
            cast(Backend, self),
            self,
            self.clock,
            by_reports_alone=by_reports_alone,
            monotonic=self.clock.monotonic,
        )
        self.overlooked = 0
        self.reconciler = Reconciler(
            self.store,
            self.observer,
            cast(Actor, self),
            self.clock,
            PassSettings(limits=Limits(), stop_timeout_s=15),
            overlooked=self._count,
        )
        self.presence: Presence | None = Presence.RUNNING
        self.free = 4
        self.unread: dict[AttemptKey, str] = {}
        self.acted: list[tuple[str, Decision]] = []
        self.excluded: list[str] = []
        self.trouble: dict[str, Exception] = {}
        self.before_answer: Callable[[], None] = lambda: None

    def add(self, job_id: str = "job-1", attempt: AttemptState | None = None, **fields: Any) -> None:
        job = make_job(job_id, created_at=self.clock.now(), **fields)
        self.memory.add(job, idempotency_key=None, digest="", event=make_event())
        if attempt is not None:
            self.store.apply(Change(job=job, attempt=make_attempt(job_id, state=attempt), events=[]))

    def reconcile(self) -> datetime | None:
        again = self.reconciler.reconcile()
        assert self.reconciler.answered == (self.presence is not None)
        return again

    def look_again(self) -> dict[str, str]:
        """Run a pass. Returns the rules that decided on the jobs that it looked at."""
        self.acted.clear()
        self.reconcile()
        return self.rules

    def report(self, *lines: tuple[int, Progress]) -> None:
        self.memory.ingest([make_batch(progress=list(lines), reported=True)], arrived_at=self.clock.now())

    def look_for(self, seconds: int, *, reporting: bool = False) -> list[Observation]:
        """Observe once a second. Returns each observation of the first job's attempt."""
        seen = []
        for _ in range(seconds):
            if reporting:
                self.report()
            observation = self.look()
            assert observation is not None
            seen.append(observation)
            self.clock.advance(1)
        return seen

    def look(self) -> Observation | None:
        """Observe once. Returns the observation of the first job's attempt."""
        facts = self.observer.observe()
        return self.observer.look(self.store.supervised("local", {"job-1"})[0], facts)

    # Backend and journals, for the Observer

    def observe(self, launched: Mapping[AttemptKey, int]) -> Mapping[AttemptKey, Sighting]:
        if self.presence is None:
            raise BackendUnavailable("no answer")
        answer = {key: Sighting(key=key, presence=self.presence, evidence="seen") for key in launched}
        self.before_answer()
        return answer

    def slots(self) -> int | None:
        return self.free

    def collect(self, launched: Mapping[AttemptKey, int], must_read: Set[AttemptKey]) -> Mapping[AttemptKey, str]:
        return self.unread

    def _count(self) -> None:
        self.overlooked += 1

    # The actor, for the Reconciler

    def act(self, s: Situation, decision: Decision, exclusions: Sequence[Any]) -> None:
        if s.job.id in self.trouble:
            raise self.trouble[s.job.id]
        self.acted.append((s.job.id, decision))
        self.excluded += [one.node for one in exclusions]

    @property
    def rules(self) -> dict[str, str]:
        """The rule that decided, by job."""
        return {job_id: decision.rule for job_id, decision in self.acted}


@pytest.fixture
def world() -> World:
    return World()


def test_a_pass_decides_on_each_job_that_is_not_at_rest(world: World) -> None:
    world.add("job-1", state=JobState.QUEUED)
    world.add("job-2", AttemptState.RUNNING, state=JobState.STARTING)
    world.add("job-3", AttemptState.LOST, state=JobState.RECOVERING)
    world.add("job-4", state=JobState.SUCCEEDED)
    assert world.reconcile() is None
    assert world.rules == {"job-1": "start", "job-2": "wait", "job-3": "recover"}


def test_an_attempt_that_began_after_the_observation_is_left_for_the_next_pass(world: World) -> None:
    """Another service started it just before its lease expired, so this one has not observed it."""
    world.before_answer = lambda: world.add("job-1", AttemptState.SUBMITTED, state=JobState.STARTING)
    assert world.reconcile() is None
    assert world.acted == []


def test_an_ended_attempt_has_no_observation(world: World) -> None:
    """Even if it was live when the cluster was asked."""
    world.add("job-1", AttemptState.RUNNING, state=JobState.RUNNING)

    def end() -> None:
        job = replace(world.memory.get("job-1"), state=JobState.RECOVERING)
        world.store.apply(Change(job=job, attempt=make_attempt(state=AttemptState.LOST), events=[]))

    world.before_answer = end
    assert world.look() is None


def test_a_job_without_an_attempt_has_no_observation(world: World) -> None:
    world.add("job-1")
    assert world.look() is None


@pytest.mark.parametrize(
    ("nodes", "training", "alive", "asked"),
    [
        ("1:2", {"formed_at": NOW}, False, True),
        ("1:2", {"formed_at": NOW, "resized_at": NOW}, True, True),
        ("1:2", {"formed_at": NOW}, True, False),
        ("1:2", {}, False, False),
        ("1:2", {"resized_at": NOW}, False, False),
        ("2", {"formed_at": NOW}, False, False),
    ],
)
def test_members_are_read_only_of_a_group_that_misses_or_missed_a_replica(
    world: World, monkeypatch: pytest.MonkeyPatch, nodes: str, training: dict[str, Any], alive: bool, asked: bool
) -> None:
    stored = Members(reported={0: 1, 1: 1})
    monkeypatch.setattr(world.store, "members", lambda key, gone: stored if gone == ([] if alive else [1]) else None)
    world.add()
    job, attempt = world.memory.get("job-1"), make_attempt(state=AttemptState.RUNNING, nodes=nodes)
    replicas = tuple(
        ReplicaSighting(replica=number, liveness=liveness, evidence="seen")
        for number, liveness in enumerate((Liveness.ALIVE, Liveness.ALIVE if alive else Liveness.DEAD))
    )
    sighting = Sighting(key=KEY, presence=Presence.RUNNING, evidence="seen", replicas=replicas)
    facts = Facts(sightings={KEY: sighting}, dependencies={}, exclusions=(), silence=None, slots=4)
    supervised = Supervised(job=job, shared_spec=job.spec, attempt=attempt, training=Training(**training), exits={})
    seen = world.observer.look(supervised, facts)
    assert seen is not None
    assert seen.members == (stored if asked else Members())


def test_while_the_cluster_does_not_answer_nothing_starts_or_ends(world: World) -> None:
    world.add("job-1", state=JobState.QUEUED)
    world.add("job-2", AttemptState.RUNNING, state=JobState.RUNNING)
    world.presence = None
    with capture_logs():
        world.reconcile()
    assert [(job_id, decision.action) for job_id, decision in world.acted] == [("job-1", Wait()), ("job-2", Wait())]


def test_a_marked_node_is_excluded_until_its_cool_down_ends(world: World) -> None:
    world.add("job-1", AttemptState.LOST, state=JobState.RECOVERING)
    mark = NodeFailure(
        cluster="local", node="n7", at=world.clock.now(), key=KEY, kind=FailureKind.NODE, sentence="it died"
    )
    world.store.apply(Change(job=world.memory.get("job-1"), attempt=None, events=[], node_failures=[mark]))
    world.reconcile()
    assert world.excluded == ["n7"]
    world.excluded.clear()
    world.clock.advance(3600)
    world.reconcile()
    assert world.excluded == []


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        (BackendBusy("the queue is full"), "waits: the queue is full"),
        (BackendUnavailable("no answer"), "cannot continue now: no answer"),
        (RuntimeError("a defect"), "cannot continue now: a defect"),
    ],
)
def test_an_error_with_one_job_is_its_reason_and_does_not_affect_other_jobs(
    world: World, trouble: Exception, reason: str
) -> None:
    world.add("job-1", state=JobState.QUEUED)
    world.add("job-2", state=JobState.QUEUED)
    world.trouble = {"job-1": trouble}
    with capture_logs():
        assert world.reconcile() is None
    assert world.memory.get("job-1").reason == reason
    assert world.rules == {"job-2": "start"}


def test_an_error_does_not_hide_that_an_attempt_is_being_stopped(world: World) -> None:
    world.add("job-1", AttemptState.RUNNING, state=JobState.RUNNING, desired=Desired(number=1, cancelled=True))
    world.trouble = {"job-1": BackendUnavailable("no answer")}
    with capture_logs():
        world.reconcile()
    assert world.memory.get("job-1").reason == "stopping: cancelled by its owner; cannot continue now: no answer"


def test_a_decision_that_only_changes_the_store_is_followed_by_a_pass_at_once(world: World) -> None:
    world.add("job-1", state=JobState.QUEUED, desired=Desired(number=1, cancelled=True))
    assert world.reconcile() == world.clock.now() + timedelta(milliseconds=10)
    assert world.rules == {"job-1": "finish_cancelled"}


def test_a_job_that_ended_since_it_was_woken_is_left_alone(world: World) -> None:
    world.add("job-1", state=JobState.QUEUED)
    job = replace(world.memory.get("job-1"), state=JobState.CANCELLED)
    world.before_answer = lambda: world.store.apply(Change(job=job, attempt=None, events=[]))
    world.reconcile()
    assert world.acted == []


@pytest.fixture
def apart() -> World:
    """A cluster that shares no files, with an attempt whose agents have just started."""
    world = World(by_reports_alone=True)
    world.add("job-1", state=JobState.STARTING, spec=make_spec(supervise=_IMPATIENT))
    attempt = make_attempt(state=AttemptState.RUNNING, started_at=world.clock.now())
    world.store.apply(Change(job=world.memory.get("job-1"), attempt=attempt, events=[]))
    return world


_IMPATIENT = {"startup_timeout_s": 60, "heartbeat_timeout_s": 60}


def test_without_any_report_the_service_never_starts_to_listen(apart: World) -> None:
    began = apart.clock.now()
    looks = apart.look_for(100)
    assert [one.heard_since for one in looks] == [began + timedelta(seconds=n) for n in range(100)]
    assert all(one.unheard for one in looks)


def test_the_service_listens_from_the_first_report_on_while_reports_come(apart: World) -> None:
    last = apart.look_for(20)[-1].heard_since
    assert {(one.heard_since, one.unheard) for one in apart.look_for(100, reporting=True)} == {(last, False)}


def test_more_than_30_seconds_without_a_report_end_the_listening(apart: World) -> None:
    (before,) = apart.look_for(1, reporting=True)
    heard_at = apart.clock.now() - timedelta(seconds=1)
    looks = apart.look_for(40)
    assert {(one.heard_since, one.unheard) for one in looks[:30]} == {(before.heard_since, False)}
    assert looks[29].training.heard_at == heard_at
    closed = [heard_at + timedelta(seconds=n) for n in range(31, 41)]
    assert [(one.heard_since, one.unheard) for one in looks[30:]] == [(now, True) for now in closed]


def test_a_clock_that_was_set_back_starts_the_listening_again(world: World) -> None:
    """Otherwise no silence would be long enough for an hour, because earlier reports are in the future."""
    world.add(attempt=AttemptState.RUNNING, state=JobState.RUNNING)
    world.look_for(5)
    world.clock.advance(-3600)
    back = world.clock.now()
    assert {seen.heard_since for seen in world.look_for(5)} == {back}


def test_with_shared_files_no_reports_are_needed(world: World) -> None:
    world.add("job-1", AttemptState.RUNNING, state=JobState.RUNNING)
    began = world.clock.now()
    assert {(one.heard_since, one.unheard) for one in world.look_for(100)} == {(began, False)}


def passes(world: World, seconds: int, *, reporting: bool = False) -> set[str]:
    """The rules that decide on the first job during this time."""
    world.acted.clear()
    for _ in range(seconds):
        if reporting:
            world.report()
        world.reconcile()
        world.clock.advance(1)
    return {decision.rule for _, decision in world.acted}


def test_a_start_without_reports_is_not_stopped_as_slow(apart: World) -> None:
    assert passes(apart, 300) == {"wait"}
    assert apart.memory.get("job-1").reason.startswith("no reports from its agents since they started; ")
    assert passes(apart, 59, reporting=True) == {"wait"}
    assert apart.memory.get("job-1").reason == "the agents are running, the workers are starting"
    assert "stop_slow_start" in passes(apart, 3, reporting=True), "its agents report, but no group has formed"


def test_training_whose_reports_stop_is_not_stopped_as_a_hang(apart: World) -> None:
    apart.report((10, make_progress(1)))
    assert passes(apart, 5, reporting=True) == {"note_running"}
    apart.store.apply(Change(job=replace(apart.memory.get("job-1"), state=JobState.RUNNING), attempt=None, events=[]))
    assert passes(apart, 1000) == {"wait"}
    assert passes(apart, 70, reporting=True) == {"wait"}
    assert "stop_stalled" in passes(apart, 10, reporting=True), "its agents report, but no step"


def test_jobs_that_wait_for_a_silent_cluster_get_its_error_as_reason(world: World) -> None:
    world.add("job-1", state=JobState.QUEUED)
    world.add("job-2", AttemptState.PENDING, state=JobState.STARTING)
    world.add("job-3", AttemptState.LOST, state=JobState.RECOVERING)
    world.add("job-4", AttemptState.RUNNING, state=JobState.RUNNING)
    world.presence = None
    with capture_logs():
        world.reconcile()
    told = {job_id: decision.sentence for job_id, decision in world.acted}
    assert {job_id for job_id, sentence in told.items() if sentence == "waits: no answer"} == {
        "job-1",
        "job-2",
        "job-3",
    }


# What wakes a job that sleeps


@pytest.fixture
def asleep(world: World) -> World:
    """A cluster of four slots: a job that trains on all of them, and one that waits."""
    world.add("job-1", state=JobState.RUNNING, spec=make_spec(topology={"nodes": 4}))
    attempt = make_attempt(state=AttemptState.RUNNING, started_at=world.clock.now(), nodes="4", workers_per_node=1)
    world.store.apply(Change(job=world.memory.get("job-1"), attempt=attempt, events=[]))
    world.report((10, make_progress(1)))
    world.add("job-2", state=JobState.QUEUED)
    world.reconcile()
    world.look_again()
    assert world.observer.roster.asleep == {"job-1", "job-2"}
    return world


def test_nothing_wakes_a_quiet_job(asleep: World) -> None:
    asleep.clock.advance(20)
    assert asleep.look_again() == {}
    asleep.report((20, make_progress(2)))
    assert asleep.look_again() == {}, "a line of progress wakes nobody"


def test_without_a_change_no_job_is_admitted_again(asleep: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.supervisor.reconcile.admit", None)
    assert asleep.look_again() == {}
    asleep.free = 3
    with pytest.raises(TypeError):
        asleep.look_again()


def test_another_sight_of_its_attempt_wakes_a_job(asleep: World) -> None:
    asleep.presence = Presence.GONE
    assert set(asleep.look_again()) == {"job-1"}


def test_an_unreadable_folder_wakes_a_job(asleep: World) -> None:
    asleep.unread = {KEY: "the disk failed"}
    assert asleep.look_again() == {"job-1": "wait"}
    asleep.unread = {}
    assert asleep.look_again() == {"job-1": "wait"}
    assert asleep.look_again() == {}


def test_another_place_in_the_queue_wakes_a_job(asleep: World) -> None:
    asleep.free = 8
    assert asleep.look_again() == {"job-2": "start"}


def test_a_dependency_that_ends_wakes_a_job(asleep: World) -> None:
    first = make_job("first", spec=make_spec(cluster="other"), created_at=asleep.clock.now())
    asleep.memory.add(first, idempotency_key=None, digest="", event=make_event())
    asleep.free = 8
    asleep.add("job-3", state=JobState.QUEUED, spec=make_spec(after=["first"]))
    asleep.acted.clear()
    asleep.reconcile()
    asleep.observer.roster.sleep("job-2", until=asleep.clock.now() + HOUR, now=asleep.clock.now())
    assert asleep.look_again() == {}
    asleep.memory.tables.put_job(replace(first, state=JobState.SUCCEEDED))
    assert asleep.look_again() == {"job-3": "start"}


def test_another_node_to_avoid_wakes_all_jobs(asleep: World) -> None:
    mark = NodeFailure(
        cluster="local", node="n7", at=asleep.clock.now(), key=KEY, kind=FailureKind.NODE, sentence="it died"
    )
    asleep.store.apply(Change(job=asleep.memory.get("job-1"), attempt=None, events=[], node_failures=[mark]))
    assert set(asleep.look_again()) == {"job-1", "job-2"}
    assert asleep.look_again() == {}
    asleep.clock.advance(3600)
    asleep.observer.roster.sleep("job-1", until=asleep.clock.now() + HOUR, now=asleep.clock.now())
    assert set(asleep.look_again()) == {"job-1", "job-2"}, "its cool-down is over"


def test_a_silent_cluster_wakes_all_jobs(asleep: World) -> None:
    asleep.presence = None
    with capture_logs():
        assert set(asleep.look_again()) == {"job-1", "job-2"}
        assert set(asleep.look_again()) == {"job-1", "job-2"}, "until it answers"
    asleep.presence = Presence.RUNNING
    assert set(asleep.look_again()) == {"job-1", "job-2"}
    assert asleep.look_again() == {}


@pytest.mark.parametrize("seconds", [31, -1])
def test_a_pause_of_the_service_wakes_all_jobs(asleep: World, seconds: int) -> None:
    asleep.clock.advance(seconds)
    assert set(asleep.look_again()) == {"job-1", "job-2"}


def test_a_silence_that_is_a_hang_sooner_than_was_known_is_noticed(asleep: World) -> None:
    """Lines teach how long a step takes, but wake nobody."""
    for step in range(2, 40):
        asleep.clock.advance(1)
        asleep.report((10 * step, make_progress(step, seconds=step)))
        asleep.look_again()
    began = asleep.clock.now()
    rules: set[str] = set()
    while "stop_stalled" not in rules:
        asleep.clock.advance(1)
        rules |= set(asleep.look_again().values())
        assert asleep.clock.now() - began < timedelta(seconds=140), "limit 120 s, and 10 s for the agents"


def test_a_change_that_only_a_check_finds_is_counted(asleep: World) -> None:
    asleep.memory.tables.put_job(replace(asleep.memory.get("job-2"), desired=Desired(number=1, cancelled=True)))
    for _ in range(299):
        asleep.clock.advance(1)
        asleep.report()
        asleep.look_again()
    assert asleep.overlooked == 1
