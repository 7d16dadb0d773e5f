"""The statements that write journals, one for many rows, built once for each kind of database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Table,
    Update,
    bindparam,
    case,
    delete,
    func,
    literal_column,
    or_,
    select,
    update,
)
from sqlalchemy.orm import Session

from orchestrator.domain.accounting.training_summary import TrainingSummary
from orchestrator.domain.explanation.row_limits import Stored
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.store.dialect import Insert
from orchestrator.store.many_rows import Values, build_insert, dialect_of, send, table_of
from orchestrator.store.mapping import stored_document, summary_columns
from orchestrator.store.tables import JournalRow, MetricRow, SnapshotRow, TrainingRow, WorkerRow

JournalKey = tuple[AttemptKey, int, int]  # attempt, replica and number of the incarnation whose journals they are


@dataclass(slots=True)
class Journal:
    """How far the journals of one incarnation of an agent have been read. Offsets in bytes."""

    progress_to: int = 0
    events_to: int = 0
    exit_record: dict[str, object] | None = None


def write_trainings(session: Session, trainings: Mapping[AttemptKey, tuple[TrainingSummary, Stored]]) -> None:
    """Update the summaries of attempts."""
    rows: list[Values] = [
        {"job_id": key.job_id, "attempt": key.number, **summary_columns(summary), "stored": stored_document(stored)}
        for key, (summary, stored) in trainings.items()
    ]
    _write(session, _upsert_training(dialect_of(session)), rows)


def write_journals(session: Session, journals: Mapping[JournalKey, Journal]) -> None:
    """Write how far each incarnation was read, and its exit record if there is one."""
    rows: list[Values] = [
        {
            "job_id": key.job_id,
            "attempt": key.number,
            "replica": replica,
            "incarnation": incarnation,
            "progress_to": journal.progress_to,
            "events_to": journal.events_to,
            "exit_record": journal.exit_record,
        }
        for (key, replica, incarnation), journal in journals.items()
    ]
    _write(session, _upsert_journal(dialect_of(session)), rows)


def write_workers(session: Session, rows: Sequence[Values]) -> None:
    """Write the newest report of each worker, unless a later incarnation of its agent has already reported."""
    _write(session, _upsert_worker(dialect_of(session)), rows)


def write_metrics(session: Session, rows: Sequence[Values]) -> None:
    """Write one point for each step. Only a point of the same or a later term replaces another."""
    _write(session, _upsert_metric(dialect_of(session)), rows)


def write_snapshots(session: Session, rows: Sequence[Values]) -> None:
    """Write snapshots. They go from committed to quarantined to deleted; a late report never moves one back."""
    _write(session, _upsert_snapshot(dialect_of(session)), rows)


def drop_snapshots(session: Session, job_id: str, *, beyond: int) -> None:
    """Keep at most `beyond` rows of a job. Deleted snapshots go first, then those of the lowest steps."""
    mine = SnapshotRow.job_id == job_id
    excess = (session.scalar(select(func.count()).where(mine)) or 0) - beyond
    if excess > 0:
        deleted_first = case((SnapshotRow.state == "deleted", 0), else_=1)
        least = select(SnapshotRow.name).where(mine).order_by(deleted_first, SnapshotRow.step, SnapshotRow.name)
        session.execute(delete(SnapshotRow).where(mine, SnapshotRow.name.in_(least.limit(excess))))


def write_verified(session: Session, rows: Sequence[Values]) -> None:
    """Write when snapshots were verified. Names that the job does not have are ignored: they are another job's."""
    if rows:
        session.connection().execute(_update_verified(), rows)


def _write(session: Session, statement: Insert, rows: Sequence[Values]) -> None:
    keys = [key.name for key in _keys(statement)]
    for wave in _waves(rows, keys) if dialect_of(session) == "postgresql" else [rows]:
        send(session, statement, wave)


def _waves(rows: Sequence[Values], keys: Sequence[str]) -> Sequence[Sequence[Values]]:
    """Split the rows, in order, so that no wave has a key twice: a statement may update a row only once."""
    key_of = itemgetter(*keys)
    if len(set(map(key_of, rows))) == len(rows):
        return [rows]
    waves: list[list[Values]] = []
    times: Counter[object] = Counter()
    for row in rows:
        key = key_of(row)
        if times[key] == len(waves):
            waves.append([])
        waves[times[key]].append(row)
        times[key] += 1
    return waves


@lru_cache
def _upsert_training(dialect: str) -> Insert:
    return _upsert(build_insert(dialect, TrainingRow))


@lru_cache
def _upsert_journal(dialect: str) -> Insert:
    return _upsert(build_insert(dialect, JournalRow))


@lru_cache
def _upsert_worker(dialect: str) -> Insert:
    insert = build_insert(dialect, WorkerRow)
    return _upsert(insert, where=insert.excluded.incarnation >= WorkerRow.incarnation)


@lru_cache
def _upsert_metric(dialect: str) -> Insert:
    insert = build_insert(dialect, MetricRow)
    new = insert.excluded
    same_attempt = (new.attempt == MetricRow.attempt) & (new.generation >= MetricRow.generation)
    return _upsert(insert, where=or_(new.attempt > MetricRow.attempt, same_attempt))


@lru_cache
def _upsert_snapshot(dialect: str) -> Insert:
    insert = build_insert(dialect, SnapshotRow)
    onward = (insert.excluded.state != literal_column("'committed'")) & (
        SnapshotRow.state != literal_column("'deleted'")
    )
    size = func.coalesce(insert.excluded.size_bytes, SnapshotRow.size_bytes)
    return _upsert(insert, where=onward, change={"state": insert.excluded.state, "size_bytes": size})


@lru_cache
def _update_verified() -> Update:
    table = table_of(SnapshotRow)
    mine = (table.c.job_id == bindparam("of_job")) & (table.c.name == bindparam("of_name"))
    return update(table).where(mine).values(verified_at=bindparam("verified_at"))


def _upsert(
    insert: Insert, *, where: ColumnElement[bool] | None = None, change: Mapping[str, object] | None = None
) -> Insert:
    """Insert a row. If it exists and `where` holds, replace it, or only the columns of `change`."""
    keys = _keys(insert)
    if change is None:
        change = {each.name: insert.excluded[each.name] for each in insert.table.columns if each not in keys}
    return insert.on_conflict_do_update(index_elements=keys, set_=change, where=where)


def _keys(insert: Insert) -> list[Column[Any]]:
    return list(_table(insert).primary_key.columns)


def _table(insert: Insert) -> Table:
    assert isinstance(insert.table, Table)
    return insert.table
