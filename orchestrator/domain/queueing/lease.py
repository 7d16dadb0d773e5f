"""The lease of a cluster: the right of one service process to supervise it until the lease expires."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """`token` increases with each change of holder. The store refuses writes with an old token."""

    cluster: str
    holder: str
    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewal:
    """A renewed lease. `requested` means that another service requests it (see `sharing`)."""

    requested: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseStanding:
    """A lease as readers see it. Times are those of the database."""

    lease: Lease
    expires_at: datetime
    since: datetime | None = None  # when the holder got its token
    expired: bool
    requester: str | None = None  # the other service that requests it now
