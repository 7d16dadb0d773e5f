"""Who supervises which cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from orchestrator.domain.queueing.lease import Lease, LeaseStanding


class LeaseStore(Protocol):
    """Who supervises which cluster. Times are the store's own, so that the clocks of the services do not matter."""

    def acquire(self, cluster: str, holder: str, *, ttl_s: float) -> Lease | None:
        """Take the cluster for `ttl_s` where nobody holds it or its holder's time is over; else None.

        The token is higher than every one before. The holder itself gets its lease again with a new token.
        """

    def renew(self, lease: Lease, *, ttl_s: float) -> bool:
        """Hold on for `ttl_s` from now. False when another one has it or the time was over: it is lost for good."""

    def release(self, lease: Lease) -> None:
        """Give it up at once. A lease that is lost already is no error."""

    def leases(self) -> Sequence[LeaseStanding]:
        """Every cluster that was ever leased."""
