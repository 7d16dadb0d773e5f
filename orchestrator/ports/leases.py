"""The store of leases."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Protocol

from orchestrator.domain.queueing.lease import Lease, LeaseStanding, Renewal


class LeaseStore(Protocol):
    """The leases of the clusters. Times are the store's own, so the clocks of the services do not matter."""

    def acquire(self, cluster: str, holder: str, *, ttl_s: float, given_up: Set[str] = frozenset()) -> Lease | None:
        """Take the lease for `ttl_s`. If another holder has it, return None, and request it if `sharing` says so.

        Each token is higher than all earlier ones. The current holder gets its lease again with a new token. A request
        expires after half of `ttl_s`. `given_up` are the clusters that did not answer the service.
        """

    def renew(self, lease: Lease, *, ttl_s: float) -> Renewal | None:
        """Extend the lease to `ttl_s` from now. None if it has expired or another holder has it."""

    def hand_over(self, lease: Lease, *, ttl_s: float) -> bool:
        """Transfer the lease for `ttl_s` to the service that requested it, with the next token, if `sharing` says so.

        Returns False, and drops the request, if the lease stays as it is. Of several transfers at once, each one
        sees those before it.
        """

    def release(self, lease: Lease) -> None:
        """Release the lease at once, and drop all requests of its holder. A lost lease is no error."""

    def leases(self) -> Sequence[LeaseStanding]:
        """Return the standing of every cluster that ever had a lease."""
