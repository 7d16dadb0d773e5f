"""Divides device time by user, project, cluster, job, node, or cause of a loss. Pure.

The shares of a grouping add up to the ledgers of the jobs, to the microsecond.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate, pairwise

from orchestrator.domain.accounting.goodput import LOSSES, UNHELD, Bin, Ledger, Stretch, take_apart

_HOUR_US = 3_600_000_000


class Grouping(StrEnum):
    USER = "user"  # who submitted the job
    PROJECT = "project"
    CLUSTER = "cluster"
    JOB = "job"
    NODE = "node"  # time without a node is one more share
    CAUSE = "cause"  # the kind of failure behind a loss; time that was not lost is one more share


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Prices of one device-hour. A cluster without a price of its own costs `device_hour`."""

    currency: str
    device_hour: float = 0.0
    clusters: Mapping[str, float] = field(default_factory=dict)

    def of(self, cluster: str) -> float:
        return self.clusters.get(cluster, self.device_hour)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """The device time of one job. `gain_us` is what a better snapshot interval would have saved, None if not known."""

    job_id: str
    user: str | None
    project: str
    cluster: str
    stretches: Sequence[Stretch]
    gain_us: int | None = None


@dataclass(slots=True, kw_only=True)
class Share:
    """One part of the device time. `name` None is the part that belongs to no user, node or cause.

    `cost` is the price of the held time, and `lost_cost` that of the losses.
    """

    name: str | None
    bins: Counter[Bin] = field(default_factory=Counter)
    job_ids: set[str] = field(default_factory=set)
    cost: float = 0.0
    lost_cost: float = 0.0
    gain_us: int | None = None

    @property
    def ledger(self) -> Ledger:
        return Ledger(bins={each: self.bins[each] for each in Bin}, whole_us=self.bins.total())

    def add(self, job_id: str, into: Bin, amount_us: int, price: float) -> None:
        self.bins[into] += amount_us
        self.job_ids.add(job_id)
        cost = 0.0 if into in UNHELD else amount_us / _HOUR_US * price
        self.cost += cost
        self.lost_cost += cost if into in LOSSES else 0.0

    def add_gain(self, gain_us: int) -> None:
        self.gain_us = gain_us + (self.gain_us or 0)


@dataclass(frozen=True, slots=True)
class Shares:
    """`items` has the largest share first. `total` is the whole as one share."""

    total: Share
    items: Sequence[Share]


def share_out(holdings: Iterable[Holding], by: Grouping, prices: Prices | None = None) -> Shares:
    """Divide the device time. A gain belongs to a whole job, so shares of nodes and causes have none."""
    total, shares = Share(name=None), dict[str | None, Share]()
    for holding in holdings:
        price = 0.0 if prices is None else prices.of(holding.cluster)
        for name, into, amount_us in _pieces(holding, by):
            if amount_us:
                for share in (total, shares.setdefault(name, Share(name=name))):
                    share.add(holding.job_id, into, amount_us, price)
        if holding.gain_us is None:
            continue
        total.add_gain(holding.gain_us)
        owner = None if by in _WITHIN_JOBS else shares.get(_owner(holding, by))
        if owner is not None:
            owner.add_gain(holding.gain_us)
    return Shares(total, sorted(shares.values(), key=lambda share: (-share.bins.total(), share.name or "")))


_WITHIN_JOBS = (Grouping.NODE, Grouping.CAUSE)


def _pieces(holding: Holding, by: Grouping) -> Iterator[tuple[str | None, Bin, int]]:
    for stretch in holding.stretches:
        for into, amount_us in take_apart(stretch):
            if by is Grouping.NODE:
                yield from _split_by_node(stretch, into, amount_us)
            elif by is Grouping.CAUSE:
                yield stretch.cause if into is stretch.bin else None, into, amount_us
            else:
                yield _owner(holding, by), into, amount_us


def _split_by_node(stretch: Stretch, into: Bin, amount_us: int) -> Iterator[tuple[str | None, Bin, int]]:
    """Yield each node's part by its weight. Remainders of the division are distributed, so that the parts add up."""
    total = sum(stretch.nodes.values())
    if into in UNHELD or not total:
        yield None, into, amount_us
        return
    weights = accumulate(stretch.nodes.values(), initial=0)
    ends = pairwise(amount_us * weight // total for weight in weights)
    for node, (begin, end) in zip(stretch.nodes, ends, strict=True):
        yield node, into, end - begin


def _owner(holding: Holding, by: Grouping) -> str | None:
    match by:
        case Grouping.USER:
            return holding.user
        case Grouping.CLUSTER:
            return holding.cluster
        case Grouping.JOB:
            return holding.job_id
        case _:
            return holding.project
