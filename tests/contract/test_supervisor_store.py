from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest

from orchestrator.domain.accounting.training_summary import TrainingSummary
from orchestrator.domain.errors import InvalidTransition, NotFound, Refused
from orchestrator.domain.job.attempt import AttemptKey, AttemptState
from orchestrator.domain.job.event import EventKind as OwnKind
from orchestrator.domain.job.job import Desired, JobState
from orchestrator.domain.observation.membership import Members
from orchestrator.domain.observation.node_record import NodeFailure
from orchestrator.domain.observation.observation import Training
from orchestrator.ports.supervision import Change
from tests.builders import (
    at,
    make_attempt,
    make_batch,
    make_event,
    make_exit_record,
    make_job,
    make_journal_event,
    make_progress,
    make_spec,
)
from tests.contract.worlds import SupervisorStore, World, acquire, add_job
from trainer.contract.clock import render_time
from trainer.contract.exit_record import EventKind, Outcome
from trainer.contract.failure import Failure, FailureKind
from trainer.contract.progress import Phase

KEY = AttemptKey("job-1", 1)


@pytest.fixture
def store(world: World) -> SupervisorStore:
    return world.supervisor(acquire(world))


def _start(world: World, store: SupervisorStore, job_id: str = "job-1", **fields: object) -> None:
    job = add_job(world, job_id)
    store.apply(Change(job=job, attempt=make_attempt(job_id, **fields), events=[]))


def test_a_change_is_read_back_unchanged(world: World, store: SupervisorStore) -> None:
    failure = Failure(kind=FailureKind.HANG, message="no step", rank=3, step=7, traceback="Traceback\n")
    add_job(world)
    job = make_job(state=JobState.RECOVERING, reason="waits", updated_at=at(2))
    job = replace(job, spent={"node": 2}, fruitless=1, retry_at=at(9), recovering_since=at(2), last_failure=failure)
    job = replace(job, farthest_step=9, kept_step=8, kept_s=70.5)
    attempt = make_attempt(
        state=AttemptState.LOST,
        nodes="2",
        asked="2:4",
        handle="4711",
        restore_from="s",
        started_at=at(1),
        stopping_since=at(2),
        ended_at=at(3),
        failure=failure,
        tried_at=at(1),
        excluded_nodes=("n1", "n2"),
        marked_nodes=("n3",),
        snapshots_told=4,
    )
    store.apply(Change(job=job, attempt=attempt, events=[make_event(sentence="it died")]))
    (found,) = store.supervised("local", store.at_work("local"))
    assert (found.job, found.attempt, found.training, found.exits) == (job, attempt, Training(), {})
    assert [event.sentence for event in world.events("job-1")][1:] == ["it died"]


def test_a_status_write_does_not_change_requests_or_the_spec(world: World, store: SupervisorStore) -> None:
    stale = add_job(world)
    requested, spec = Desired(number=1, suspended=True, snapshot_number=2), make_spec(labels={"a": "1"})
    assert world.jobs.record_request("job-1", requested, make_event(), spec=spec)
    store.apply(Change(job=stale.to(JobState.STARTING, reason="starts", now=at(1)), attempt=None, events=[]))
    job = world.jobs.get("job-1")
    assert (job.state, job.reason, job.desired, job.spec) == (JobState.STARTING, "starts", requested, spec)


def test_a_change_of_an_ended_attempt_is_refused_as_a_whole(world: World, store: SupervisorStore) -> None:
    _start(world, store, state=AttemptState.LOST)
    job = world.jobs.get("job-1").to(JobState.STARTING, reason="x", now=at(1))
    mark = _mark("n1", 1)
    revived = make_attempt(state=AttemptState.RUNNING)
    with pytest.raises(InvalidTransition, match="job-1-a1 has ended LOST"):
        store.apply(Change(job=job, attempt=revived, events=[make_event()], node_failures=[mark]))
    (found,) = store.supervised("local", store.at_work("local"))
    assert found.job.state is JobState.QUEUED
    assert found.attempt is not None
    assert found.attempt.state is AttemptState.LOST
    assert len(world.events("job-1")) == 1
    assert list(store.node_failures("local", since=at(-1000))) == []


