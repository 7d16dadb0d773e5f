"""How the database finds rows: hot queries must not look at all rows of a table that grows with the stored jobs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from sqlalchemy import text

from orchestrator.domain.accounting.retention import DataKind
from orchestrator.domain.job.job import JobState
from orchestrator.ports.supervision import Supervised
from orchestrator.store import job_pages
from orchestrator.store.cluster_reader import ClusterReader
from orchestrator.store.deletion_store import DeletionStore
from orchestrator.store.engine import Database
from orchestrator.store.records import EndedJobs, JobFilter
from orchestrator.store.retention_store import RetentionStore
from orchestrator.store.tables import JobRow
from orchestrator.store.upgrade import upgrade
from tests.builders import at, make_spec
from tests.store.harness import Stores

# The index of requested retries has only the few jobs with one.
_SCAN = re.compile(
    r"(?:SCAN|Seq Scan on) (?:jobs|attempts|events|trainings|journals|metrics|snapshots|workers|deliveries)\b"
    r"(?! USING INDEX ix_jobs_retry_[a-z]+)"
)
_SCAN_JOBS = re.compile(r"SCAN jobs(?! USING INDEX ix_jobs_retry_)|Seq Scan on jobs")
_READS: dict[str, Callable[[Stores], object]] = {
    "a job": lambda stores: stores.reader.summary("job-1"),
    "the standing of a job": lambda stores: stores.reader.standing("job-1"),
    "the events of a job": lambda stores: stores.history.events("job-1", limit=50, cursor=None),
    "the life of a job": lambda stores: stores.chronicles.chronicle("job-1"),
    "the jobs that lived": lambda stores: stores.chronicles.lifespans(
        since=at(0), until=at(60), projects=None, limit=10
    ),
    "what changed": lambda stores: stores.supervisor.changed(1),
    "the jobs at work": lambda stores: stores.supervisor.at_work("local"),
    "the supervised jobs": lambda stores: _supervised(stores),
    "the live jobs of a cluster": lambda stores: ClusterReader(stores.database).live_jobs(["local"]),
    "the oldest waits": lambda stores: ClusterReader(stores.database).ages(),
    "the dependents of a job": lambda stores: stores.reader.dependents("job-1"),
    "the files to delete": lambda stores: DeletionStore(stores.database).due("local"),
    "the ended jobs": lambda stores: _read_ended(stores, DataKind.LOGS),
    "the ended jobs with metrics": lambda stores: _read_ended(stores, DataKind.METRICS),
    "the ended jobs with events": lambda stores: _read_ended(stores, DataKind.EVENTS),
    "whether a job is needed": lambda stores: _retention(stores).is_needed("job-1"),
    "the oldest live job": lambda stores: _retention(stores).oldest_live(),
    "the working folders": lambda stores: _retention(stores).workdirs(since=at(0)),
    "old deliveries": lambda stores: _retention(stores).forget_deliveries(before=at(0), limit=10),
}


def _retention(stores: Stores) -> RetentionStore:
    return RetentionStore(stores.database)


def _read_ended(stores: Stores, kind: DataKind) -> EndedJobs:
    return _retention(stores).ended("local", kind, before=at(60), after=(at(0), "job-0"), limit=10)


def _supervised(stores: Stores) -> Supervised:
    return stores.only_supervised()


def _plan(stores: Stores, read: Callable[[Stores], object], *, forced: bool = True) -> str:
    """Return the plans of all statements of a read. If `forced`, PostgreSQL scans only where no index helps."""
    with stores.recorded() as statements:
        read(stores)
    is_postgres = stores.database.file is None
    lines: list[str] = []
    with stores.database.engine.connect() as connection:
        if is_postgres and forced:
            for way in ("seqscan", "bitmapscan"):  # the tables are small here
                connection.execute(text(f"SET LOCAL enable_{way} = off"))
        for statement, parameters in statements:
            if statement.startswith(("SELECT", "WITH", "DELETE", "UPDATE")):
                how = "EXPLAIN" if is_postgres else "EXPLAIN QUERY PLAN"
                rows = connection.exec_driver_sql(f"{how} {statement}", parameters).all()
                lines += [statement, *(f"    {row[-1]}" for row in rows)]
    assert lines
    return "\n".join(lines)


@pytest.mark.parametrize("what", _READS)
def test_a_hot_query_does_not_look_at_all_rows(stores: Stores, what: str) -> None:
    stores.add_with_attempt()
    plan = _plan(stores, _READS[what])
    assert _SCAN.search(plan) is None, plan


@pytest.fixture
def own_stores(empty_url: str) -> Iterator[Stores]:
    """A separate database, because statistics would change the plans of other tests."""
    upgrade(empty_url)
    with Database(empty_url) as database:
        yield Stores(database)


def test_a_long_history_does_not_make_the_planner_read_all_jobs(own_stores: Stores) -> None:
    """The planner chooses by its statistics, which are coarse."""
    stores = own_stores
    job = stores.add_with_attempt("ended")
    stores.apply(replace(job, state=JobState.SUCCEEDED, finished_at=at(-3600)))
    stores.add_with_attempt()
    columns = [column.name for column in JobRow.__table__.columns if column.name not in ("id", "idempotency_key")]
    copied = ", ".join(columns)
    with stores.database.write() as session:
        session.execute(
            text(
                "WITH RECURSIVE numbers(number) AS (SELECT 10 UNION ALL SELECT number + 1 FROM numbers "
                f"WHERE number < 5000) INSERT INTO jobs (id, {copied}) SELECT 'job-' || number, {copied} "
                "FROM jobs CROSS JOIN numbers WHERE id = 'ended'"
            )
        )
        session.execute(text("ANALYZE jobs"))
    for what, read in _READS.items():
        plan = _plan(stores, read, forced=False)
        assert not _SCAN_JOBS.search(plan), f"{what}: {plan}"


@pytest.mark.parametrize("what", ["the jobs at work", "the live jobs of a cluster"])
def test_live_jobs_are_not_found_among_all_jobs_of_a_cluster(stores: Stores, what: str) -> None:
    stores.add_with_attempt()
    plan = _plan(stores, _READS[what])
    assert "ix_jobs_cluster_created_at_id" not in plan, plan


def test_a_page_of_the_list_is_read_in_the_order_of_an_index(stores: Stores) -> None:
    stores.add_with_attempt()
    plan = _plan(stores, lambda stores: stores.reader.summaries(JobFilter(), limit=50, cursor=None))
    assert "ix_jobs_created_at_id" in plan
    assert "Seq Scan on jobs" not in plan


@pytest.mark.parametrize("backend", ["sqlite"])  # PostgreSQL scans or sorts a small table
@pytest.mark.parametrize(
    ("where", "index"),
    [
        (JobFilter(project="vision"), "ix_jobs_project_created_at_id"),
        (JobFilter(cluster="local"), "ix_jobs_cluster_created_at_id"),
        (JobFilter(state="FAILED"), "ix_jobs_state_created_at_id"),
        (JobFilter(project="vision", state="FAILED"), "ix_jobs_(project|state)_created_at_id"),
    ],
)
def test_a_filtered_page_is_read_in_the_order_of_an_index(stores: Stores, where: JobFilter, index: str) -> None:
    stores.add_with_attempt()
    plan = _plan(stores, lambda stores: stores.reader.summaries(where, limit=50, cursor=None))
    assert re.search(index, plan), plan


@pytest.mark.parametrize("backend", ["sqlite"])
@pytest.mark.parametrize("projects", [None, ["research", "vision"]])
def test_jobs_are_counted_in_an_index(stores: Stores, projects: list[str] | None) -> None:
    stores.add_with_attempt()
    plan = _plan(stores, lambda stores: stores.reader.count_by_state(projects))
    assert re.search("COVERING INDEX|Index Only Scan", plan), plan


def test_a_page_of_several_large_projects_is_read_in_the_order_of_an_index(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_pages, "_FEW", 1)
    stores.add(spec=make_spec(project="research"))
    where = JobFilter(projects=frozenset({"research", "vision"}))
    plan = _plan(stores, lambda stores: stores.reader.summaries(where, limit=50, cursor=None))
    assert "ix_jobs_created_at_id" in plan, plan


@pytest.mark.parametrize("backend", ["sqlite"])
def test_jobs_in_a_rare_state_of_a_cluster_are_found_by_both(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    where = JobFilter(cluster="local", state=JobState.SUSPENDED)
    for number in range(3):
        stores.add(f"job-{number}")

    def plan() -> str:
        return _plan(stores, lambda stores: stores.reader.summaries(where, limit=50, cursor=None))

    few = plan()
    assert few.count("ix_jobs_cluster_state") == 2, few  # one in the statement that counts
    assert not re.search("ix_jobs_(state_)?created_at", few), few
    monkeypatch.setattr(job_pages, "_FEW", 0)  # nothing is rare
    assert "ix_jobs_state_created_at_id" in plan()


@pytest.mark.parametrize("backend", ["sqlite"])
def test_the_device_time_of_a_project_is_read_by_the_end_of_its_jobs(stores: Stores) -> None:
    stores.add_with_attempt()
    plan = _plan(
        stores,
        lambda stores: stores.chronicles.lifespans(since=at(0), until=at(60), projects=["research"], limit=10),
    )
    assert plan.count("ix_jobs_finished_at_id") == 2, plan


def test_ended_jobs_are_read_in_the_order_of_an_index(stores: Stores) -> None:
    stores.add_with_attempt()
    plan = _plan(stores, _READS["the ended jobs"])
    assert "ix_jobs_finished_at_id" in plan
    assert not re.search("TEMP B-TREE|Sort", plan), plan
