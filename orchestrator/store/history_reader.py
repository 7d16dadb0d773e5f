"""Read a job's attempts, events, snapshots, workers, agents and metrics."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from sqlalchemy import BigInteger, ColumnElement, Integer, Select, column, func, literal, select, union_all, values
from sqlalchemy.orm import Session

from orchestrator.store.engine import Database
from orchestrator.store.lookups import require_job
from orchestrator.store.mapping import (
    AgentPlace,
    agents_of,
    attempt_of,
    metric_point_of,
    stored_event_of,
    stored_replica_of,
    stored_snapshot_of,
    stored_worker_of,
    training_of,
)
from orchestrator.store.paging import Key, Listing
from orchestrator.store.records import (
    AttemptStanding,
    MetricPoint,
    StoredEvent,
    StoredReplica,
    StoredSnapshot,
    StoredWorker,
)
from orchestrator.store.tables import AttemptRow, EventRow, JournalRow, MetricRow, SnapshotRow, TrainingRow, WorkerRow
from trainer.contract.exit_record import EventKind

Row = TypeVar("Row", AttemptRow, EventRow, SnapshotRow, WorkerRow)
Item = TypeVar("Item")
Incarnation = tuple[int, int]  # replica, incarnation

_ATTEMPTS = (Key(AttemptRow.number, int),)
_EVENTS = (Key(EventRow.id, int),)
_EVENTS_NEWEST = (Key(EventRow.id, int, descending=True),)
_SNAPSHOTS = (
    Key(SnapshotRow.step, int, descending=True),
    Key(SnapshotRow.attempt, int, descending=True),
    Key(SnapshotRow.generation, int, descending=True),
    Key(SnapshotRow.name, str),
)
# Plain rows: there are many, and building ORM objects costs more than reading.
_POINTS = select(MetricRow.step, MetricRow.attempt, MetricRow.generation, MetricRow.at, MetricRow.measured)
_MANY = 100_000  # rows; numbering more of them costs more than one search for each point
_REPLICAS = (Key(JournalRow.replica, int), Key(JournalRow.incarnation, int))
_WORKERS = (Key(WorkerRow.attempt, int, descending=True), Key(WorkerRow.replica, int), Key(WorkerRow.local_rank, int))


class HistoryReader:
    """A page is (rows, cursor of the next page or None). A cursor belongs to one list of one job.

    Raises NotFound for an unknown job, Refused for a cursor of another list, StoreUnavailable.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def attempts(self, job_id: str, *, limit: int, cursor: str | None) -> tuple[Sequence[AttemptStanding], str | None]:
        """Return attempts, oldest first."""
        attempts, next_cursor = self._page(AttemptRow, _ATTEMPTS, attempt_of, job_id, limit, cursor)
        numbers = [attempt.key.number for attempt in attempts]
        if not numbers:
            return [], next_cursor
        with self._database.read() as session:
            wanted = (TrainingRow.job_id == job_id) & TrainingRow.attempt.in_(numbers)
            rows = {row.attempt: row for row in session.scalars(select(TrainingRow).where(wanted))}
        return [AttemptStanding(one, training_of(rows.get(one.key.number))) for one in attempts], next_cursor

    def events(
        self, job_id: str, *, limit: int, cursor: str | None, newest_first: bool = False
    ) -> tuple[Sequence[StoredEvent], str | None]:
        """Return events in the order of arrival, or in reverse."""
        order = _EVENTS_NEWEST if newest_first else _EVENTS
        return self._page(EventRow, order, stored_event_of, job_id, limit, cursor)

    def snapshots(self, job_id: str, *, limit: int, cursor: str | None) -> tuple[Sequence[StoredSnapshot], str | None]:
        """Return snapshots, newest step first."""
        return self._page(SnapshotRow, _SNAPSHOTS, stored_snapshot_of, job_id, limit, cursor)

    def snapshot_steps(self, job_id: str, *, since_step: int, until_step: int | None) -> Sequence[int]:
        """Return the steps above `since_step` of all snapshots, also of deleted ones, in order."""
        wanted = (SnapshotRow.job_id == job_id) & (SnapshotRow.step > since_step)
        if until_step is not None:
            wanted &= SnapshotRow.step <= until_step
        with self._database.read() as session:
            return session.scalars(select(SnapshotRow.step).where(wanted).distinct().order_by(SnapshotRow.step)).all()

    def has_snapshot(self, job_id: str, name: str) -> bool:
        """Whether the job has a committed snapshot of this name that was not quarantined or deleted."""
        with self._database.read() as session:
            row = session.get(SnapshotRow, (job_id, name))
            if row is None:
                require_job(session, job_id)
                return False
            return row.state == "committed"

    def workers(self, job_id: str, *, limit: int, cursor: str | None) -> tuple[Sequence[StoredWorker], str | None]:
        """Return workers, newest attempt first, then by replica and local rank."""
        return self._page(WorkerRow, _WORKERS, stored_worker_of, job_id, limit, cursor)

    def replicas(self, job_id: str, *, limit: int, cursor: str | None) -> tuple[Sequence[StoredReplica], str | None]:
        """Return the agents of the newest attempt, by replica, then by incarnation."""
        with self._database.read() as session:
            newest = _read_newest(session, job_id)
            mine = (JournalRow.job_id == job_id) & (JournalRow.attempt == newest)
            listing = Listing(f"replicas-{job_id}-{newest}", _REPLICAS)
            rows, next_cursor = listing.page(session, select(JournalRow).where(mine), limit=limit, cursor=cursor)
            agents, ranks = _read_agents(session, job_id, newest) if rows else ({}, {})
            return [stored_replica_of(row, agents, ranks) for row in rows], next_cursor

    def newest_of_kind(
        self, job_id: str, kind: str, *, limit: int, attempt: int | None = None
    ) -> Sequence[StoredEvent]:
        """Return events of one kind, newest first, optionally of one attempt."""
        wanted = select(EventRow).where(EventRow.job_id == job_id, EventRow.kind == kind)
        if attempt is not None:
            wanted = wanted.where(EventRow.attempt == attempt)
        with self._database.read() as session:
            rows = session.scalars(wanted.order_by(EventRow.id.desc()).limit(limit)).all()
            if not rows:
                require_job(session, job_id)
            return [stored_event_of(row) for row in rows]

    def metrics(
        self, job_id: str, *, since_step: int, points: int, until_step: int | None = None
    ) -> Sequence[MetricPoint]:
        """Return at most `points` of the steps after `since_step`, up to `until_step`, oldest first.

        Of n steps, it returns every n/points-th, counted back from the newest.
        """
        points = max(1, points)
        wanted = (MetricRow.job_id == job_id) & (MetricRow.step > since_step)
        if until_step is not None:
            wanted &= MetricRow.step <= until_step
        with self._database.read() as session:
            ends = (select(end(MetricRow.step)).where(wanted).scalar_subquery() for end in (func.min, func.max))
            first, last = session.execute(select(*ends)).one()
            if first is None or last is None:
                require_job(session, job_id)
                return []
            query, evenly = _POINTS.where(wanted).order_by(MetricRow.step), _spread(first, last, points)
            if evenly:  # if no step is missing, this search finds all of them, however many there are
                # Without bounds: with them, SQLite scans the range instead of searching each step.
                picked = (MetricRow.job_id == job_id) & MetricRow.step.in_(evenly)
                found = session.execute(_POINTS.where(picked).order_by(MetricRow.step)).all()
                if len(found) == points:
                    return [metric_point_of(row) for row in found]
                if last - first >= _MANY and (session.scalar(_count_some(wanted)) or 0) > _MANY:
                    query = query.where(MetricRow.step.in_(_nearest(wanted, evenly)))
                else:
                    query = query.where(MetricRow.step.in_(_every_nth(wanted, points)))
            return [metric_point_of(row) for row in session.execute(query)]

    def _page(
        self,
        table: type[Row],
        order: tuple[Key, ...],
        item_of: Callable[[Row], Item],
        job_id: str,
        limit: int,
        cursor: str | None,
    ) -> tuple[list[Item], str | None]:
        direction = "down" if order[0].descending else "up"
        listing = Listing(f"{table.__tablename__}-{job_id}-{direction}", order)
        with self._database.read() as session:
            query = select(table).where(table.job_id == job_id)
            rows, next_cursor = listing.page(session, query, limit=limit, cursor=cursor)
            if not rows:
                require_job(session, job_id)
            return [item_of(row) for row in rows], next_cursor


