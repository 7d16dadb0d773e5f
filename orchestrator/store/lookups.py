"""Small questions that several stores ask inside their transactions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import text
from sqlalchemy.orm import Session

from orchestrator.domain.errors import NotFound
from orchestrator.domain.event import Event
from orchestrator.store.mapping import event_row
from orchestrator.store.tables import JobRow, JournalRow
from trainer.contract.exit_record import ExitRecord, Outcome, parse_exit_record

_EVENTS_LOCK = 0x65766E74  # of pg_advisory_xact_lock: "evnt"


def require_job(session: Session, job_id: str) -> JobRow:
    """Raises NotFound."""
    row = session.get(JobRow, job_id)
    if row is None:
        raise NotFound(f"there is no job {job_id}")
    return row


def append_events(session: Session, events: Sequence[tuple[str, Event]]) -> None:
    """Write events as the last act of a transaction.

    PostgreSQL gives ids before transactions commit: without taking turns, a reader could pass an id that becomes
    visible later. Nothing may wait for another lock behind this one, hence "last".
    """
    if not events:
        return
    session.flush()
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _EVENTS_LOCK})
    session.add_all([event_row(job_id, event) for job_id, event in events])
    session.flush()


def exits_of(journals: Iterable[JournalRow]) -> dict[tuple[str, int], dict[int, ExitRecord]]:
    """The exit records by attempt and replica: of the replica's newest life, which may not have ended yet.

    A life that was refused the claim counts only where the replica had no other.
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
