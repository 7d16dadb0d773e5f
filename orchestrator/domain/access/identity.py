"""Callers, their roles in projects, and tokens as they are stored. Pure.

A token is `orc_<id>_<secret>`. Its secret has 32 random bytes, so a single SHA-256 protects it. A slow hash, which NIST
SP 800-63B, 5.1.1.2, requires for passwords that people choose, would only slow down each request.
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
    """Each role may do what the roles before it may."""

    VIEWER = "viewer"  # reads jobs, logs, events
    SUBMITTER = "submitter"  # submits jobs and controls its own
    OPERATOR = "operator"  # controls every job
    ADMIN = "admin"  # manages tokens and secrets

    def covers(self, needed: Role) -> bool:
        return _ORDER.index(self) >= _ORDER.index(needed)


_ORDER = tuple(Role)


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """A caller. `grants` has a role by project; the role of `*` counts in every project."""

    name: str
    grants: Mapping[str, Role] = field(default_factory=dict)
    token_id: str | None = None

    def role_in(self, project: str) -> Role | None:
        """Return the higher of the caller's roles in the project and in every project."""
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
        """Return the projects in which the caller has the role. None means every project."""
        if self.may_everywhere(needed):
            return None
        return frozenset(name for name, role in self.grants.items() if role.covers(needed))

    def may_give(self, grants: Mapping[str, Role]) -> bool:
        """Whether the caller is an admin of every project of the grants."""
        return all(self.may(Role.ADMIN, project) for project in grants)


# The caller of a service that requires no token because only its own machine can reach it.
LOCAL = Principal(name="local", grants={EVERY_PROJECT: Role.ADMIN})


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token as it is stored, without its secret."""

    id: str
    name: str  # the name of the caller who uses it
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
    """A browser's sign-in. It is valid no longer than the token that opened it."""

    digest: str = field(repr=False)  # the digest of the cookie's value
    token_id: str
    created_at: datetime
    expires_at: datetime


def render_token(token_id: str, secret: str) -> str:
    return f"{TOKEN_PREFIX}{token_id}_{secret}"


def parse_token_id(text: str) -> str | None:
    """Return the id within a token. None if the text is not a token."""
    match = _TOKEN.fullmatch(text)
    return None if match is None else match[1]


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def same_digest(text: str, digest: str) -> bool:
    """Compare in constant time, so that timing reveals nothing about a guess."""
    return hmac.compare_digest(digest_of(text), digest)
