"""Deleted jobs. A deletion removes a job's record and leaves one row that says who deleted it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from sqlalchemy import bindparam, delete, insert, select, update

from orchestrator.domain.job.deletion import Deletion
from orchestrator.store.engine import Database
from orchestrator.store.lookups import AT_REST
from orchestrator.store.tables import DeletionRow, JobRow, TrainingRow

_FIELDS = tuple(field.name for field in fields(Deletion))
# Built once, because building an expression costs more than running it. Each pass runs it.
_DUE = (
    select(*(getattr(DeletionRow, name) for name in _FIELDS))
    .where(DeletionRow.cluster == bindparam("cluster"), DeletionRow.files_due)
    .order_by(DeletionRow.deleted_at)
)
# Reports lock these rows before they refer to the job's row. In another order, the two could deadlock.
_TRAININGS = (
    select(TrainingRow.attempt)
    .where(TrainingRow.job_id == bindparam("job_id"))
    .order_by(TrainingRow.attempt)
    .with_for_update()
)


class DeletionStore:
    """The foreign keys of other tables cascade from the job's row. Raises StoreUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def delete(self, deletion: Deletion, *, seen: int) -> bool:
        """Delete a job's record and all that belongs to it, and insert the deletion, in one transaction.

        Returns False, and changes nothing, if the job does not exist, has not ended, or has a newer request than
        `seen`.
        """
        with self._database.write() as session:
            session.execute(_TRAININGS, {"job_id": deletion.job_id})
            deleted = delete(JobRow).where(
                JobRow.id == deletion.job_id,
                JobRow.desired_number == seen,
                AT_REST,
            )
            if session.scalar(deleted.returning(JobRow.id)) is None:
                return False
            session.execute(insert(DeletionRow).values(asdict(deletion)))
            return True

    def deletion(self, job_id: str) -> Deletion | None:
        """Return None if no job of that id was deleted."""
        with self._database.read() as session:
            row = session.get(DeletionRow, job_id)
            return None if row is None else _deletion_of(row)

    def due(self, cluster: str) -> Sequence[Deletion]:
        """Return the cluster's deletions whose files must still be deleted, earliest first."""
        with self._database.ask() as connection:
            return [_deletion_of(row) for row in connection.execute(_DUE, {"cluster": cluster})]

    def files_deleted(self, job_id: str) -> None:
        """Note that the job's files are deleted. Idempotent."""
        with self._database.write() as session:
            session.execute(update(DeletionRow).where(DeletionRow.job_id == job_id).values(files_due=False))


def _deletion_of(row: Any) -> Deletion:
    """`row` is a DeletionRow or a row of `_DUE`."""
    return Deletion(**{name: getattr(row, name) for name in _FIELDS})
