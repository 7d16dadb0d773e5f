"""The store of leases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from orchestrator.domain.queueing.lease import Lease, LeaseStanding


class LeaseStore(Protocol):
    """The leases of the clusters. Times are the store's own, so the clocks of the services do not matter."""

    def acquire(self, cluster: str, holder: str, *, ttl_s: float) -> Lease | None:
        """Take the lease for `ttl_s`. None if another holder has it.

        Each token is higher than all earlier ones. The current holder gets its lease again with a new token.
        """

    def renew(self, lease: Lease, *, ttl_s: float) -> bool:
        """Extend the lease to `ttl_s` from now. Returns False if it has expired or another holder has it."""

    def release(self, lease: Lease) -> None:
        """Release the lease at once. A lost lease is no error."""

    def leases(self) -> Sequence[LeaseStanding]:
        """Return the standing of every cluster that ever had a lease."""
