"""The statements by which journals are written: one for many rows, built once for each database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from sqlalchemy import ColumnElement, Table, Update, bindparam, func, inspect, or_, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from orchestrator.domain.attempt import AttemptKey
from orchestrator.domain.told import Told
from orchestrator.store.mapping import told_columns
from orchestrator.store.tables import Base, JournalRow, MetricRow, SnapshotRow, TrainingRow, WorkerRow

Insert = sqlite.Insert | postgresql.Insert
Values = dict[str, object]
Life = tuple[AttemptKey, int, int]  # attempt, replica, incarnation


@dataclass(slots=True)
class Journal:
    """How far one life of a replica's agent has been read. Offsets in bytes."""

    progress_to: int = 0
    events_to: int = 0
    exit_record: dict[str, object] | None = None


def write_trainings(session: Session, trainings: Mapping[AttemptKey, Told]) -> None:
    """Bring the rows, which are there, up to date."""
    rows = [{"of_job": key.job_id, "of_attempt": key.number, **told_columns(told)} for key, told in trainings.items()]
    _execute(session, _update_training(), rows)


def write_journals(session: Session, journals: Mapping[Life, Journal]) -> None:
    """How far each life was read, and its exit record once there is one."""
    rows: list[Values] = [
        {
            "job_id": key.job_id,
            "attempt": key.number,
            "replica": replica,
            "incarnation": life,
            "progress_to": journal.progress_to,
            "events_to": journal.events_to,
            "exit_record": journal.exit_record,
        }
        for (key, replica, life), journal in journals.items()
    ]
    _execute(session, _upsert_journal(_dialect(session)), rows)


def write_workers(session: Session, rows: Sequence[Values]) -> None:
    """The newest word of each worker, unless a later life of its agent has spoken already."""
    _execute(session, _upsert_worker(_dialect(session)), rows)


def write_metrics(session: Session, rows: Sequence[Values]) -> None:
    """One point a step. A later term's point replaces an earlier one's, never the other way round."""
    _execute(session, _upsert_metric(_dialect(session)), rows)


def write_snapshots(session: Session, rows: Sequence[Values]) -> None:
    """Snapshots go from committed to quarantined to deleted; a late line moves none of them back."""
    _execute(session, _upsert_snapshot(_dialect(session)), rows)


def _execute(session: Session, statement: Insert | Update, rows: Sequence[Values]) -> None:
    if rows:
        session.connection().execute(statement, rows)


def _dialect(session: Session) -> str:
    return session.get_bind().dialect.name


@lru_cache
def _update_training() -> Update:
    table = table_of(TrainingRow)
    mine = (table.c.job_id == bindparam("of_job")) & (table.c.attempt == bindparam("of_attempt"))
    return update(table).where(mine).values({name: bindparam(name) for name in told_columns(Told())})


@lru_cache
def _upsert_journal(dialect: str) -> Insert:
    return _upsert(_insert(dialect, JournalRow))


@lru_cache
def _upsert_worker(dialect: str) -> Insert:
    insert = _insert(dialect, WorkerRow)
    return _upsert(insert, where=insert.excluded.incarnation >= WorkerRow.incarnation)


@lru_cache
def _upsert_metric(dialect: str) -> Insert:
    insert = _insert(dialect, MetricRow)
    new = insert.excluded
    same_attempt = (new.attempt == MetricRow.attempt) & (new.generation >= MetricRow.generation)
    return _upsert(insert, where=or_(new.attempt > MetricRow.attempt, same_attempt))


@lru_cache
def _upsert_snapshot(dialect: str) -> Insert:
    insert = _insert(dialect, SnapshotRow)
    onward = (insert.excluded.state != "committed") & (SnapshotRow.state != "deleted")
    size = func.coalesce(insert.excluded.size_bytes, SnapshotRow.size_bytes)
    return _upsert(insert, where=onward, change={"state": insert.excluded.state, "size_bytes": size})


def _insert(dialect: str, table: type[Base]) -> Insert:
    return postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)


def _upsert(
    insert: Insert, *, where: ColumnElement[bool] | None = None, change: Mapping[str, object] | None = None
) -> Insert:
    """Insert a row; where one is there already and `where` holds, replace it (or only what `change` names)."""
    assert isinstance(insert.table, Table)
    keys = list(insert.table.primary_key.columns)
    if change is None:
        change = {column.name: insert.excluded[column.name] for column in insert.table.columns if column not in keys}
    return insert.on_conflict_do_update(index_elements=keys, set_=change, where=where)


def table_of(row: type[Base]) -> Table:
    table = inspect(row).local_table
    assert isinstance(table, Table)
    return table
