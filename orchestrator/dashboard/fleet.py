"""The fleet over time, from the stretches of many jobs: goodput, what was lost to what, how training came back. Pure.

A recovery is the way from the end of one generation or attempt until the next one trains; its rung says by what.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from orchestrator.domain.accounting.breakdown import Grouping, Holding, share_out
from orchestrator.domain.accounting.goodput import Bin, Ledger, Stretch, add_up, clip
from orchestrator.domain.accounting.life import LOSSES

_HOUR_US = 3.6e9
_WORST = 10
_COLOURS = 7  # in app.css
NO_FAILURE = "no failure"  # start-up, snapshots and the like


class Rung(StrEnum):
    """How training came back, the lightest first."""

    IN_PLACE = "in place"
    SMALLER = "in place, smaller"
    LARGER = "in place, larger"
    ATTEMPT = "new attempt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """`lost` are device-hours by what they were lost to."""

    since: datetime
    until: datetime
    goodput: float | None
    held_h: float
    lost: Mapping[str, float]

    @property
    def lost_h(self) -> float:
        return sum(self.lost.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    rung: Rung
    cause: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RungTimes:
    rung: Rung
    count: int
    median_s: float
    p95_s: float
    longest_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Loser:
    """A job or a node with what was lost there."""

    name: str
    lost_h: float
    goodput: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    windows: Sequence[Window]
    causes: Mapping[str, float]  # device-hours lost, the most first
    goodput: float | None
    held_h: float
    jobs: int
    rungs: Sequence[RungTimes]
    restarts: Mapping[str, int]  # by the kind of the failure, the most first
    worst_jobs: Sequence[Loser]
    worst_nodes: Sequence[Loser]

    @property
    def colours(self) -> Mapping[str, str]:
        """By cause, the name of its colour."""
        failures = [name for name in self.causes if name != NO_FAILURE]
        return {NO_FAILURE: "none"} | {name: str(place % _COLOURS) for place, name in enumerate(failures)}


def build_fleet(holdings: Sequence[Holding], since: datetime, until: datetime, *, windows: int) -> Fleet:
    """`holdings` are clipped to the time between the two moments."""
    recoveries = [each for holding in holdings for each in list_recoveries(holding.stretches)]
    lives = [holding.stretches for holding in holdings if holding.stretches]
    whole, width = _window(lives, since, until), (until - since) / windows
    return Fleet(
        windows=[_window(lives, since + place * width, since + (place + 1) * width) for place in range(windows)],
        causes=_most_first(whole.lost),
        goodput=whole.goodput,
        held_h=whole.held_h,
        jobs=len(holdings),
        rungs=list(_sum_up(recoveries)),
        restarts=dict(Counter(each.cause for each in recoveries).most_common()),
        worst_jobs=_worst(holdings, Grouping.JOB),
        worst_nodes=_worst(holdings, Grouping.NODE),
    )


def list_recoveries(stretches: Sequence[Stretch]) -> Iterator[Recovery]:
    """Those that led back to training; one that still goes on, or led nowhere, is none."""
    before: Stretch | None = None
    seconds, cause = 0.0, None
    for each in stretches:
        if each.bin is Bin.RECOVERING:
            seconds += each.lasted_us / 1e6
            cause = cause or each.cause
        elif each.bin in (Bin.PRODUCTIVE, Bin.RE_DONE, Bin.UNTOLD):
            if seconds and before is not None:
                named = NO_FAILURE if cause is None else cause.value
                yield Recovery(rung=_rung(before, each), cause=named, seconds=seconds)
            before, seconds, cause = each, 0.0, None
        elif each.bin in (Bin.IDLE, Bin.QUEUE):
            before, seconds, cause = None, 0.0, None


def _rung(before: Stretch, after: Stretch) -> Rung:
    if before.attempt != after.attempt:
        return Rung.ATTEMPT
    if after.used == before.used:
        return Rung.IN_PLACE
    return Rung.SMALLER if after.used < before.used else Rung.LARGER


def _sum_up(recoveries: Iterable[Recovery]) -> Iterator[RungTimes]:
    by_rung: defaultdict[Rung, list[float]] = defaultdict(list)
    for each in recoveries:
        by_rung[each.rung].append(each.seconds)
    for rung in Rung:
        times = sorted(by_rung[rung])
        if times:
            p95_s = times[min(len(times) - 1, int(len(times) * 0.95))]
            yield RungTimes(
                rung=rung, count=len(times), median_s=statistics.median(times), p95_s=p95_s, longest_s=times[-1]
            )


def _window(lives: Iterable[Sequence[Stretch]], since: datetime, until: datetime) -> Window:
    lost: Counter[str] = Counter()
    held_us = productive_us = 0
    for life in lives:
        if life[0].since >= until or life[-1].until <= since:
            continue
        stretches = clip(life, since, until)
        ledger = add_up(stretches)
        held_us += ledger.held_us
        productive_us += ledger.bins.get(Bin.PRODUCTIVE, 0)
        lost.update(_losses(stretches, ledger))
    return Window(
        since=since,
        until=until,
        goodput=productive_us / held_us if held_us else None,
        held_h=held_us / _HOUR_US,
        lost={name: amount_us / _HOUR_US for name, amount_us in lost.items() if amount_us},
    )


def _losses(stretches: Iterable[Stretch], ledger: Ledger) -> Counter[str]:
    """Device-microseconds; what is no failure's is under one name, so that all of it adds up to what was lost."""
    lost: Counter[str] = Counter()
    for each in stretches:
        if each.bin in LOSSES and each.cause is not None:
            lost[each.cause.value] += each.lasted_us * each.used
    lost[NO_FAILURE] = ledger.lost_us - lost.total()
    return lost


def _worst(holdings: Iterable[Holding], by: Grouping) -> list[Loser]:
    losers = [
        Loser(name=share.name, lost_h=share.ledger.lost_us / _HOUR_US, goodput=share.ledger.goodput)
        for share in share_out(holdings, by)
        if share.name is not None and share.ledger.lost_us > 0
    ]
    return sorted(losers, key=lambda each: (-each.lost_h, each.name))[:_WORST]


def _most_first(amounts: Mapping[str, float]) -> Mapping[str, float]:
    return dict(sorted(amounts.items(), key=lambda item: (-item[1], item[0])))
