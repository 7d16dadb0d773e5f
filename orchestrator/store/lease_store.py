"""Leases of clusters. All times are the database's, because the services' clocks may differ and jump."""

from __future__ import annotations

from collections.abc import Sequence, Set
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, or_, select, update
from sqlalchemy.orm import Session

from orchestrator.domain.errors import LeaseLost
from orchestrator.domain.queueing.lease import Lease, LeaseStanding, Renewal
from orchestrator.domain.queueing.sharing import choose_successor, may_request
from orchestrator.store.dialect import insert_into, select_time, store_time
from orchestrator.store.engine import Database
from orchestrator.store.tables import LeaseRow

_REQUEST_LIFE = 0.5  # of a lease's: a service that is dead does not get one


class SqlLeaseStore:
    """Implements ports.LeaseStore. A guarded write locks the lease's row, so a takeover waits for it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def acquire(self, cluster: str, holder: str, *, ttl_s: float, given_up: Set[str] = frozenset()) -> Lease | None:
        with self._database.write() as session:
            rows = _read(session)
            for row, now in rows:
                if row.cluster == cluster and row.holder != holder and row.expires_at > now:
                    if may_request([_standing(*each) for each in rows], cluster, holder, given_up, now):
                        _request(session, _lease(row), holder, ttl_s, now)
                    return None
            return _take(session, cluster, holder, ttl_s)

    def renew(self, lease: Lease, *, ttl_s: float) -> Renewal | None:
        with self._database.write() as session:
            row, now = _locked(session, lease.cluster), store_time(session)
            if row is None or not _is(row, lease) or row.expires_at <= now:
                return None
            row.expires_at = now + timedelta(seconds=ttl_s)
            return Renewal(requested=_standing(row, now).requester is not None)

    def hand_over(self, lease: Lease, *, ttl_s: float) -> bool:
        with self._database.write() as session:
            rows = _lock(session)  # all of them, so that hand-overs of several services follow one another
            now = store_time(session)
            successor = choose_successor([_standing(row, now) for row in rows], lease)
            for row in rows:
                if _is(row, lease):
                    row.requester = row.request_expires_at = None
                    if successor is not None:
                        _assign(row, successor, now, ttl_s)
            return successor is not None

    def release(self, lease: Lease) -> None:
        with self._database.write() as session:
            mine = or_(LeaseRow.cluster == lease.cluster, LeaseRow.requester == lease.holder)
            for row in _lock(session, mine):
                if _is(row, lease):
                    row.expires_at = store_time(session)
                if row.requester == lease.holder:
                    row.requester = row.request_expires_at = None

    def leases(self) -> Sequence[LeaseStanding]:
        with self._database.read() as session:
            return [_standing(row, now) for row, now in _read(session)]


def require_lease(session: Session, lease: Lease) -> None:
    """Lock the lease's row for this transaction. Raises LeaseLost if another has the lease or it has expired."""
    statement = select(LeaseRow).where(LeaseRow.cluster == lease.cluster).with_for_update(read=True)
    row = session.scalar(statement)
    if row is None or not _is(row, lease) or row.expires_at <= store_time(session):
        raise LeaseLost(f"another service may supervise cluster {lease.cluster} now (lease {lease.token})")


def _take(session: Session, cluster: str, holder: str, ttl_s: float) -> Lease | None:
    row = _locked(session, cluster) or _first(session, cluster, holder)
    now = store_time(session)
    if row.holder != holder and row.expires_at > now:
        return None
    _assign(row, holder, now, ttl_s)
    session.flush()
    return _lease(row)


def _assign(row: LeaseRow, holder: str, now: datetime, ttl_s: float) -> None:
    row.holder, row.token, row.since = holder, row.token + 1, now
    row.expires_at = now + timedelta(seconds=ttl_s)
    row.requester = row.request_expires_at = None


def _request(session: Session, lease: Lease, requester: str, ttl_s: float, now: datetime) -> None:
    """Request the lease, unless it has a new holder or another service has requested it meanwhile."""
    free = or_(LeaseRow.requester.is_(None), LeaseRow.requester == requester, LeaseRow.request_expires_at <= now)
    session.execute(
        update(LeaseRow)
        .where(LeaseRow.cluster == lease.cluster, LeaseRow.token == lease.token, free)
        .values(requester=requester, request_expires_at=now + timedelta(seconds=ttl_s * _REQUEST_LIFE)),
        execution_options={"synchronize_session": False},
    )


def _first(session: Session, cluster: str, holder: str) -> LeaseRow:
    """Insert and lock the row of a cluster that was never leased. Another service may insert it first."""
    now = store_time(session)
    columns = {"cluster": cluster, "holder": holder, "token": 0, "since": now, "expires_at": now}
    session.execute(insert_into(session, LeaseRow).on_conflict_do_nothing(), columns)
    row = _locked(session, cluster)
    assert row is not None
    return row


def _read(session: Session) -> Sequence[tuple[LeaseRow, datetime]]:
    """Return all leases with the present time, without locks."""
    rows = session.execute(select(LeaseRow, select_time(session)).order_by(LeaseRow.cluster))
    return [(row, now) for row, now in rows]


def _locked(session: Session, cluster: str) -> LeaseRow | None:
    return next(iter(_lock(session, LeaseRow.cluster == cluster)), None)


def _lock(session: Session, *criteria: ColumnElement[bool]) -> Sequence[LeaseRow]:
    """Lock rows in one order, so that no two transactions wait for each other, and return their newest state."""
    statement = select(LeaseRow).where(*criteria).order_by(LeaseRow.cluster).with_for_update()
    return session.scalars(statement, execution_options={"populate_existing": True}).all()


def _is(row: LeaseRow, lease: Lease) -> bool:
    return _lease(row) == lease


def _lease(row: LeaseRow) -> Lease:
    return Lease(cluster=row.cluster, holder=row.holder, token=row.token)


def _standing(row: LeaseRow, now: datetime) -> LeaseStanding:
    requested = row.requester != row.holder and row.request_expires_at is not None and row.request_expires_at > now
    return LeaseStanding(
        lease=_lease(row),
        since=row.since,
        expires_at=row.expires_at,
        expired=row.expires_at <= now,
        requester=row.requester if requested else None,
    )
