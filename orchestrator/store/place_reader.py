"""What access control needs of jobs and attempts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from sqlalchemy import bindparam, select

from orchestrator.domain.access.route_roles import JobPlace
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.job.worker_token import TokenFacts
from orchestrator.store.engine import Database
from orchestrator.store.lookups import in_parts
from orchestrator.store.tables import AttemptRow, DeletionRow, JobRow

# Built once, because building an expression costs more than running it.
_PLACES = select(JobRow.id, JobRow.project, JobRow.owner).where(JobRow.id.in_(bindparam("ids", expanding=True)))
_DELETED = select(DeletionRow.job_id.label("id"), DeletionRow.project, DeletionRow.owner).where(
    DeletionRow.job_id.in_(bindparam("ids", expanding=True))
)
_STAY = select(AttemptRow.nonce, AttemptRow.ended_at).where(
    AttemptRow.job_id == bindparam("job_id"), AttemptRow.number == bindparam("number")
)


class PlaceReader:
    """Raises StoreUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def places(self, job_ids: Collection[str]) -> Mapping[str, JobPlace]:
        """Return the project and owner of each job that exists or was deleted. They never change."""
        found: dict[str, JobPlace] = {}
        with self._database.read() as session:
            for query in (_PLACES, _DELETED):
                for ids in in_parts(set(job_ids) - found.keys()):
                    rows: Iterable[Any] = session.execute(query, {"ids": ids})
                    found.update({row.id: JobPlace(project=row.project, owner=row.owner) for row in rows})
        return found

    def facts(self, key: AttemptKey) -> TokenFacts | None:
        """Return None if the attempt does not exist."""
        with self._database.read() as session:
            row = session.execute(_STAY, {"job_id": key.job_id, "number": key.number}).one_or_none()
            return None if row is None else TokenFacts(nonce=row.nonce, ended_at=row.ended_at)