def test_a_change_of_an_unknown_job_writes_nothing(world: World, store: SupervisorStore) -> None:
    with pytest.raises(NotFound, match="job-9"):
        store.apply(Change(job=make_job("job-9"), attempt=None, events=[make_event()], node_failures=[_mark("n1", 1)]))
    assert list(store.node_failures("local", since=at(-1000))) == []
    store.note({"job-9": "is ignored"}, at(1))


def test_a_note_changes_only_the_reason(world: World, store: SupervisorStore) -> None:
    job = add_job(world)
    store.note({"job-1": "the queue is full", "job-9": "is ignored"}, at(3))
    assert world.jobs.get("job-1") == replace(job, reason="the queue is full", updated_at=at(3))
    assert len(world.events("job-1")) == 1


def _mark(node: str, attempt: int, *, seconds: float = 0, cluster: str = "local", sentence: str = "s") -> NodeFailure:
    key = AttemptKey("job-1", attempt)
    kind = FailureKind.NODE
    return NodeFailure(cluster=cluster, node=node, at=at(seconds), key=key, kind=kind, sentence=sentence)


def test_each_attempt_reports_a_node_once(world: World, store: SupervisorStore) -> None:
    job = add_job(world)
    marks = [_mark("n1", 1), _mark("n2", 1), _mark("n1", 1, seconds=5, sentence="again"), _mark("n1", 2)]
    for mark in marks:
        store.apply(Change(job=job, attempt=None, events=[], node_failures=[mark]))
    found = {(mark.node, mark.key.number, mark.sentence) for mark in store.node_failures("local", since=at(-1))}
    assert found == {("n1", 1, "s"), ("n2", 1, "s"), ("n1", 2, "s")}


def test_node_failures_are_read_of_one_cluster_since_a_time(world: World, store: SupervisorStore) -> None:
    marks = [_mark("n1", 1, seconds=1), _mark("n2", 1, seconds=2), _mark("n3", 1, seconds=3, cluster="other")]
    store.apply(Change(job=add_job(world), attempt=None, events=[], node_failures=marks))
    assert list(store.node_failures("local", since=at(2))) == [marks[1]]
    assert set(store.node_failures("local", since=at(0))) == set(marks[:2])


def test_a_node_failure_has_the_start_of_its_attempt(world: World, store: SupervisorStore) -> None:
    attempt = make_attempt(created_at=at(7))
    store.apply(Change(job=add_job(world), attempt=attempt, events=[], node_failures=[_mark("n1", 1), _mark("n1", 2)]))
    began = {mark.key.number: mark.began_at for mark in store.node_failures("local", since=at(-1))}
    assert began == {1: at(7), 2: None}, "attempt 2 does not exist"


def test_a_node_failure_has_the_time_of_the_last_clearing(world: World, store: SupervisorStore) -> None:
    marks = [_mark("n1", 1, seconds=1), _mark("n2", 1, seconds=2), _mark("n1", 2, seconds=9)]
    world.nodes.clear("other", "n2", at=at(3), by="operator")
    world.nodes.clear("local", "n1", at=at(2), by="operator")
    world.nodes.clear("local", "n1", at=at(5), by="another")
    store.apply(Change(job=add_job(world), attempt=None, events=[], node_failures=marks))
    found = {(mark.node, mark.at): mark.cleared_at for mark in store.node_failures("local", since=at(0))}
    assert found == {("n1", at(1)): at(5), ("n2", at(2)): None, ("n1", at(9)): at(5)}


def test_states_are_read_of_existing_jobs(world: World, store: SupervisorStore) -> None:
    for number, state in enumerate(JobState):
        add_job(world, f"job-{number}", state=state)
    asked = [*(f"job-{number}" for number in range(5_000)), "gone"]
    assert store.states(asked) == {f"job-{number}": state for number, state in enumerate(JobState)}
    assert store.states([]) == {}


def test_only_jobs_that_are_not_at_rest_are_supervised_oldest_first(world: World, store: SupervisorStore) -> None:
    for age, state in enumerate(JobState):
        add_job(world, state.value.lower(), state=state, created_at=at(-age))
    add_job(world, "elsewhere", spec=make_spec(cluster="other"))
    add_job(world, "retry", state=JobState.FAILED, desired=Desired(retry_number=2), retries_done=1, created_at=at(-99))
    add_job(world, "retried", state=JobState.FAILED, desired=Desired(retry_number=2), retries_done=2)
    alive = [state.value.lower() for state in JobState if not state.terminal]
    assert [one.job.id for one in store.supervised("local", store.at_work("local"))] == ["retry", *reversed(alive)]
    assert store.at_work("local") == {"retry", *alive}


