"""Tokens and sessions. Only digests are stored, and nobody can sign in with a digest."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import bindparam, delete, select, update

from orchestrator.domain.access.identity import Role, Session, Token
from orchestrator.store.engine import Database
from orchestrator.store.tables import SessionRow, TokenRow

# Built once, because building an expression costs more than running it.
_TOKEN = select(TokenRow).where(TokenRow.id == bindparam("id"))
_SESSION = select(SessionRow).where(SessionRow.digest == bindparam("digest"))


class TokenStore:
    """Raises StoreUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add_token(self, token: Token) -> None:
        """Insert a token with a new id."""
        row = TokenRow(
            id=token.id,
            name=token.name,
            digest=token.digest,
            grants={project: role.value for project, role in token.grants.items()},
            created_at=token.created_at,
            created_by=token.created_by,
            expires_at=token.expires_at,
            revoked_at=token.revoked_at,
            revoked_by=token.revoked_by,
        )
        with self._database.write() as session:
            session.add(row)

    def token(self, token_id: str) -> Token | None:
        """Return a token, also a revoked or expired one. None if it does not exist."""
        with self._database.read() as session:
            row = session.scalar(_TOKEN, {"id": token_id})
            return None if row is None else _token_of(row)

    def tokens(self) -> Sequence[Token]:
        """Return all tokens, newest first."""
        with self._database.read() as session:
            query = select(TokenRow).order_by(TokenRow.created_at.desc(), TokenRow.id)
            return [_token_of(row) for row in session.scalars(query)]

    def revoke_token(self, token_id: str, *, by: str, at: datetime) -> None:
        """Revoke a token and end its sessions. Idempotent; the first call's `by` and `at` stay."""
        alive = (TokenRow.id == token_id) & TokenRow.revoked_at.is_(None)
        with self._database.write() as session:
            session.execute(update(TokenRow).where(alive).values(revoked_at=at, revoked_by=by))
            session.execute(delete(SessionRow).where(SessionRow.token_id == token_id))

    def add_session(self, session: Session) -> None:
        """Insert a session, and delete expired ones."""
        row = SessionRow(
            digest=session.digest,
            token_id=session.token_id,
            created_at=session.created_at,
            expires_at=session.expires_at,
        )
        with self._database.write() as transaction:
            transaction.execute(delete(SessionRow).where(SessionRow.expires_at <= session.created_at))
            transaction.add(row)

    def session(self, digest: str) -> Session | None:
        """Return a session, possibly an expired one. None if it does not exist."""
        with self._database.read() as session:
            row = session.scalar(_SESSION, {"digest": digest})
            return None if row is None else _session_of(row)

    def end_session(self, digest: str) -> None:
        """Delete a session. Idempotent."""
        with self._database.write() as session:
            session.execute(delete(SessionRow).where(SessionRow.digest == digest))


def _token_of(row: TokenRow) -> Token:
    return Token(
        id=row.id,
        name=row.name,
        digest=row.digest,
        grants={project: Role(str(role)) for project, role in row.grants.items()},
        created_at=row.created_at,
        created_by=row.created_by,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        revoked_by=row.revoked_by,
    )


def _session_of(row: SessionRow) -> Session:
    return Session(digest=row.digest, token_id=row.token_id, created_at=row.created_at, expires_at=row.expires_at)
