"""How services share clusters. One with fewer leases than another requests a lease, and the holder hands it over. Pure.

A hand-over needs a difference of two leases or more, so each one makes the shares more even, and none is undone by a
later one. At the end, the shares of any two services that can supervise the same clusters differ by at most one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from datetime import datetime, timedelta

from orchestrator.domain.queueing.lease import Lease, LeaseStanding

_LEAST_DIFFERENCE = 2
# A service that keeps a cluster for so long sees it: it would have released one that does not answer.
PROVEN_AFTER = timedelta(minutes=2)


def may_request(
    standings: Sequence[LeaseStanding], cluster: str, service: str, given_up: Set[str], now: datetime
) -> bool:
    """Whether the service may request the lease of the cluster from its holder. It has one request at a time.

    `given_up` are the clusters that did not answer the service. It does not request them. Each of them counts as its
    own until another service has proved that it answers there. Otherwise a cluster that answers nobody would move to
    another service every minute, and each time one that answers would move back.
    """
    wanted = next((each for each in standings if each.lease.cluster == cluster), None)
    if wanted is None or wanted.expired or cluster in given_up:
        return False
    if wanted.requester not in (None, service):
        return False
    if any(each.requester == service and each is not wanted for each in standings):
        return False
    held = _count(standings)
    unproven = sum(_is_unproven(each, now) for each in standings if each.lease.cluster in given_up)
    return held[wanted.lease.holder] - held[service] - unproven >= _LEAST_DIFFERENCE


def choose_successor(standings: Sequence[LeaseStanding], lease: Lease) -> str | None:
    """Return the service that gets this lease from its holder, if it has requested it and still holds fewer."""
    requester = next((each.requester for each in standings if each.lease == lease and not each.expired), None)
    held = _count(standings)
    if requester is None or held[lease.holder] - held[requester] < _LEAST_DIFFERENCE:
        return None
    return requester


def _count(standings: Sequence[LeaseStanding]) -> Counter[str]:
    return Counter(each.lease.holder for each in standings if not each.expired)


def _is_unproven(standing: LeaseStanding, now: datetime) -> bool:
    return standing.expired or standing.since is None or now - standing.since < PROVEN_AFTER
