"""Status, as the supervisor reads and writes it. Never writes a request or a spec."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from datetime import datetime
from functools import partial

from sqlalchemy import ColumnElement, String, bindparam, cast, delete, func, select, tuple_, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from orchestrator.domain.accounting.training_summary import TrainingSummary
from orchestrator.domain.errors import InvalidTransition, NotFound, Refused
from orchestrator.domain.job.attempt import Attempt, AttemptKey, AttemptState
from orchestrator.domain.job.event import REPLICA, Event
from orchestrator.domain.job.job import JobState
from orchestrator.domain.observation.membership import Members, read_members
from orchestrator.domain.observation.node_record import NodeFailure
from orchestrator.domain.observation.observation import RankReport, parse_replicas
from orchestrator.domain.queueing.lease import Lease
from orchestrator.ports.supervision import Change, Journaled, Supervised
from orchestrator.store.engine import Database
from orchestrator.store.lease_store import require_lease
from orchestrator.store.lookups import append_events, read_states, require_job
from orchestrator.store.many_rows import table_of
from orchestrator.store.mapping import (
    attempt_columns,
    rank_report_of,
    status_columns,
    stored_document,
    stored_event_of,
    stored_of,
    summary_columns,
)
from orchestrator.store.node_records import read_reports, write_marks
from orchestrator.store.overview import read_at_work, read_supervised
from orchestrator.store.tables import (
    AttemptRow,
    EventRow,
    JobRow,
    JournalRow,
    ReservationRow,
    TrainingRow,
    WorkerRow,
)
from trainer.contract.exit_record import EventKind, Outcome

# Built once, because building an expression costs more than running it.
_NEWEST_EVENT = select(func.max(EventRow.id))
# Not grouped by job: SQLite would walk through all events in the order of the jobs.
_CHANGED = select(EventRow.job_id, EventRow.id).where(EventRow.id > bindparam("since"))
_LIVE_ATTEMPTS = tuple(state.value for state in AttemptState if not state.terminal)
# Each lost race means that another process took a port. More losses in a row than this have another cause.
_RACES = 64

_NOTES_IN_ONE_GO = 200  # other writers wait meanwhile
_JOBS = table_of(JobRow)
_NOTE = (
    update(_JOBS).where(_JOBS.c.id == bindparam("of_job")).values(reason=bindparam("why"), updated_at=bindparam("at"))
)


class SqlSupervisorStore:
    """Implements ports.SupervisorReader, and ports.SupervisorWriter under one lease."""

    def __init__(self, database: Database, lease: Lease) -> None:
        self._database = database
        self._lease = lease

    def changed(self, since: int | None) -> tuple[Set[str], int]:
        with self._database.ask() as connection:
            if since is None:
                return set(), connection.scalar(_NEWEST_EVENT) or 0
            rows = connection.execute(_CHANGED, {"since": since}).all()
        return {job_id for job_id, _ in rows}, max((newest for _, newest in rows), default=since)

    def at_work(self, cluster: str) -> Set[str]:
        return read_at_work(self._database, cluster)

    def supervised(self, cluster: str, among: Set[str]) -> Sequence[Supervised]:
        return read_supervised(self._database, cluster, among)

    def apply(self, change: Change) -> None:
        """Raises NotFound for an unknown job. Not idempotent: a repeated change appends its events again."""
        job = change.job
        with self._writing() as session:
            written = session.scalars(
                update(JobRow).where(JobRow.id == job.id).values(status_columns(job)).returning(JobRow.id)
            ).all()
            if not written:
                raise NotFound(f"there is no job {job.id}")
            if change.attempt is not None:
                _write_attempt(session, change.attempt)
            write_marks(session, change.node_failures)
            if job.state.terminal:
                # After a crash, a port may be reserved for an attempt that was never written.
                session.execute(delete(ReservationRow).where(ReservationRow.job_id == job.id))
            append_events(session, [(job.id, event) for event in change.events])

    def note(self, reasons: Mapping[str, str], now: datetime) -> None:
        rows = [{"of_job": job_id, "why": reason, "at": now} for job_id, reason in reasons.items()]
        for start in range(0, len(rows), _NOTES_IN_ONE_GO):
            with self._writing() as session:
                session.connection().execute(_NOTE, rows[start : start + _NOTES_IN_ONE_GO])

    def states(self, job_ids: Collection[str]) -> Mapping[str, JobState]:
        with self._database.read() as session:
            return read_states(session, job_ids)

    def journaled(self, key: AttemptKey) -> Journaled:
        with self._database.read() as session:
            return Journaled(ranks=_read_ranks(session, key), missed=_read_missed(session, key))

    def members(self, key: AttemptKey, gone: Collection[int]) -> Members:
        with self._database.read() as session:
            return read_members(_read_reported(session, key), gone, partial(_read_events, session, key))

    def node_failures(self, cluster: str, *, since: datetime) -> Sequence[NodeFailure]:
        with self._database.ask() as connection:
            return read_reports(connection, since=since, cluster=cluster)

    def reserve_port(self, key: AttemptKey, cluster: str, candidates: range, *, after: int | None) -> int:
        """Raises NotFound for an unknown job."""
        for _ in range(_RACES):
            try:
                with self._writing() as session:
                    return _reserve(session, key, cluster, candidates, after)
            except IntegrityError:
                continue  # another process took the port, or one for this attempt, after this one looked
        raise Refused(
            f"cluster {cluster}: other services took each port that was tried for {key}; the next pass retries"
        )

    @contextmanager
    def _writing(self) -> Iterator[Session]:
        """Begin a transaction under the lease. A takeover of the lease waits until it ends."""
        with self._database.write() as session:
            require_lease(session, self._lease)
            yield session


def _read_ranks(session: Session, key: AttemptKey) -> Sequence[RankReport]:
    mine = (WorkerRow.job_id == key.job_id) & (WorkerRow.attempt == key.number)
    newest: dict[int, RankReport] = {}
    for row in session.scalars(select(WorkerRow).where(mine).order_by(WorkerRow.generation)):
        newest[row.rank] = rank_report_of(row)  # in a later generation another worker may have the rank
    return list(newest.values())


def _read_missed(session: Session, key: AttemptKey) -> frozenset[int]:
    mine = (EventRow.job_id == key.job_id) & (EventRow.attempt == key.number)
    started = select(func.max(EventRow.generation)).where(mine, EventRow.kind == EventKind.GENERATION_STARTED.value)
    newest = session.scalar(started) or 0
    lost = select(EventRow.evidence).where(
        mine, EventRow.kind == EventKind.PEER_LOST.value, EventRow.generation >= newest
    )
    return parse_replicas(session.scalars(lost))


def _read_reported(session: Session, key: AttemptKey) -> Mapping[int, Sequence[int]]:
    """Return the incarnations of each replica's agent. One that was refused the claim does not count."""
    mine = (JournalRow.job_id == key.job_id) & (JournalRow.attempt == key.number)
    found: defaultdict[int, list[int]] = defaultdict(list)
    rows = session.execute(select(JournalRow.replica, JournalRow.incarnation, JournalRow.exit_record).where(mine))
    for replica, incarnation, record in rows:
        if record is None or record.get("outcome") != Outcome.REFUSED.value:
            found[replica].append(incarnation)
    return found