def _read_newest(session: Session, job_id: str) -> int | None:
    """Return the number of the newest attempt, or None if there is none. Raises NotFound for an unknown job."""
    newest: int | None = session.scalar(select(func.max(AttemptRow.number)).where(AttemptRow.job_id == job_id))
    if newest is None:
        require_job(session, job_id)
    return newest


def _read_agents(
    session: Session, job_id: str, attempt: int | None
) -> tuple[Mapping[Incarnation, AgentPlace], Mapping[Incarnation, Sequence[int]]]:
    """Return the node and pid of each agent of an attempt, and the ranks that its workers have reported."""
    nothing = literal(None, Integer)
    is_start = (EventRow.attempt == attempt) & (EventRow.kind == EventKind.AGENT_STARTED.value)
    started = select(
        EventRow.id.label("place"), nothing.label("replica"), nothing.label("incarnation"), EventRow.evidence
    )
    worker = (WorkerRow.rank.label("place"), WorkerRow.replica, WorkerRow.incarnation)
    workers = select(*worker, literal(None, EventRow.evidence.type).label("evidence"))
    both = union_all(
        started.where(EventRow.job_id == job_id, is_start),
        workers.where(WorkerRow.job_id == job_id, WorkerRow.attempt == attempt),
    )
    starts: list[Mapping[str, object]] = []
    ranks: defaultdict[Incarnation, list[int]] = defaultdict(list)
    for place, replica, incarnation, evidence in session.execute(both.order_by("place")):
        if evidence is None:
            ranks[replica, incarnation].append(place)
        else:
            starts.append(evidence)
    return agents_of(starts), ranks


