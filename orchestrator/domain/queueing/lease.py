"""A lease: the right of one service process to supervise a cluster, for a while."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """`token` rises with every change of holder: whoever writes with an old one is refused by the store."""

    cluster: str
    holder: str
    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseStanding:
    """A lease as readers see it. Times are the database's."""

    lease: Lease
    expires_at: datetime
    since: datetime | None = None  # when its token was given
    expired: bool
