"""Who had which share of the device time: by user, project, cluster, job, node, or the cause of a loss. Pure.

The shares of one grouping add up to the ledgers of the jobs, to the microsecond.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate, pairwise

from orchestrator.domain.accounting.goodput import UNHELD, Bin, Ledger, Stretch, take_apart

_HOUR_US = 3_600_000_000


class Grouping(StrEnum):
    USER = "user"  # who submitted the job
    PROJECT = "project"
    CLUSTER = "cluster"
    JOB = "job"
    NODE = "node"  # time without a node is a share of its own
    CAUSE = "cause"  # the kind of failure that a loss goes back to; what is no loss is a share of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Of an hour of one device, by cluster. A cluster without a price costs nothing."""

    currency: str
    device_hour: float = 0.0
    clusters: Mapping[str, float] = field(default_factory=dict)

    def of(self, cluster: str) -> float:
        return self.clusters.get(cluster, self.device_hour)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What one job had. `gain_us`: what a better interval of its snapshots would have spared it; None: not known."""

    job_id: str
    user: str | None
    project: str
    cluster: str
    stretches: Sequence[Stretch]
    gain_us: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """`name` None: what belongs to none of them. `cost` is of what was held, in the prices' currency."""

    name: str | None
    ledger: Ledger
    jobs: int
    cost: float
    lost_cost: float  # of what was held and not productive
    gain_us: int | None = None


@dataclass
class _Sum:
    bins: Counter[Bin] = field(default_factory=Counter)
    jobs: set[str] = field(default_factory=set)
    cost: float = 0.0
    lost_cost: float = 0.0
    gains: list[int] = field(default_factory=list)

    def add(self, holding: Holding, into: Bin, amount_us: int, price: float) -> None:
        self.bins[into] += amount_us
        self.jobs.add(holding.job_id)
        cost = 0.0 if into in UNHELD else amount_us / _HOUR_US * price
        self.cost += cost
        self.lost_cost += 0.0 if into is Bin.PRODUCTIVE else cost


def share_out(holdings: Iterable[Holding], by: Grouping, prices: Prices | None = None) -> tuple[Share, ...]:
    """The largest first."""
    sums: defaultdict[str | None, _Sum] = defaultdict(_Sum)
    for holding in holdings:
        price = 0.0 if prices is None else prices.of(holding.cluster)
        for name, into, amount_us in _pieces(holding, by):
            if amount_us:
                sums[name].add(holding, into, amount_us, price)
        owner = _owner(holding, by)
        if holding.gain_us is not None and by not in _WITHIN_JOBS:
            sums[owner].gains.append(holding.gain_us)
    shares = [_share(name, total) for name, total in sums.items()]
    return tuple(sorted(shares, key=lambda share: (-share.ledger.whole_us, share.name or "")))


def total_of(holdings: Iterable[Holding], prices: Prices | None = None) -> Share:
    """All of it as one share."""
    parts = share_out(holdings, Grouping.JOB, prices)
    bins: Counter[Bin] = Counter()
    for part in parts:
        bins.update(part.ledger.bins)
    gains = [part.gain_us for part in parts if part.gain_us is not None]
    return Share(
        name=None,
        ledger=Ledger(bins={each: bins[each] for each in Bin}, whole_us=sum(part.ledger.whole_us for part in parts)),
        jobs=len(parts),
        cost=sum(part.cost for part in parts),
        lost_cost=sum(part.lost_cost for part in parts),
        gain_us=sum(gains) if gains else None,
    )


_WITHIN_JOBS = (Grouping.NODE, Grouping.CAUSE)


def _share(name: str | None, total: _Sum) -> Share:
    return Share(
        name=name,
        ledger=Ledger(bins={each: total.bins[each] for each in Bin}, whole_us=total.bins.total()),
        jobs=len(total.jobs),
        cost=total.cost,
        lost_cost=total.lost_cost,
        gain_us=sum(total.gains) if total.gains else None,
    )


def _pieces(holding: Holding, by: Grouping) -> Iterator[tuple[str | None, Bin, int]]:
    for stretch in holding.stretches:
        for into, amount_us in take_apart(stretch):
            if by is Grouping.NODE:
                yield from _by_node(stretch, into, amount_us)
            elif by is Grouping.CAUSE:
                is_loss = into is stretch.bin and stretch.cause is not None
                yield stretch.cause.value if is_loss and stretch.cause is not None else None, into, amount_us
            else:
                yield _owner(holding, by), into, amount_us


def _by_node(stretch: Stretch, into: Bin, amount_us: int) -> Iterator[tuple[str | None, Bin, int]]:
    """Each node's part by its weight; what the division leaves over goes to one of them, so that nothing is lost."""
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
