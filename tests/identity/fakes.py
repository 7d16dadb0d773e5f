"""Stores in memory, and a clock that the test moves."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from orchestrator.domain.access.identity import Session, Token
from orchestrator.domain.access.route_roles import JobPlace
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.job.worker_token import TokenFacts
from orchestrator.store.records import SealedSecret
from tests.builders import NOW


@dataclass
class HandClock:
    moment: datetime = NOW

    def now(self) -> datetime:
        return self.moment

    def monotonic(self) -> float:
        return (self.moment - NOW).total_seconds()

    def advance(self, seconds: float) -> None:
        self.moment += timedelta(seconds=seconds)


@dataclass
class MemoryTokenStore:
    rows: dict[str, Token] = field(default_factory=dict)
    sessions: dict[str, Session] = field(default_factory=dict)
    asked: int = 0

    def add_token(self, token: Token) -> None:
        self.rows[token.id] = token

    def token(self, token_id: str) -> Token | None:
        self.asked += 1
        return self.rows.get(token_id)

    def tokens(self) -> Sequence[Token]:
        return list(self.rows.values())

    def revoke_token(self, token_id: str, *, by: str, at: datetime) -> None:
        self.rows[token_id] = replace(self.rows[token_id], revoked_at=at, revoked_by=by)
        self.sessions = {key: one for key, one in self.sessions.items() if one.token_id != token_id}

    def add_session(self, session: Session) -> None:
        self.sessions[session.digest] = session

    def session(self, digest: str) -> Session | None:
        self.asked += 1
        return self.sessions.get(digest)

    def end_session(self, digest: str) -> None:
        self.sessions.pop(digest, None)


@dataclass
class MemorySecretStore:
    rows: dict[tuple[str, str], SealedSecret] = field(default_factory=dict)

    def put(self, secret: SealedSecret) -> bool:
        key = (secret.project, secret.name)
        new = key not in self.rows
        self.rows[key] = secret
        return new

    def remove(self, project: str, name: str) -> bool:
        return self.rows.pop((project, name), None) is not None

    def of_project(self, project: str) -> Sequence[SealedSecret]:
        return [row for row in self.all() if row.project == project]

    def all(self) -> Sequence[SealedSecret]:
        return [self.rows[key] for key in sorted(self.rows)]


@dataclass
class MemoryPlaces:
    jobs: dict[str, JobPlace] = field(default_factory=dict)
    known_facts: dict[AttemptKey, TokenFacts] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def places(self, job_ids: Collection[str]) -> Mapping[str, JobPlace]:
        self.asked += sorted(job_ids)
        return {job_id: self.jobs[job_id] for job_id in job_ids if job_id in self.jobs}

    def facts(self, key: AttemptKey) -> TokenFacts | None:
        return self.known_facts.get(key)
