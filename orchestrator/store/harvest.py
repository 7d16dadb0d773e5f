"""What new journal lines leave in the tables of workers, metrics and snapshots. Every write may be repeated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, Table, func, or_
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from orchestrator.domain.attempt import AttemptKey
from orchestrator.ports import JournalBatch
from orchestrator.store.sanitize import clean_integer, clean_text
from orchestrator.store.tables import Base, MetricRow, SnapshotRow, WorkerRow
from orchestrator.store.training import time_of
from trainer.contract.exit_record import EventKind, JournalEvent
from trainer.contract.manifest import parse_snapshot_name
from trainer.contract.progress import Progress

Insert = sqlite.Insert | postgresql.Insert
Values = dict[str, object]

_SNAPSHOT_STATES = {
    EventKind.SNAPSHOT_COMMITTED.value: "committed",
    EventKind.SNAPSHOT_QUARANTINED.value: "quarantined",
    EventKind.SNAPSHOT_DELETED.value: "deleted",
}


def write_workers(session: Session, batch: JournalBatch, lines: Sequence[Progress], arrived_at: datetime) -> None:
    """The newest word of each worker, unless a later life of its agent has spoken already."""
    newest = {line.local_rank: line for line in lines}
    rows = [_worker(batch, line, arrived_at) for line in newest.values() if _fits(line)]
    if rows:
        insert = _insert(session, WorkerRow)
        _upsert(session, insert, rows, where=insert.excluded.incarnation >= WorkerRow.incarnation)


def write_metrics(session: Session, key: AttemptKey, lines: Sequence[Progress], arrived_at: datetime) -> None:
    """One point a step. A later term's point replaces an earlier one's, never the other way round."""
    points: dict[int, Values] = {}
    for line in lines:
        if line.step is not None and line.metrics and (line.rank == 0 or "loss" in line.metrics) and _fits(line):
            known = points.get(line.step)
            if known is None or line.generation >= int(str(known["generation"])):
                points[line.step] = {
                    "job_id": key.job_id,
                    "step": line.step,
                    "attempt": key.number,
                    "generation": line.generation,
                    "at": time_of(line.at, arrived_at),
                    "measured": dict(line.metrics),
                }
    if points:
        insert = _insert(session, MetricRow)
        new = insert.excluded
        same_attempt = (new.attempt == MetricRow.attempt) & (new.generation >= MetricRow.generation)
        rows = [points[step] for step in sorted(points)]  # in one order, so that two attempts never block each other
        _upsert(session, insert, rows, where=or_(new.attempt > MetricRow.attempt, same_attempt))


def write_snapshots(session: Session, key: AttemptKey, events: Sequence[JournalEvent], arrived_at: datetime) -> None:
    """Snapshots go from committed to quarantined to deleted; a late line moves none of them back."""
    for event in events:
        row = _snapshot(key, event, arrived_at)
        if row is not None:
            insert = _insert(session, SnapshotRow)
            onward = (insert.excluded.state != "committed") & (SnapshotRow.state != "deleted")
            size = func.coalesce(insert.excluded.size_bytes, SnapshotRow.size_bytes)
            _upsert(session, insert, [row], where=onward, change={"state": insert.excluded.state, "size_bytes": size})


def _insert(session: Session, table: type[Base]) -> Insert:
    postgres = session.get_bind().dialect.name == "postgresql"
    return postgresql.insert(table) if postgres else sqlite.insert(table)


def _upsert(
    session: Session,
    insert: Insert,
    rows: Sequence[Values],
    *,
    where: ColumnElement[bool],
    change: Mapping[str, object] | None = None,
) -> None:
    """Insert rows; where one is there already and `where` holds, replace it (or only what `change` names)."""
    assert isinstance(insert.table, Table)
    keys = list(insert.table.primary_key.columns)
    if change is None:
        change = {column.name: insert.excluded[column.name] for column in insert.table.columns if column not in keys}
    session.connection().execute(insert.on_conflict_do_update(index_elements=keys, set_=change, where=where), rows)


def _worker(batch: JournalBatch, line: Progress, arrived_at: datetime) -> Values:
    return {
        "job_id": batch.key.job_id,
        "attempt": batch.key.number,
        "replica": batch.replica,
        "local_rank": line.local_rank,
        "incarnation": batch.incarnation,
        "rank": line.rank,
        "world_size": line.world_size,
        "generation": line.generation,
        "pid": line.pid,
        "phase": line.phase.value,
        "step": line.step,
        "memory_bytes": clean_integer(line.memory_bytes),
        "at": time_of(line.at, arrived_at),
    }


def _fits(line: Progress) -> bool:
    """Whether the line's numbers are such as a database holds; a wild one costs its line, not the batch."""
    numbers = (line.rank, line.local_rank, line.world_size, line.generation, line.pid, line.step or 0)
    return all(clean_integer(number) is not None for number in numbers)


def _snapshot(key: AttemptKey, event: JournalEvent, arrived_at: datetime) -> Values | None:
    """A row for an event about a snapshot; None for another event, and for one that names no snapshot."""
    state = _SNAPSHOT_STATES.get(event.kind)
    name = clean_text(str(event.evidence.get("name", "")), max_chars=255)
    parsed = parse_snapshot_name(name)
    if state is None or parsed is None or parsed.term.attempt >= 2**31:
        return None
    step, generation = clean_integer(parsed.step), clean_integer(parsed.term.generation)
    size = event.evidence.get("size_bytes")
    if step is None or generation is None:
        return None
    return {
        "job_id": key.job_id,
        "name": name,
        "step": step,
        "attempt": parsed.term.attempt,
        "generation": generation,
        "state": state,
        "size_bytes": clean_integer(size) if isinstance(size, int) else None,
        "at": time_of(event.at, arrived_at),
    }
