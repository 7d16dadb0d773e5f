"""Lay out samples of ranks as series over time, with the beginnings of generations. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from trainer.contract.resource_sample import RankSample

MOST_SERIES = 16  # ranks
MOST_STARTS = 200
_MOST_NEWEST = 4096  # ranks


@dataclass(frozen=True, slots=True)
class ReplicaSample:
    """One sample of the ranks of a replica."""

    at: datetime
    attempt: int
    generation: int
    ranks: tuple[RankSample, ...]

    @property
    def term(self) -> tuple[int, int]:
        return self.attempt, self.generation


@dataclass(frozen=True, slots=True)
class Newest:
    """The newest sample of one rank."""

    taken: ReplicaSample
    sample: RankSample


@dataclass(frozen=True, slots=True)
class Series:
    """`samples` has for each rank one item for each time in `at`, None where the rank has no sample.

    An item holds the highest memory and the mean load of an equal part of the time. `ranks` is the number of ranks that
    have samples. If that is more than MOST_SERIES, `samples` has those with the most memory.
    """

    at: Sequence[datetime]
    samples: Mapping[int, Sequence[RankSample | None]]
    ranks: int
    starts: Sequence[ReplicaSample]  # the first sample of each generation, the newest generations only
    newest: Sequence[Newest]  # of each rank of the newest generation, by rank


def build_series(taken: Iterable[ReplicaSample], *, points: int, rank: int | None = None) -> Series:
    """`points` is the most times in `at`. With `rank`, `samples` has only that rank."""
    ordered = sorted(taken, key=lambda each: each.at)
    by_rank: defaultdict[int, list[tuple[datetime, RankSample]]] = defaultdict(list)
    for each in ordered:
        for sample in each.ranks:
            by_rank[sample.rank].append((each.at, sample))
    shown = [rank] if rank is not None else _select(by_rank)
    parts = _Intervals(ordered[0].at, ordered[-1].at, points) if ordered else None
    laid_out = {} if parts is None else {one: parts.divide(by_rank[one]) for one in shown if one in by_rank}
    used = sorted({part for series in laid_out.values() for part in series})
    return Series(
        at=[] if parts is None else [parts.middle(part) for part in used],
        samples={one: [series.get(part) for part in used] for one, series in laid_out.items()},
        ranks=len(by_rank),
        starts=_find_starts(ordered),
        newest=_find_newest(ordered),
    )


def _select(by_rank: Mapping[int, Sequence[tuple[datetime, RankSample]]]) -> list[int]:
    """The ranks with the most memory, host and GPU together, in their order."""

    def highest(rank: int) -> int:
        return max((each.memory_bytes or 0) + (each.gpu_memory_bytes or 0) for _, each in by_rank[rank])

    return sorted(sorted(by_rank, key=lambda rank: (-highest(rank), rank))[:MOST_SERIES])


@dataclass(frozen=True, slots=True)
class _Intervals:
    """Equal parts of the time from the first to the last sample."""

    begin: datetime
    end: datetime
    number: int

    @property
    def length(self) -> timedelta:
        return max(self.end - self.begin, timedelta(seconds=1)) / self.number

    def middle(self, part: int) -> datetime:
        return min(self.end, self.begin + self.length * (part + 0.5))

    def divide(self, samples: Sequence[tuple[datetime, RankSample]]) -> dict[int, RankSample]:
        parts: defaultdict[int, list[RankSample]] = defaultdict(list)
        for at, sample in samples:
            parts[min(self.number - 1, int((at - self.begin) / self.length))].append(sample)
        return {part: _merge(each) for part, each in parts.items()}


def _merge(samples: Sequence[RankSample]) -> RankSample:
    return RankSample(
        rank=samples[0].rank,
        memory_bytes=_highest([each.memory_bytes for each in samples]),
        cpu_cores=_mean([each.cpu_cores for each in samples]),
        gpu_memory_bytes=_highest([each.gpu_memory_bytes for each in samples]),
        gpu_utilization=_mean([each.gpu_utilization for each in samples]),
    )


def _highest(values: Sequence[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known), 3) if known else None


def _find_starts(ordered: Sequence[ReplicaSample]) -> list[ReplicaSample]:
    first: dict[tuple[int, int], ReplicaSample] = {}
    for each in ordered:
        first.setdefault(each.term, each)
    return [first[term] for term in sorted(first)[-MOST_STARTS:]]


def _find_newest(ordered: Sequence[ReplicaSample]) -> list[Newest]:
    term = max((each.term for each in ordered), default=None)
    newest = {sample.rank: Newest(each, sample) for each in ordered if each.term == term for sample in each.ranks}
    return [newest[rank] for rank in sorted(newest)[:_MOST_NEWEST]]