def test_an_ended_job_with_a_retry_request_is_supervised(world: World, store: SupervisorStore) -> None:
    job = add_job(world)
    store.apply(Change(job=job.to(JobState.CANCELLED, reason="x", now=at(1)), attempt=None, events=[]))
    assert list(store.supervised("local", store.at_work("local"))) == []
    assert world.jobs.record_request("job-1", Desired(number=1, retry_number=1), make_event())
    assert [one.job.id for one in store.supervised("local", store.at_work("local"))] == ["job-1"]


def test_some_of_the_jobs_can_be_supervised(world: World, store: SupervisorStore) -> None:
    many = {f"job-{number:03}" for number in range(510)}  # more than one statement takes
    for number, job_id in enumerate(sorted(many)):
        add_job(world, job_id, created_at=at(-number))
    add_job(world, "elsewhere", spec=make_spec(cluster="other"))
    add_job(world, "ended", state=JobState.FAILED)
    found = [one.job.id for one in store.supervised("local", {*many, "elsewhere", "ended", "unknown"})]
    assert found == sorted(many, reverse=True)
    assert list(store.supervised("local", set())) == []


def test_a_changed_spec_is_read_again(world: World, store: SupervisorStore) -> None:
    add_job(world)
    assert store.supervised("local", store.at_work("local"))[0].job.spec.priority == 0
    spec = make_spec(priority=7)
    assert world.jobs.record_request("job-1", Desired(number=1), make_event(), spec=spec)
    assert store.supervised("local", {"job-1"})[0].job.spec.priority == 7


def test_every_event_tells_that_its_job_changed(world: World, store: SupervisorStore) -> None:
    add_job(world, "job-0")
    nobody, before = store.changed(None)
    assert nobody == set()
    _start(world, store)
    add_job(world, "elsewhere", spec=make_spec(cluster="other"))
    changed, newest = store.changed(before)
    assert changed == {"job-1", "elsewhere"}
    assert store.changed(newest) == (set(), newest)
    started = make_batch(events=[(9, make_journal_event("generation.started"))])
    world.journals.ingest([started], arrived_at=at(1))
    assert store.changed(newest)[0] == {"job-1"}
    assert world.jobs.record_request("job-1", Desired(number=1, cancelled=True), make_event())
    assert store.changed(store.changed(newest)[1]) == (set(), store.changed(None)[1])


def test_a_job_has_its_newest_attempt_with_that_attempts_reports(world: World, store: SupervisorStore) -> None:
    _start(world, store, state=AttemptState.LOST)
    old = make_batch(progress=[(10, make_progress(5))], exit_record=make_exit_record(Outcome.FAILED))
    world.journals.ingest([old], arrived_at=at(1))
    store.apply(Change(job=world.jobs.get("job-1"), attempt=make_attempt(number=2), events=[]))
    (found,) = store.supervised("local", store.at_work("local"))
    assert found.attempt is not None
    assert (found.attempt.key.number, found.training, found.exits) == (2, Training(), {})
    world.journals.ingest([make_batch(attempt=2, exit_record=make_exit_record())], arrived_at=at(2))
    assert store.supervised("local", store.at_work("local"))[0].exits[0].outcome is Outcome.SUCCEEDED


def test_the_stored_summary_equals_the_domains(world: World, store: SupervisorStore) -> None:
    _start(world, store)
    started = make_journal_event("generation.started", generation=1, evidence={"world_size": 2})
    events = [started, *(make_journal_event("restart.in_place", generation=g) for g in (2, 3))]
    lines = [make_progress(seconds=0), make_progress(seconds=1, phase=Phase.COMPILE)]
    lines += [make_progress(step, seconds=2 + step * step) for step in range(1, 9)]
    lines += [make_progress(8, seconds=90, phase=Phase.SNAPSHOT), make_progress(9, seconds=95)]
    lines.append(make_progress(7, seconds=99, generation=3))
    expected = TrainingSummary()
    for event in events:
        expected.add_event(event, at(100))
    for line in lines:
        expected.add_line(line, at(100))
    for end in range(1, len(lines) + 1):  # each batch has one more line and repeats the earlier ones
        numbered = [(10 * n, line) for n, line in enumerate(lines[:end], 1)]
        batch = make_batch(progress=numbered, events=[(9 * n, event) for n, event in enumerate(events, 1)])
        world.journals.ingest([batch], arrived_at=at(100))
    (found,) = store.supervised("local", store.at_work("local"))
    assert found.training == expected.training()
    assert {"compile", "step", "snapshot"} <= set(found.training.phase_times)
    assert found.training.restarts == 2