def _read_events(
    session: Session, key: AttemptKey, kinds: Collection[str], replicas: Collection[int] | None
) -> Sequence[Event]:
    """Return an attempt's events of these kinds in the order of their arrival, only of these replicas if given."""
    wanted = (EventRow.job_id == key.job_id) & (EventRow.attempt == key.number) & EventRow.kind.in_(kinds)
    if replicas is not None:
        # Compared as text: a cast to a number could fail for another event.
        wanted &= cast(EventRow.evidence[REPLICA], String).in_([str(replica) for replica in replicas])
    return [stored_event_of(row).event for row in session.scalars(select(EventRow).where(wanted).order_by(EventRow.id))]


def _write_attempt(session: Session, attempt: Attempt) -> None:
    row = session.get(AttemptRow, (attempt.key.job_id, attempt.key.number))
    if row is None:
        key = {"job_id": attempt.key.job_id, "number": attempt.key.number}
        session.add(AttemptRow(**key, **attempt_columns(attempt)))
        session.flush()
        columns = summary_columns(TrainingSummary()) | {"stored": _stored_before(session, attempt.key)}
        session.add(TrainingRow(job_id=attempt.key.job_id, attempt=attempt.key.number, **columns))
    else:
        if row.state not in _LIVE_ATTEMPTS:
            raise InvalidTransition(f"attempt {attempt.key} has ended {row.state} and cannot change")
        for name, value in attempt_columns(attempt).items():
            setattr(row, name, value)
    if attempt.state.terminal:
        session.execute(delete(ReservationRow).where(_reservation_of(attempt.key)))
    session.flush()


def _stored_before(session: Session, key: AttemptKey) -> dict[str, object]:
    """Return what earlier attempts have stored, because all attempts of a job share its limits."""
    mine = (TrainingRow.job_id == key.job_id) & (TrainingRow.attempt < key.number)
    newest = select(TrainingRow.stored).where(mine).order_by(TrainingRow.attempt.desc()).limit(1)
    return stored_document(stored_of(session.scalar(newest)).successor())


def _reserve(session: Session, key: AttemptKey, cluster: str, candidates: range, after: int | None) -> int:
    require_job(session, key.job_id)
    held = session.scalar(select(ReservationRow.port).where(_reservation_of(key)))
    if held is not None:
        return held
    taken = set(session.scalars(select(ReservationRow.port).where(ReservationRow.cluster == cluster)))
    above = [port for port in candidates if after is None or port > after]
    below = [port for port in candidates if after is not None and port <= after]
    free = next((port for port in (*above, *below) if port not in taken), None)
    if free is None:
        raise Refused(
            f"cluster {cluster}: all {len(candidates)} rendezvous ports are taken; "
            "end some jobs or widen ORCHESTRATOR_RENDEZVOUS_PORTS"
        )
    session.add(ReservationRow(job_id=key.job_id, attempt=key.number, cluster=cluster, port=free))
    session.flush()
    return free


def _reservation_of(key: AttemptKey) -> ColumnElement[bool]:
    return tuple_(ReservationRow.job_id, ReservationRow.attempt) == (key.job_id, key.number)
