"""Leases of clusters. All times are the database's, because the services' clocks may differ and jump."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from orchestrator.domain.errors import LeaseLost
from orchestrator.domain.queueing.lease import Lease, LeaseStanding
from orchestrator.store.dialect import insert_into, select_time, store_time
from orchestrator.store.engine import Database
from orchestrator.store.tables import LeaseRow


class SqlLeaseStore:
    """Implements ports.LeaseStore. A guarded write locks the lease's row, so a takeover waits for it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def acquire(self, cluster: str, holder: str, *, ttl_s: float) -> Lease | None:
        with self._database.write() as session:
            return _take(session, cluster, holder, ttl_s)

    def renew(self, lease: Lease, *, ttl_s: float) -> bool:
        with self._database.write() as session:
            row, now = _locked(session, lease.cluster), store_time(session)
            if row is None or not _is(row, lease) or row.expires_at <= now:
                return False
            row.expires_at = now + timedelta(seconds=ttl_s)
            return True

    def release(self, lease: Lease) -> None:
        with self._database.write() as session:
            row = _locked(session, lease.cluster)
            if row is not None and _is(row, lease):
                row.expires_at = store_time(session)

    def leases(self) -> Sequence[LeaseStanding]:
        with self._database.read() as session:
            return [
                LeaseStanding(
                    lease=_lease(row), since=row.since, expires_at=row.expires_at, expired=row.expires_at <= now
                )
                for row, now in session.execute(select(LeaseRow, select_time(session)).order_by(LeaseRow.cluster))
            ]


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
    row.holder, row.token, row.since = holder, row.token + 1, now
    row.expires_at = now + timedelta(seconds=ttl_s)
    session.flush()
    return _lease(row)


def _first(session: Session, cluster: str, holder: str) -> LeaseRow:
    """Insert and lock the row of a cluster that was never leased. Another service may insert it first."""
    now = store_time(session)
    columns = {"cluster": cluster, "holder": holder, "token": 0, "since": now, "expires_at": now}
    session.execute(insert_into(session, LeaseRow).on_conflict_do_nothing(), columns)
    row = _locked(session, cluster)
    assert row is not None
    return row


def _locked(session: Session, cluster: str) -> LeaseRow | None:
    return session.scalar(select(LeaseRow).where(LeaseRow.cluster == cluster).with_for_update())


def _is(row: LeaseRow, lease: Lease) -> bool:
    return row.token == lease.token and row.holder == lease.holder


def _lease(row: LeaseRow) -> Lease:
    return Lease(cluster=row.cluster, holder=row.holder, token=row.token)
