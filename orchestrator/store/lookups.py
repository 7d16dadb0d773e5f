"""Reads and writes that several stores share, inside their transactions."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TypeVarTuple, Unpack

from sqlalchemy import (
    ColumnElement,
    CompoundSelect,
    Select,
    any_,
    bindparam,
    func,
    insert,
    select,
    text,
    union_all,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.orm import Session

from orchestrator.domain.accounting.training_summary import fitting
from orchestrator.domain.errors import NotFound
from orchestrator.domain.job.event import Event
from orchestrator.domain.job.job import JobState
from orchestrator.store.dialect import is_postgres
from orchestrator.store.engine import News, add_news, subscriptions_of
from orchestrator.store.many_rows import build_insert, dialect_of, send
from orchestrator.store.outbox_store import add_deliveries
from orchestrator.store.sanitize import shorten_evidence
from orchestrator.store.tables import EventRow, JobRow, JournalRow
from orchestrator.store.types import CleanText
from trainer.contract.exit_record import ExitRecord, Outcome, parse_exit_record

Columns = TypeVarTuple("Columns")

ENDED_STATES = tuple(state.value for state in JobState if state.terminal)
LIVE_STATES = tuple(state.value for state in JobState if not state.terminal)
AT_REST = JobRow.state.in_(ENDED_STATES) & (JobRow.desired_retry_number <= JobRow.retries_done)
RETRY_REQUESTED = text("desired_retry_number > retries_done")  # the text of the condition of a partial index
_ENDED = func.coalesce(JobRow.state, "").in_(ENDED_STATES)  # coalesce keeps planners from choosing the index of states

_PART = 500  # the parameters of a statement are limited
_EVENTS_PART = 100  # in one statement. While a larger part is rendered, PostgreSQL could end the idle transaction
_EVENTS_LOCK = 0x65766E74  # key of pg_advisory_xact_lock, "evnt"
# Built once, because building an expression costs more than running it.
_JOB = select(JobRow).where(JobRow.id == bindparam("id"))
_TURN = select(func.pg_advisory_xact_lock(_EVENTS_LOCK).label("taken")).cte("turn")
_INSERT_EVENT_WITH_ID = insert(EventRow).returning(EventRow.id, sort_by_parameter_order=True)


def require_job(session: Session, job_id: str) -> JobRow:
    """Raises NotFound."""
    row = session.scalar(_JOB, {"id": job_id})
    if row is None:
        raise NotFound(f"there is no job {job_id}")
    return row


def select_at_work(query: Select[Unpack[Columns]]) -> CompoundSelect[Unpack[Columns]]:
    """Restrict a query of jobs to those that are not at rest.

    One search for each state and one for requested retries, each with its index, so that a long history of ended jobs
    costs nothing. Planners must not choose another way: PostgreSQL expects that a third of all jobs has a requested
    retry, SQLite that all states have equally many jobs.
    """
    live = (query.where(JobRow.state == state) for state in LIVE_STATES)
    return union_all(*live, query.where(RETRY_REQUESTED, _ENDED))


def in_parts(ids: Collection[str]) -> Iterator[list[str]]:
    """Sort ids and split them into lists that fit into one statement."""
    ordered = sorted(ids)
    for start in range(0, len(ordered), _PART):
        yield ordered[start : start + _PART]


def among(dialect: str, column: ColumnElement[str], name: str) -> ColumnElement[bool]:
    """Build `column IN ids` with one parameter of this name, a value of `bind_ids`.

    SQLAlchemy is slow with a parameter for each id.
    """
    if dialect == "postgresql":
        return column == any_(bindparam(name, type_=postgresql.ARRAY(CleanText())))
    return column.in_(select(func.json_each(bindparam(name)).table_valued("value").c.value))


def bind_ids(session: Session, ids: Sequence[str]) -> object:
    return ids if is_postgres(session) else json.dumps(ids)


def read_states(session: Session, job_ids: Collection[str]) -> dict[str, JobState]:
    """Return the states of these jobs. A job that does not exist is left out."""
    found: dict[str, JobState] = {}
    for some in in_parts(job_ids):
        rows = session.execute(select(JobRow.id, JobRow.state).where(JobRow.id.in_(some)))
        found.update({job_id: JobState(state) for job_id, state in rows})
    return found


def append_events(session: Session, events: Sequence[tuple[str, Event]], *, news: News | None = None) -> None:
    """Insert events, and their deliveries to webhooks, as the last statement of a transaction.

    Listeners get the events, or `news` instead. PostgreSQL assigns ids before transactions commit. So transactions with
    events take turns; otherwise a reader could pass an id that becomes visible later. Because of that lock, a
    transaction must not wait for another lock after this call.
    """
    add_news(session, events if news is None else news)
    if not events:
        return
    session.flush()
    subscriptions = subscriptions_of(session)
    if not any(hook.wants(event.kind) for hook in subscriptions for _, event in events):
        for start in range(0, len(events), _EVENTS_PART):
            rows = [_columns(job_id, event) for job_id, event in events[start : start + _EVENTS_PART]]
            send(session, build_insert(dialect_of(session), EventRow, first=_TURN), rows)
        return
    if is_postgres(session):
        session.execute(select(_TURN))
    columns = [_columns(job_id, event) for job_id, event in events]
    ids = session.connection().execute(_INSERT_EVENT_WITH_ID, columns).scalars().all()
    numbered = [(row, job_id, event) for row, (job_id, event) in zip(ids, events, strict=True)]
    add_deliveries(session, numbered, subscriptions)


def _columns(job_id: str, event: Event) -> dict[str, object]:
    return {
        "job_id": job_id,
        "attempt": event.attempt,
        "generation": fitting(event.generation),
        "at": event.at,
        "kind": event.kind,
        "sentence": event.sentence,
        "evidence": shorten_evidence(event.evidence),
        "actor": event.actor,
    }


def exits_of(journals: Iterable[JournalRow]) -> dict[tuple[str, int], dict[int, ExitRecord]]:
    """Return the exit records by attempt and replica. Only a replica's newest incarnation counts.

    An incarnation that was refused the claim counts only if the replica had no other.
    """
    newest: dict[tuple[str, int, int], tuple[tuple[bool, int], ExitRecord | None]] = {}
    for row in journals:
        record = _exit_record(row.exit_record)
        standing = (record is None or record.outcome is not Outcome.REFUSED, row.incarnation)
        replica = (row.job_id, row.attempt, row.replica)
        if replica not in newest or standing > newest[replica][0]:
            newest[replica] = (standing, record)
    exits: dict[tuple[str, int], dict[int, ExitRecord]] = {}
    for (job_id, attempt, replica_number), (_, record) in newest.items():
        if record is not None:
            exits.setdefault((job_id, attempt), {})[replica_number] = record
    return exits


def _exit_record(document: dict[str, object] | None) -> ExitRecord | None:
    return None if document is None else parse_exit_record(document)
