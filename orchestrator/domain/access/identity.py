"""Who asks: roles, what a caller may do in which project, and tokens as they are stored. Pure.

A token is `orc_<id>_<secret>`. Its secret is 32 random bytes, so one SHA-256 keeps it: nobody can try 2^256 of them,
and a slow hash would only make each request slow (NIST SP 800-63B, 5.1.1.2, asks for one where people choose).
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

EVERY_PROJECT = "*"
TOKEN_PREFIX = "orc_"
_TOKEN = re.compile(r"orc_([0-9a-f]{16})_([A-Za-z0-9_-]{43})", re.ASCII)


class Role(StrEnum):
    """Each may do what the ones before it may."""

    VIEWER = "viewer"  # reads jobs, logs, events
    SUBMITTER = "submitter"  # submits jobs, and steers its own
    OPERATOR = "operator"  # steers every job
    ADMIN = "admin"  # gives tokens and secrets

    def covers(self, needed: Role) -> bool:
        return _ORDER.index(self) >= _ORDER.index(needed)


_ORDER = tuple(Role)


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """A caller. `grants` hold a role by project; that of `*` counts in every project."""

    name: str
    grants: Mapping[str, Role] = field(default_factory=dict)
    token_id: str | None = None

    def role_in(self, project: str) -> Role | None:
        """The higher of the caller's roles in the project and in every project."""
        held = [self.grants[name] for name in (project, EVERY_PROJECT) if name in self.grants]
        return max(held, key=_ORDER.index, default=None)

    def may(self, needed: Role, project: str) -> bool:
        held = self.role_in(project)
        return held is not None and held.covers(needed)

    def may_everywhere(self, needed: Role) -> bool:
        return self.may(needed, EVERY_PROJECT)

    def may_somewhere(self, needed: Role) -> bool:
        return any(role.covers(needed) for role in self.grants.values())

    def projects(self, needed: Role) -> frozenset[str] | None:
        """Where the caller holds the role; None: in every project."""
        if self.may_everywhere(needed):
            return None
        return frozenset(name for name, role in self.grants.items() if role.covers(needed))

    def may_give(self, grants: Mapping[str, Role]) -> bool:
        """Whether the caller is the admin of all that the grants are about."""
        return all(self.may(Role.ADMIN, project) for project in grants)


# Whoever reaches a service that only its own machine can reach, and that asks nobody for a token.
LOCAL = Principal(name="local", grants={EVERY_PROJECT: Role.ADMIN})


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token as it is stored: what was shown once is not in it."""

    id: str
    name: str  # who acts with it
    digest: str = field(repr=False)
    grants: Mapping[str, Role]
    created_at: datetime
    created_by: str
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    revoked_by: str | None = None

    def lives(self, now: datetime) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)

    def principal(self) -> Principal:
        return Principal(name=self.name, grants=self.grants, token_id=self.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A browser's sign-in. It lives no longer than the token that it was opened with."""

    digest: str = field(repr=False)  # of what the cookie holds
    token_id: str
    created_at: datetime
    expires_at: datetime


def render_token(token_id: str, secret: str) -> str:
    return f"{TOKEN_PREFIX}{token_id}_{secret}"


def parse_token_id(text: str) -> str | None:
    """The id within a token; None for what is no token of ours."""
    match = _TOKEN.fullmatch(text)
    return None if match is None else match[1]


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def same_digest(text: str, digest: str) -> bool:
    """In constant time: how long it takes tells nothing of how much of a guess was right."""
    return hmac.compare_digest(digest_of(text), digest)
