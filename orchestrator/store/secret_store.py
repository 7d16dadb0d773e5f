"""Encrypted secrets. The key is not in the database."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import delete, select, update
from sqlalchemy.exc import IntegrityError

from orchestrator.store.engine import Database
from orchestrator.store.records import SealedSecret
from orchestrator.store.tables import SecretRow


class SecretStore:
    """Raises StoreUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, secret: SealedSecret) -> bool:
        """Insert or replace a secret. Returns whether it is new."""
        if self._replace(secret):
            return False
        try:
            with self._database.write() as session:
                session.add(SecretRow(project=secret.project, name=secret.name, **_contents(secret)))
            return True
        except IntegrityError:  # another call inserted it in between; the later call wins
            self._replace(secret)
            return False

    def remove(self, project: str, name: str) -> bool:
        """Delete a secret. Returns whether it existed."""
        mine = (SecretRow.project == project) & (SecretRow.name == name)
        with self._database.write() as session:
            return session.scalar(delete(SecretRow).where(mine).returning(SecretRow.name)) is not None

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

    def _replace(self, secret: SealedSecret) -> bool:
        mine = (SecretRow.project == secret.project) & (SecretRow.name == secret.name)
        with self._database.write() as session:
            written = update(SecretRow).where(mine).values(**_contents(secret)).returning(SecretRow.name)
            return session.scalar(written) is not None


def _contents(secret: SealedSecret) -> dict[str, object]:
    return {"sealed": secret.sealed, "updated_at": secret.updated_at, "updated_by": secret.updated_by}


def _secret_of(row: SecretRow) -> SealedSecret:
    return SealedSecret(
        project=row.project,
        name=row.name,
        sealed=row.sealed,
        updated_at=row.updated_at,
        updated_by=row.updated_by,
    )
