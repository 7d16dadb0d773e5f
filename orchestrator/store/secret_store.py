"""Encrypted secrets. The key is not in the database."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, delete, select, update

from orchestrator.store.dialect import insert_into
from orchestrator.store.engine import Database
from orchestrator.store.records import SealedSecret
from orchestrator.store.tables import SecretRow


class SecretStore:
    """Raises StoreUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, secret: SealedSecret) -> bool:
        """Insert or replace a secret. Returns whether it is new."""
        contents = {"sealed": secret.sealed, "updated_at": secret.updated_at, "updated_by": secret.updated_by}
        with self._database.write() as session:
            row = insert_into(session, SecretRow).values(project=secret.project, name=secret.name, **contents)
            inserted = session.scalar(row.on_conflict_do_nothing().returning(SecretRow.name))
            if inserted is None:
                session.execute(update(SecretRow).where(_is(secret.project, secret.name)).values(contents))
            return inserted is not None

    def remove(self, project: str, name: str) -> bool:
        """Delete a secret. Returns whether it existed."""
        deleted = delete(SecretRow).where(_is(project, name)).returning(SecretRow.name)
        with self._database.write() as session:
            return session.scalar(deleted) is not None

    def of_project(self, project: str) -> Sequence[SealedSecret]:
        """Return a project's secrets, by name."""
        with self._database.read() as session:
            query = select(SecretRow).where(SecretRow.project == project).order_by(SecretRow.name)
            return [_secret_of(row) for row in session.scalars(query)]

    def all(self) -> Sequence[SealedSecret]:
        """Return all secrets, by project and name."""
        with self._database.read() as session:
            query = select(SecretRow).order_by(SecretRow.project, SecretRow.name)
            return [_secret_of(row) for row in session.scalars(query)]


def _is(project: str, name: str) -> ColumnElement[bool]:
    return (SecretRow.project == project) & (SecretRow.name == name)


def _secret_of(row: SecretRow) -> SealedSecret:
    return SealedSecret(
        project=row.project,
        name=row.name,
        sealed=row.sealed,
        updated_at=row.updated_at,
        updated_by=row.updated_by,
    )
