"""Tokens and sessions, and where jobs stand for whoever has to know who may touch them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from orchestrator.domain.access.identity import Session, Token
from orchestrator.domain.access.route_roles import JobPlace
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.job.worker_token import AttemptStay


class TokenStore(Protocol):
    """Tokens and the sessions opened with them. Raises StoreUnavailable."""

    def add_token(self, token: Token) -> None:
        """Its id is new."""

    def token(self, token_id: str) -> Token | None:
        """Revoked and expired ones too."""

    def tokens(self) -> Sequence[Token]:
        """All of them, the newest first."""

    def revoke_token(self, token_id: str, *, by: str, at: datetime) -> None:
        """It ends now, with its sessions. Idempotent: the first one counts."""

    def add_session(self, session: Session) -> None:
        """Also forgets the sessions that are over."""

    def session(self, digest: str) -> Session | None:
        """One that is over may be left out."""

    def end_session(self, digest: str) -> None:
        """Idempotent."""


class PlaceReader(Protocol):
    """Where jobs and attempts stand, for whoever has to know who may touch them. Raises StoreUnavailable."""

    def places(self, job_ids: Collection[str]) -> Mapping[str, JobPlace]:
        """A job that does not exist is left out. What is answered never changes."""

    def stay(self, key: AttemptKey) -> AttemptStay | None:
        """None: there is no such attempt."""