def test_only_http_reports_update_the_time_of_the_last_report(world: World, store: SupervisorStore) -> None:
    _start(world, store, nodes="2")
    read = make_batch(progress=[(10, make_progress(1))])
    world.journals.ingest([read], arrived_at=at(1))
    (found,) = store.supervised("local", store.at_work("local"))
    assert (found.training.progress_at, found.training.heard_at) == (at(1), None)
    world.journals.ingest([make_batch(replica=1, reported=True)], arrived_at=at(2))
    (found,) = store.supervised("local", store.at_work("local"))
    assert (found.training.progress_at, found.training.heard_at) == (at(1), at(2))
    world.journals.ingest([make_batch(progress=[(20, make_progress(2))], progress_from=10)], arrived_at=at(3))
    world.journals.ingest([make_batch(reported=True)], arrived_at=at(4))
    (found,) = store.supervised("local", store.at_work("local"))
    assert (found.training.progress_at, found.training.heard_at, found.training.step) == (at(3), at(4), 2)


def test_the_newest_report_of_each_rank_is_read_whichever_worker_has_it(world: World, store: SupervisorStore) -> None:
    _start(world, store, nodes="3")
    for replica in (0, 1):
        line = make_progress(3, rank=replica)
        world.journals.ingest([make_batch(replica=replica, progress=[(10, line)])], arrived_at=at(replica))
    moved = make_progress(4, rank=1, generation=2, phase=Phase.DATA)
    world.journals.ingest([make_batch(replica=2, progress=[(10, moved)])], arrived_at=at(5))
    late = [(10, make_progress(3, rank=1)), (20, make_progress(4, rank=1))]
    world.journals.ingest([make_batch(replica=1, progress=late)], arrived_at=at(9))
    words = {word.rank: word for word in store.journaled(KEY).ranks}
    assert len(store.journaled(KEY).ranks) == len(words) == 2
    assert (words[0].replica, words[0].step, words[0].generation, words[0].heard_at) == (0, 3, 1, at(0))
    assert (words[1].replica, words[1].step, words[1].phase, words[1].heard_at) == (2, 4, "data", at(5))
    assert list(store.journaled(AttemptKey("job-1", 2)).ranks) == []


def test_lost_peers_are_read_until_the_next_generation_starts(world: World, store: SupervisorStore) -> None:
    _start(world, store, nodes="3")
    started, lost = EventKind.GENERATION_STARTED.value, EventKind.PEER_LOST.value

    def journal(offset: int, kind: str, generation: int, replica: int = 0, **evidence: object) -> None:
        event = make_journal_event(kind, generation=generation, evidence=evidence)
        world.journals.ingest([make_batch(replica=replica, events=[(offset, event)])], arrived_at=at(offset))

    journal(10, started, 1)
    assert store.journaled(KEY).missed == frozenset()
    journal(20, lost, 1, replicas=[2, "1", True])
    journal(10, lost, 1, replica=1, replicas=[0])
    assert store.journaled(KEY).missed == {0, 2}
    assert store.journaled(AttemptKey("job-1", 2)).missed == frozenset()
    journal(30, started, 2)
    assert store.journaled(KEY).missed == frozenset()
    journal(40, lost, 2, replicas="all")
    assert store.journaled(KEY).missed == frozenset()


