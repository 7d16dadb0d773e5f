"""What is read of clusters: claimants, node records, leases and waits."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from sqlalchemy import func, select

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


def test_live_jobs_are_the_clusters_unended_jobs_with_their_newest_attempts(stores: Stores) -> None:
    for state in JobState:
        stores.add(state.value.lower(), state=state)
    stores.add("elsewhere", spec=make_spec(cluster="other"))
    running = stores.jobs.get("running")
    stores.apply(running, make_attempt("running", 1, state=AttemptState.LOST, ended_at=NOW))
    stores.apply(running, make_attempt("running", 2, nodes="2", port=20001))
    found = {each.job.id: each for each in ClusterReader(stores.database).live_jobs(["local"])["local"]}
    assert found.keys() == {"queued", "starting", "running", "recovering", "suspended"}
    newest = found["running"].attempt
    assert newest is not None
    assert (newest.key.number, found["running"].claimant.held_nodes, found["queued"].attempt) == (2, 2, None)


def test_the_number_of_queries_for_live_jobs_does_not_depend_on_their_number(stores: Stores) -> None:
    reader = ClusterReader(stores.database)
    stores.add_with_attempt()
    for number in range(2, 21):
        stores.add(f"job-{number}")
    with stores.recorded() as statements:
        held = reader.live_jobs(["local"])["local"]
        again = reader.live_jobs(["local"])["local"]
    assert len([text for text, _ in statements if text.startswith("SELECT")]) == 2 + 1, "specs are read once"
    assert (len(held), again) == (20, held)


def test_node_failures_are_read_since_a_time(stores: Stores) -> None:
    job = stores.add_with_attempt()
    attempt = make_attempt()
    marks = [
        NodeFailure(cluster="local", node=node, at=at(when), key=attempt.key, kind=FailureKind.NODE, sentence="gone")
        for node, when in (("late", 20), ("early", 0), ("middle", 10))
    ]
    stores.supervisor.apply(Change(job=job, attempt=attempt, events=(), node_failures=marks))
    found = ClusterReader(stores.database).node_failures(since=at(10))
    assert [failure.node for failure in found] == ["middle", "late"]


def test_concurrent_clearings_of_a_node_record_succeed(stores: Stores) -> None:
    nodes, together = NodeStore(stores.database), Barrier(6, timeout=300)

    def clear(_: int) -> None:
        for number in range(10):
            together.wait()
            nodes.clear("local", f"n{number}", at=at(5), by="operator")

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(clear, range(6)))
    with stores.database.read() as session:
        assert session.scalar(select(func.count()).select_from(NodeClearingRow)) == 10


def test_a_lease_has_the_time_of_its_acquisition(stores: Stores) -> None:
    lease = stores.leases.acquire("elsewhere", "a", ttl_s=60)
    assert lease is not None

    def since() -> object:
        return next(one.since for one in stores.leases.leases() if one.lease.cluster == "elsewhere")

    first = since()
    assert stores.leases.renew(lease, ttl_s=120)
    assert since() == first, "a renewal does not change it"
    stores.leases.acquire("elsewhere", "a", ttl_s=60)
    assert since() != first


def test_the_longest_waits_of_each_cluster_are_read(stores: Stores) -> None:
    stores.add("queued-late", created_at=at(50))
    stores.add("queued-early", created_at=at(20))
    stores.add("queued-again", created_at=at(0), retries_done=1)
    stores.add("elsewhere", created_at=at(30), spec=make_spec(cluster="other"))
    for job_id, committed in (("one", (10, 90)), ("two", (40, 60)), ("ended", (5,))):
        stores.add_with_attempt(job_id, state=JobState.FAILED if job_id == "ended" else JobState.RUNNING)
        for step, seconds in enumerate(committed):
            name = {"name": f"step-{step:08d}-a1-g1"}
            snapshot = make_journal_event("snapshot.committed", at=render_time(at(seconds)), evidence=name)
            stores.ingest(make_batch(job_id, replica=step, events=[(50, snapshot)]))
    stores.add("without", state=JobState.RUNNING)
    found = {age.cluster: (age.queued_since, age.snapshot_at) for age in ClusterReader(stores.database).ages()}
    assert found == {"local": (at(20), at(60)), "other": (at(30), None)}


def test_a_quarantined_snapshot_does_not_count(stores: Stores) -> None:
    stores.add_with_attempt(state=JobState.RUNNING)
    for replica, (step, seconds, state) in enumerate(
        [(1, 10, "committed"), (2, 20, "committed"), (2, 30, "quarantined")]
    ):
        name = {"name": f"step-{step:08d}-a1-g1"}
        snapshot = make_journal_event(f"snapshot.{state}", at=render_time(at(seconds)), evidence=name)
        stores.ingest(make_batch(replica=replica, events=[(50, snapshot)]))
    (age,) = ClusterReader(stores.database).ages()
    assert age.snapshot_at == at(10)