def _count_some(wanted: ColumnElement[bool]) -> Select[int]:
    """Select the number of rows, at most _MANY + 1."""
    some = select(MetricRow.step).where(wanted).limit(_MANY + 1).subquery()
    return select(func.count()).select_from(some)


def _every_nth(wanted: ColumnElement[bool], points: int) -> Select[int]:
    """Select the steps of every n-th row, counted back from the newest, so that at most `points` of them are left."""
    age = func.row_number().over(order_by=MetricRow.step.desc()) - 1
    ages = select(MetricRow.step, age.label("age"), func.count().over().label("total")).where(wanted).subquery()
    # Exactly `points` of the ages below n satisfy (age * points) mod n < points; age 0 is one of them.
    return select(ages.c.step).where((ages.c.age * points) % ages.c.total < points)


def _nearest(wanted: ColumnElement[bool], steps: Sequence[int]) -> Select[int]:
    """Select, for each of these steps, the newest measured step up to it, with one index search each."""
    asked = values(column("step", BigInteger), name="asked").data([(step,) for step in steps]).cte()
    found = select(MetricRow.step).where(wanted, MetricRow.step <= asked.c.step).order_by(MetricRow.step.desc())
    return select(found.limit(1).correlate(asked).scalar_subquery()).select_from(asked)


def _spread(first: int, last: int, points: int) -> list[int]:
    """Return `points` steps between the two, spread as evenly as possible. Empty if there are not more than that."""
    total = last - first + 1
    return [last - -(-place * total // points) for place in range(points)] if total > points else []
