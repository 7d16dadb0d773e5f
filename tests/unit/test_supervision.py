"""One pass: what is taken for seen, who is decided about, and what one job's trouble costs the others."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from orchestrator import rundir
from orchestrator.domain.admission import Limits
from orchestrator.domain.attempt import AttemptKey, AttemptState
from orchestrator.domain.decision import Decision, NotePending, Submit
from orchestrator.domain.errors import BackendBusy, BackendUnavailable
from orchestrator.domain.job import Desired, JobState
from orchestrator.domain.launch import Site
from orchestrator.domain.node import NodeFailure
from orchestrator.domain.observation import Presence, Sighting
from orchestrator.domain.situation import Situation
from orchestrator.ports import Backend, Change, SupervisorStore
from orchestrator.simulator.clock import VirtualClock
from orchestrator.simulator.memory_store import MemoryStore
from orchestrator.simulator.memory_supervision import MemoryLeaseStore, MemorySupervisorStore
from orchestrator.supervisor.act import Actor
from orchestrator.supervisor.observe import Observer
from orchestrator.supervisor.reconcile import Reconciler, Terms
from tests.builders import make_attempt, make_event, make_job
from tests.unit.situations import a_job, a_situation
from trainer.contract.failure import FailureKind

KEY = AttemptKey("job-1", 1)


class World:
    """A cluster, its run directories and an actor, each of which only tells what it was asked."""

    def __init__(self) -> None:
        self.clock, self.memory = VirtualClock(), MemoryStore()
        lease = MemoryLeaseStore(self.memory, self.clock).acquire("local", "test", ttl_s=10**6)
        assert lease is not None
        self.store = MemorySupervisorStore(self.memory, self.clock, lease)
        self.observer = Observer("local", self.store, cast(Backend, self), self, self.clock)
        self.presence: Presence | None = Presence.RUNNING
        self.acted: list[tuple[str, Decision]] = []
        self.excluded: list[str] = []
        self.trouble: dict[str, Exception] = {}
        self.before_answer = lambda: None

    def add(self, job_id: str = "job-1", attempt: AttemptState | None = None, **fields: Any) -> None:
        job = make_job(job_id, created_at=self.clock.now(), **fields)
        self.memory.add(job, idempotency_key=None, digest="", event=make_event())
        if attempt is not None:
            self.store.apply(Change(job=job, attempt=make_attempt(job_id, state=attempt), events=[]))

    def reconcile(self) -> datetime | None:
        terms = Terms(limits=Limits(), stop_timeout_s=15)
        return Reconciler(self.store, self.observer, cast(Actor, self), self.clock, terms).reconcile()

    # What an Observer asks: the backend and the journals

    def observe(self, keys: Collection[AttemptKey]) -> Mapping[AttemptKey, Sighting]:
        if self.presence is None:
            raise BackendUnavailable("no answer")
        answer = {key: Sighting(key=key, presence=self.presence, evidence="seen") for key in keys}
        self.before_answer()
        return answer

    def slots(self) -> int | None:
        return 4

    def collect(self, keys: Collection[AttemptKey]) -> Mapping[AttemptKey, str]:
        return {}

    # What a Reconciler asks: the actor

    def act(self, s: Situation, decision: Decision, exclusions: Sequence[Any]) -> None:
        if s.job.id in self.trouble:
            raise self.trouble[s.job.id]
        self.acted.append((s.job.id, decision))
        self.excluded += [one.node for one in exclusions]

    @property
    def rules(self) -> dict[str, str]:
        """By job: the rule that decided."""
        return {job_id: decision.rule for job_id, decision in self.acted}


@pytest.fixture
def world() -> World:
    return World()


def test_a_pass_decides_about_each_job_that_is_not_at_rest(world: World) -> None:
    world.add("job-1", state=JobState.QUEUED)
    world.add("job-2", AttemptState.RUNNING, state=JobState.STARTING)
    world.add("job-3", AttemptState.LOST, state=JobState.RECOVERING)
    world.add("job-4", state=JobState.SUCCEEDED)
    assert world.reconcile() is None
    assert world.rules == {"job-1": "start", "job-2": "wait", "job-3": "recover"}


def test_what_began_after_the_cluster_was_asked_is_left_for_the_next_pass(world: World) -> None:
    """By another service, just before its lease was over: of its attempt nothing is known yet."""
    world.before_answer = lambda: world.add("job-1", AttemptState.SUBMITTED, state=JobState.STARTING)
    assert world.reconcile() is None
    assert world.acted == []


def test_what_an_ended_attempt_looks_like_is_not_asked(world: World) -> None:
    """The job of an attempt that ended after the cluster was asked has nothing live any more."""
    world.add("job-1", AttemptState.RUNNING, state=JobState.RUNNING)

    def end() -> None:
        job = replace(world.memory.get("job-1"), state=JobState.RECOVERING)
        world.store.apply(Change(job=job, attempt=make_attempt(state=AttemptState.LOST), events=[]))

    world.before_answer = end
    facts = world.observer.observe()
    assert KEY in facts.observations
    assert facts.observation(facts.supervised[0]) is None


def test_a_job_without_an_attempt_has_none_to_look_at(world: World) -> None:
    world.add("job-1")
    facts = world.observer.observe()
    assert facts.observation(facts.supervised[0]) is None


def test_a_silent_cluster_admits_nobody_and_ends_nothing(world: World) -> None:
    world.add("job-1", state=JobState.QUEUED)
    world.add("job-2", AttemptState.RUNNING, state=JobState.RUNNING)
    world.presence = None
    with capture_logs():
        world.reconcile()
    assert world.rules == {"job-1": "wait", "job-2": "wait"}


def test_nodes_with_a_record_are_avoided_while_it_is_fresh(world: World) -> None:
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
        (BackendUnavailable("no answer"), "cannot go on now: no answer"),
        (RuntimeError("a defect"), "cannot go on now: a defect"),
    ],
)
def test_one_jobs_trouble_is_told_to_its_owner_and_costs_the_others_nothing(
    world: World, trouble: Exception, reason: str
) -> None:
    world.add("job-1", state=JobState.QUEUED)
    world.add("job-2", state=JobState.QUEUED)
    world.trouble = {"job-1": trouble}
    with capture_logs():
        assert world.reconcile() is None
    assert world.memory.get("job-1").reason == reason
    assert world.rules == {"job-2": "start"}


def test_what_changes_only_the_books_is_followed_by_another_look_at_once(world: World) -> None:
    world.add("job-1", state=JobState.QUEUED, desired=Desired(number=1, cancelled=True))
    assert world.reconcile() == world.clock.now() + timedelta(milliseconds=10)
    assert world.rules == {"job-1": "finish_cancelled"}


def test_a_job_that_was_at_rest_when_its_cluster_had_answered_is_left_alone(world: World) -> None:
    world.add("job-1", AttemptState.RUNNING, state=JobState.RUNNING)
    live = world.observer.observe()
    ended = [replace(each, job=replace(each.job, state=JobState.SUCCEEDED)) for each in live.supervised]
    world.observer.observe = lambda: replace(live, supervised=ended)  # type: ignore[method-assign]
    world.reconcile()
    assert world.acted == []


@pytest.mark.parametrize("action", [NotePending(), Submit()])
def test_to_act_on_an_attempt_that_is_not_there_is_a_defect(tmp_path: Path, action: NotePending | Submit) -> None:
    nothing: Any = None
    actor = Actor(
        cast(SupervisorStore, nothing),
        cast(Backend, nothing),
        rundir.LocalRunDirectories(tmp_path),
        cast(Site, nothing),
        ports=range(1),
    )
    with pytest.raises(AssertionError, match="an attempt that is not there"):
        actor.act(a_situation(a_job()), Decision(action=action, sentence="x"), ())
