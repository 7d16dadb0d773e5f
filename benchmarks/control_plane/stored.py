"""Store many jobs in little time: the stores create a few, and the database copies their rows with all columns."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from sqlalchemy import Table, insert, select, true
from sqlalchemy.orm import Session

from orchestrator.domain.job.attempt import Attempt, AttemptKey, AttemptState
from orchestrator.domain.job.event import Event
from orchestrator.domain.job.job import Desired, Job, JobState
from orchestrator.domain.specs.spec import JobSpec
from orchestrator.ports.journals import JournalBatch
from orchestrator.ports.supervision import Change
from orchestrator.store.engine import Database
from orchestrator.store.job_store import SqlJobStore
from orchestrator.store.journal_store import SqlJournalStore
from orchestrator.store.lease_store import SqlLeaseStore
from orchestrator.store.supervisor_store import SqlSupervisorStore
from orchestrator.store.tables import Base, JobRow
from trainer.contract.clock import render_time
from trainer.contract.exit_record import JournalEvent
from trainer.contract.progress import Phase, Progress

UNSUPERVISED = "elsewhere"  # a cluster that the service does not have: it leaves these jobs alone
WORKERS = 8
SLOTS = 1000  # of this machine
_DAY_S = 86_400.0
_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
_PROJECTS = ("vision", "speech", "language", "ranking")
_RUNNING_SHARE = 50  # one job of so many runs
_ENDS = (JobState.SUCCEEDED, JobState.SUCCEEDED, JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


def make_spec(name: str = "train", **fields: object) -> JobSpec:
    run = {"command": ["python", "train.py", "--config", "base.yaml"], "workdir": "/", "env": {"SEED": "1"}}
    labels = {"team": "research", "experiment": "ablation-7"}
    return JobSpec.model_validate({"name": name, "run": run, "labels": labels, **fields})


def make_job(job_id: str, spec: JobSpec, state: JobState, at: datetime, **fields: object) -> Job:
    ended = at + timedelta(hours=1) if state.terminal else None
    job = Job(
        id=job_id, spec=spec, state=state, reason="set by the benchmark", desired=Desired(), created_at=at,
        updated_at=at, finished_at=ended,
    )  # fmt: skip
    return replace(job, **fields)  # type: ignore[arg-type]


def add_job(database: Database, job: Job) -> None:
    event = Event(at=job.created_at, kind="job.submitted", sentence="submitted by the benchmark")
    SqlJobStore(database).add(job, idempotency_key=None, digest="0" * 64, event=event)
    _apply(database, Change(job=job, attempt=None, events=[event]))


def add_queue(database: Database, cluster: str) -> None:
    """Make all other jobs wait: a job between two attempts holds a slot, and the first in the queue needs all slots."""
    patient = make_spec(cluster=cluster, supervise={"backoff_s": [_DAY_S, _DAY_S]})
    retry_at = datetime.now(UTC) + timedelta(seconds=_DAY_S)
    add_job(database, make_job(f"holder-{cluster}", patient, JobState.RECOVERING, _BEGIN, retry_at=retry_at))
    wide = make_spec(cluster=cluster, topology={"workers_per_node": SLOTS})
    add_job(database, make_job(f"wide-{cluster}", wide, JobState.QUEUED, _BEGIN))


def add_running(database: Database, job: Job, *, steps: int = 10) -> None:
    """Add the job with an attempt of one replica, whose workers have reported `steps` steps."""
    add_job(database, job)
    ended = job.state.terminal
    attempt = Attempt(
        key=AttemptKey(job.id, 1),
        state=AttemptState[job.state.value] if ended else AttemptState.RUNNING,
        reason="set by the benchmark", nonce="c0ffee00", nodes=job.spec.topology.nodes,
        asked=job.spec.topology.nodes, port=20000,
        created_at=job.created_at, handle=f"local:{job.id}", started_at=job.created_at, ended_at=job.finished_at,
    )  # fmt: skip
    events = [Event(at=job.created_at, kind="attempt.state", sentence=text, attempt=1) for text in ("began", "runs")]
    _apply(database, Change(job=job, attempt=attempt, events=events))
    lines = [make_line(step, rank) for step in range(1, steps + 1) for rank in range(WORKERS)]
    reported: list[tuple[str, dict[str, object]]] = [
        ("generation.started", {"world_size": WORKERS}),
        ("snapshot.committed", {"name": "step-00000010-a1-g1"}),
    ]
    journaled = [
        JournalEvent(kind=kind, at=render_time(_BEGIN), sentence="reported", generation=1, evidence=evidence)
        for kind, evidence in reported
    ]
    batch = JournalBatch(
        key=attempt.key, replica=0, incarnation=1,
        progress=list(enumerate(lines, 1)), progress_to=len(lines),
        events=list(enumerate(journaled, 1)), events_to=len(journaled), exit_record=None,
    )  # fmt: skip
    SqlJournalStore(database).ingest([batch], arrived_at=job.created_at)


def _apply(database: Database, change: Change) -> None:
    """Write as the supervisor of a cluster that has no other."""
    lease = SqlLeaseStore(database).acquire(UNSUPERVISED, "benchmark", ttl_s=3600)
    assert lease is not None
    SqlSupervisorStore(database, lease).apply(change)


def make_line(step: int, rank: int) -> Progress:
    metrics = {"loss": 2.25, "tokens_per_s": 91234.5, "step_s": 0.412, "learning_rate": 0.0003} if rank == 0 else {}
    return Progress(
        at=render_time(_BEGIN), rank=rank, local_rank=rank, world_size=WORKERS, generation=1, pid=4000 + rank,
        phase=Phase.STEP, step=step, total_steps=100_000, memory_bytes=61_000_000_000, metrics=metrics,
    )  # fmt: skip


def add_many(database: Database, count: int) -> list[str]:
    """Add `count` jobs of four projects: one in fifty runs elsewhere, the others have ended."""
    ended, live = add_templates(database)
    copies: dict[str, list[int]] = {template: [] for template in (*ended, *live)}
    for job in range(count - len(copies)):
        runs, number = job % _RUNNING_SHARE == 0, job // _RUNNING_SHARE
        copies[live[number % len(live)] if runs else ended[job % len(ended)]].append(job)
    ids = [one for template, numbers in copies.items() for one in copy(database, template, numbers)]
    settle(database)
    return sorted(ids)


def add_templates(database: Database) -> tuple[list[str], list[str]]:
    """Add a job of each project and end, and a job of each project that runs elsewhere. Returns the ids of both."""
    ended, live = list(itertools.product(_PROJECTS, _ENDS)), [(project, JobState.RUNNING) for project in _PROJECTS]
    ids: list[str] = []
    for number, (project, state) in enumerate([*ended, *live]):
        cluster = "local" if state.terminal else UNSUPERVISED
        spec = make_spec(project=project, cluster=cluster, topology={"workers_per_node": WORKERS})
        ids.append(f"template-{number:02}")
        add_running(database, make_job(ids[-1], spec, state, _BEGIN))
    return ids[: len(ended)], ids[len(ended) :]


def settle(database: Database) -> None:
    """Update the statistics, as the database does when idle."""
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("VACUUM ANALYZE" if database.file is None else "ANALYZE")


def copy(database: Database, template: str, numbers: Sequence[int]) -> list[str]:
    """Copy a job with all its rows but a reservation. `numbers` also set the copies' names and times, in seconds."""
    ids = [f"copy-{number:07}" for number in numbers]
    with database.write() as session:
        connection = session.connection()
        row = dict(connection.execute(select(JobRow.__table__).where(JobRow.id == template)).mappings().one())
        births = [_BEGIN + timedelta(seconds=number + 1) for number in numbers]
        rows = [
            {**row, "id": one, "name": one, "spec": {**row["spec"], "name": one}, "created_at": birth}
            for one, birth in zip(ids, births, strict=True)
        ]
        if rows:
            connection.execute(insert(JobRow.__table__), rows)  # type: ignore[arg-type]
        for table in Base.metadata.sorted_tables:
            if "job_id" in table.columns and table.name != "reservations":
                _copy_rows(session, table, template, ids)
    return ids


def _copy_rows(session: Session, table: Table, template: str, ids: Sequence[str]) -> None:
    """INSERT ... SELECT the template's rows once for each copy."""
    columns = [column for column in table.columns if column.name not in ("job_id", "id")]
    jobs = JobRow.__table__
    for first in range(0, len(ids), 5000):
        part = ids[first : first + 5000]
        chosen = (
            select(jobs.c.id, *columns)
            .select_from(jobs.join(table, true()))
            .where(jobs.c.id.in_(part), table.c.job_id == template)
        )
        session.execute(insert(table).from_select(["job_id", *(column.name for column in columns)], chosen))