def test_a_replica_is_read_as_lost_and_as_rejoined_until_each_is_recorded(world: World, store: SupervisorStore) -> None:
    _start(world, store, nodes="2:3")
    written = defaultdict[tuple[int, int], int](int)

    def journal(kind: EventKind, generation: int, *lives: tuple[int, int], **evidence: object) -> None:
        for replica, life in lives:
            begin, end = written[replica, life], written[replica, life] + 10
            written[replica, life] = end
            more = {"incarnation": life} if kind is EventKind.AGENT_STARTED else evidence
            event = make_journal_event(kind, generation=generation, at=render_time(at(generation)), evidence=more)
            batch = make_batch(replica=replica, incarnation=life, events=[(end, event)])
            world.journals.ingest([batch._replace(events_from=begin)], arrived_at=at(generation))

    def record(kind: OwnKind, incarnation: int) -> None:
        evidence: dict[str, object] = {"replica": 1, "incarnation": incarnation, "words": "pod p was deleted"}
        event = make_event(kind, attempt=1, evidence=evidence)
        store.apply(Change(job=world.jobs.get("job-1"), attempt=None, events=[event]))

    assert store.members(KEY, [1]) == Members()
    journal(EventKind.AGENT_STARTED, 0, (0, 1), (1, 1), (2, 1))
    journal(EventKind.GENERATION_STARTED, 1, (0, 1), (1, 1), (2, 1))
    assert store.members(KEY, [1]) == Members(reported={0: 1, 1: 1, 2: 1})
    record(OwnKind.REPLICA_LOST, 1)
    assert store.members(KEY, [1]).lost == {(1, 1)}
    assert store.members(KEY, []).lost == frozenset(), "nobody is gone, so nothing is read"
    journal(EventKind.GROUP_SHRUNK, 2, (0, 1), (2, 1), seconds=0.5)
    journal(EventKind.GENERATION_STARTED, 2, (0, 1), (2, 1))
    journal(EventKind.AGENT_STARTED, 3, (1, 2))
    assert store.members(KEY, []).returns == ()
    journal(EventKind.GENERATION_STARTED, 5, (0, 1), (1, 2), (2, 1))
    (back,) = store.members(KEY, []).returns
    assert (back.replica, back.incarnation, back.generation, back.at) == (1, 2, 5, at(5))
    assert (back.seconds, back.words) == (3.5, "pod p was deleted")
    record(OwnKind.REPLICA_REJOINED, 2)
    assert store.members(KEY, []) == Members(reported={0: 1, 1: 2, 2: 1}, lost=frozenset({(1, 1)}))
    assert store.members(AttemptKey("job-1", 2), [1]) == Members()


def test_an_agent_that_was_refused_the_claim_is_no_replacement(world: World, store: SupervisorStore) -> None:
    _start(world, store, nodes="1:2")
    world.journals.ingest([make_batch(events=[(9, make_journal_event())])], arrived_at=at(1))
    refused = make_batch(incarnation=2, exit_record=make_exit_record(Outcome.REFUSED))
    world.journals.ingest([refused], arrived_at=at(2))
    assert store.members(KEY, [0]) == Members(reported={0: 1})


def test_a_port_is_reserved_until_its_attempt_or_its_job_ends(world: World, store: SupervisorStore) -> None:
    one_port = range(7, 8)
    job = add_job(world)
    other = AttemptKey("job-2", 1)
    add_job(world, "job-2")
    assert store.reserve_port(KEY, "local", one_port, after=None) == 7
    assert store.reserve_port(KEY, "local", one_port, after=7) == 7
    with pytest.raises(Refused, match="all 1 rendezvous ports are taken"):
        store.reserve_port(other, "local", one_port, after=None)
    assert store.reserve_port(other, "elsewhere", one_port, after=None) == 7
    store.apply(Change(job=job, attempt=make_attempt(state=AttemptState.FAILED), events=[]))
    assert store.reserve_port(AttemptKey("job-1", 2), "local", one_port, after=None) == 7
    store.apply(Change(job=job.to(JobState.CANCELLED, reason="x", now=at(1)), attempt=None, events=[]))
    add_job(world, "job-3")
    assert store.reserve_port(AttemptKey("job-3", 1), "local", one_port, after=None) == 7
    with pytest.raises(NotFound, match="job-9"):
        store.reserve_port(AttemptKey("job-9", 1), "local", range(7, 99), after=None)


def test_ports_are_reserved_in_rotation(world: World, store: SupervisorStore) -> None:
    afters = [20001, 20002, 20003, 25000]
    given = []
    for number, after in enumerate(afters):
        add_job(world, f"job-{number}")
        given.append(store.reserve_port(AttemptKey(f"job-{number}", 1), "local", range(20000, 20004), after=after))
    assert given == [20002, 20003, 20000, 20001]
