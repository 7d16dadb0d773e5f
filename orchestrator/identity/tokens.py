"""Create, verify and revoke tokens, and the sessions of browsers that signed in with one."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TypeGuard

import structlog

from orchestrator.domain.access.identity import (
    EVERY_PROJECT,
    LOCAL,
    Principal,
    Role,
    Session,
    Token,
    digest_of,
    parse_token_id,
    render_token,
    same_digest,
)
from orchestrator.domain.errors import FieldProblem, Forbidden, InvalidSpec, NotFound
from orchestrator.identity.short_memory import Remembered, ShortMemory
from orchestrator.ports.clock import Clock
from orchestrator.store.token_store import TokenStore

log = structlog.get_logger()

SESSION_FOR = timedelta(hours=12)
FIRST = "first admin"  # the caller's name for the token of the settings
_TAKEN = frozenset({LOCAL.name, FIRST})
_KEEP_S = 5.0  # how long another service may accept a token after it was revoked here
_NOBODY = digest_of("")  # compared for an unknown token id, so that the answer takes as long as for a known one


class Tokens:
    """`first` is the token of the settings; its caller is an admin. It is not stored. Raises StoreUnavailable."""

    def __init__(
        self,
        store: TokenStore,
        clock: Clock,
        *,
        first: str | None = None,
        keep_s: float = _KEEP_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._clock = clock
        self._first = None if first is None else _first_token(first, clock.now())
        self._known: ShortMemory[Token | None] = ShortMemory(keep_s, monotonic=monotonic)
        self._sessions: ShortMemory[Session | None] = ShortMemory(keep_s, monotonic=monotonic)

    def create(
        self, name: str, grants: Mapping[str, Role], *, by: Principal, expires_at: datetime | None
    ) -> tuple[Token, str]:
        """Create a token and return it with its text, which is not stored.

        Raises InvalidSpec for a name in use, and Forbidden for grants in projects of which `by` is not admin.
        """
        if name in _TAKEN:
            raise InvalidSpec([FieldProblem("/name", f"{name!r} is reserved for the service; choose another name")])
        if not by.may_give(grants):
            raise Forbidden("a token may grant roles only in projects of which you are admin")
        if any(each.name == name and not by.may_give(each.grants) for each in self._store.tokens()):
            # Events and limits go by name: no caller may act as another one, or use up its limits.
            raise InvalidSpec([FieldProblem("/name", f"{name!r} is used in other projects; choose another name")])
        token_id = secrets.token_hex(8)
        text = render_token(token_id, secrets.token_urlsafe(32))
        token = Token(
            id=token_id,
            name=name,
            digest=digest_of(text),
            grants=dict(grants),
            created_at=self._clock.now(),
            created_by=by.name,
            expires_at=expires_at,
        )
        self._store.add_token(token)
        log.info("token created", token=token_id, of=name, by=by.name, grants=dict(grants))
        return token, text

    def listed(self, by: Principal) -> Sequence[Token]:
        """Return the tokens that `by` may create and revoke, newest first."""
        return [token for token in self._store.tokens() if by.may_give(token.grants)]

    def revoke(self, token_id: str, *, by: Principal) -> Token:
        """Revoke a token and its sessions: here at once, in other services within seconds. Idempotent.

        Raises NotFound.
        """
        token = self._store.token(token_id)
        if token is None or not by.may_give(token.grants):
            raise NotFound(f"there is no token {token_id}")
        if token.revoked_at is None:
            now = self._clock.now()
            self._store.revoke_token(token_id, by=by.name, at=now)
            token = replace(token, revoked_at=now, revoked_by=by.name)
            log.info("token revoked", token=token_id, of=token.name, by=by.name)
        self._known.forget()
        self._sessions.forget()
        return token

    def any_admin(self) -> bool:
        """Whether any valid token may create tokens for every project."""
        now = self._clock.now()
        admins = (token for token in self._store.tokens() if token.principal().may_everywhere(Role.ADMIN))
        return self._first is not None or any(token.lives(now) for token in admins)

    def recall(self, text: str) -> Remembered[Principal | None] | None:
        """Return the cached answer of `verify`. None if the store has to be asked."""
        if self._first is not None and same_digest(text, self._first.digest):
            return Remembered(self._first.principal())
        known = self._known.recall(digest_of(text))
        return None if known is None else Remembered(self._alive(known.value))

    def verify(self, text: str) -> Principal | None:
        """Return the caller with this token. None for an unknown, expired or revoked one."""
        remembered = self.recall(text)
        return self._alive(self._look_up(text)) if remembered is None else remembered.value

    def sign_in(self, text: str) -> tuple[str, Session] | None:
        """Open a session and return the cookie's value and the session. None for an invalid token."""
        principal = self.verify(text)
        if principal is None or principal.token_id is None:
            return None
        token, now = self._token(principal.token_id), self._clock.now()
        until = now + SESSION_FOR
        if token is not None and token.expires_at is not None:
            until = min(until, token.expires_at)
        cookie = secrets.token_urlsafe(32)
        session = Session(digest=digest_of(cookie), token_id=principal.token_id, created_at=now, expires_at=until)
        self._store.add_session(session)
        log.info("signed in", token=principal.token_id, of=principal.name)
        return cookie, session

    def sign_out(self, cookie: str) -> None:
        """End the session of this cookie. Idempotent."""
        self._store.end_session(digest_of(cookie))
        self._sessions.forget()

    def recall_session(self, cookie: str) -> Remembered[Principal | None] | None:
        session = self._sessions.recall(digest_of(cookie))
        if session is None:
            return None
        if not self._goes_on(session.value):
            return Remembered(None)
        token_id = session.value.token_id
        if self._first is not None and token_id == self._first.id:
            return Remembered(self._first.principal())
        token = self._known.recall(token_id)
        return None if token is None else Remembered(self._alive(token.value))

    def verify_session(self, cookie: str) -> Principal | None:
        """Return the caller with this session. None for one that has ended."""
        digest = digest_of(cookie)
        session = self._sessions.keep(digest, self._store.session(digest))
        if not self._goes_on(session):
            return None
        return self._alive(self._token(session.token_id))

    def _look_up(self, text: str) -> Token | None:
        token_id = parse_token_id(text)
        token = None if token_id is None else self._store.token(token_id)
        genuine = same_digest(text, _NOBODY if token is None else token.digest)
        return self._known.keep(digest_of(text), token if genuine else None)

    def _token(self, token_id: str) -> Token | None:
        if self._first is not None and token_id == self._first.id:
            return self._first
        return self._known.keep(token_id, self._store.token(token_id))

    def _alive(self, token: Token | None) -> Principal | None:
        return None if token is None or not token.lives(self._clock.now()) else token.principal()

    def _goes_on(self, session: Session | None) -> TypeGuard[Session]:
        return session is not None and self._clock.now() < session.expires_at


def _first_token(text: str, now: datetime) -> Token:
    digest = digest_of(text)
    return Token(
        id=f"first-{digest[:12]}",  # a new token in the settings ends the sessions of the old one
        name=FIRST,
        digest=digest,
        grants={EVERY_PROJECT: Role.ADMIN},
        created_at=now,
        created_by="the settings",
    )
