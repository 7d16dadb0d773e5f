"""What readers learn of clusters."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from sqlalchemy import event, func, select

from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.job import JobState
from orchestrator.domain.observation.node_record import NodeFailure
from orchestrator.ports.supervision import Change
from orchestrator.store.cluster_reader import ClusterReader
from orchestrator.store.node_records import NodeStore
from orchestrator.store.tables import NodeClearingRow
from tests.builders import NOW, at, make_attempt, make_batch, make_journal_event, make_spec
from tests.store.harness import Stores
from trainer.contract.clock import render_time
from trainer.contract.failure import FailureKind


def test_claimants_are_the_jobs_of_the_cluster_that_have_not_ended_each_with_its_newest_attempt(stores: Stores) -> None:
    for state in JobState:
        stores.add(state.value.lower(), state=state)
    stores.add("elsewhere", spec=make_spec(cluster="other"))
    running = stores.jobs.get("running")
    stores.apply(running, make_attempt("running", 1, state=AttemptState.LOST, ended_at=NOW))
    stores.apply(running, make_attempt("running", 2, nodes="2", port=20001))
    found = {each.job.id: each for each in ClusterReader(stores.database).claimants("local")}
    assert found.keys() == {"queued", "starting", "running", "recovering", "suspended"}
    newest = found["running"].attempt
    assert newest is not None
    assert (newest.key.number, found["running"].held_nodes, found["queued"].attempt) == (2, 2, None)


def test_claimants_are_read_with_one_query_however_many_there_are(stores: Stores) -> None:
    stores.add_with_attempt()
    for number in range(2, 21):
        stores.add(f"job-{number}")
    statements: list[str] = []

    def note(_1: object, _2: object, statement: str, *_: object) -> None:
        statements.append(statement)

    event.listen(stores.database.engine, "before_cursor_execute", note)
    assert len(ClusterReader(stores.database).claimants("local")) == 20
    assert len([text for text in statements if text.lstrip().startswith("SELECT")]) == 1


def test_records_of_nodes_are_read_for_all_clusters_from_a_moment_on(stores: Stores) -> None:
    job = stores.add_with_attempt()
    attempt = make_attempt()
    marks = [
        NodeFailure(cluster="local", node=node, at=at(when), key=attempt.key, kind=FailureKind.NODE, sentence="gone")
        for node, when in (("late", 20), ("early", 0), ("middle", 10))
    ]
    stores.supervisor.apply(Change(job=job, attempt=attempt, events=(), node_failures=marks))
    found = ClusterReader(stores.database).node_failures(since=at(10))
    assert [failure.node for failure in found] == ["middle", "late"]


def test_a_record_may_be_cleared_by_several_at_once(stores: Stores) -> None:
    """A button that is pressed twice, and a colleague who does the same."""
    nodes, together = NodeStore(stores.database), Barrier(6, timeout=30)

    def clear(_: int) -> None:
        for number in range(10):
            together.wait()
            nodes.clear("local", f"n{number}", at=at(5), by="operator")

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(clear, range(6)))
    with stores.database.read() as session:
        assert session.scalar(select(func.count()).select_from(NodeClearingRow)) == 10


def test_a_lease_tells_since_when_its_token_was_given(stores: Stores) -> None:
    lease = stores.leases.acquire("elsewhere", "a", ttl_s=60)
    assert lease is not None

    def since() -> object:
        return next(one.since for one in stores.leases.leases() if one.lease.cluster == "elsewhere")

    first = since()
    assert stores.leases.renew(lease, ttl_s=120)
    assert since() == first, "a renewal is no new lease"
    stores.leases.acquire("elsewhere", "a", ttl_s=60)
    assert since() != first


def test_ages_are_those_of_the_oldest_of_each_cluster(stores: Stores) -> None:
    stores.add("queued-late", created_at=at(50))
    stores.add("queued-early", created_at=at(20))
    stores.add("queued-again", created_at=at(0), retries_done=1)
    stores.add("elsewhere", created_at=at(30), spec=make_spec(cluster="other"))
    for job_id, committed in (("one", (10, 90)), ("two", (40, 60)), ("ended", (5,))):
        stores.add_with_attempt(job_id, state=JobState.FAILED if job_id == "ended" else JobState.RUNNING)
        for step, seconds in enumerate(committed):
            name = {"name": f"step-{step:08d}-a1-g1"}
            told = make_journal_event("snapshot.committed", at=render_time(at(seconds)), evidence=name)
            stores.ingest(make_batch(job_id, replica=step, events=[(50, told)]))
    stores.add("without", state=JobState.RUNNING)
    found = {age.cluster: (age.queued_since, age.snapshot_at) for age in ClusterReader(stores.database).ages()}
    assert found == {"local": (at(20), at(60)), "other": (at(30), None)}


def test_a_snapshot_that_is_damaged_does_not_count(stores: Stores) -> None:
    stores.add_with_attempt(state=JobState.RUNNING)
    for replica, (step, seconds, state) in enumerate(
        [(1, 10, "committed"), (2, 20, "committed"), (2, 30, "quarantined")]
    ):
        name = {"name": f"step-{step:08d}-a1-g1"}
        told = make_journal_event(f"snapshot.{state}", at=render_time(at(seconds)), evidence=name)
        stores.ingest(make_batch(replica=replica, events=[(50, told)]))
    (age,) = ClusterReader(stores.database).ages()
    assert age.snapshot_at == at(10)
