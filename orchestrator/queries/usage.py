"""Divides the device time of many jobs, for the API, the pages and Prometheus.

A job that has ended is read once and cached until it changes. A live job is read again after a pause. The pause grows
with the time that reading takes, so that reading stays a small part of the service's work.
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from orchestrator.domain.accounting.breakdown import Grouping, Holding, Prices, Share, share_out
from orchestrator.domain.accounting.chronicle import read_life
from orchestrator.domain.accounting.gains import judge_interval, measure
from orchestrator.domain.accounting.goodput import add_up, clip
from orchestrator.domain.accounting.life import Life, lay_out
from orchestrator.domain.errors import NotFound, Refused
from orchestrator.domain.job.job import Job
from orchestrator.ports.clock import Clock
from orchestrator.store.chronicle_reader import ChronicleReader
from orchestrator.store.records import Lifespan
from orchestrator.wire.insight import SharesView, ShareView

MOST_JOBS = 5000  # in one answer
USUAL_WINDOW = timedelta(days=30)
_FRESH_S = 10.0  # the least age at which a live job is read again
_IDLE_SHARE = 20  # or this many times as long as reading all live jobs took
_SCRAPE_S = 2.0  # Prometheus waits for 10 s
_DAY = timedelta(days=1)
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)  # before any job
_SETTLED = timedelta(minutes=10)  # after a job's end, its last journals have arrived
_MICROSECONDS = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class _Remembered:
    holder: Holding  # without stretches. A whole job, with its spec, would take 10 kB
    life: Life
    updated_at: datetime
    read_s: float  # when it was read, by the monotonic clock
    took_s: float  # how long reading took
    settled: bool  # nothing changes unless its owner requests it
    goodput: float | None  # at the time of reading


class Usage:
    """Every method raises StoreUnavailable."""

    def __init__(
        self,
        chronicles: ChronicleReader,
        clock: Clock,
        prices: Prices | None = None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._chronicles = chronicles
        self._clock = clock
        self._prices = prices
        self._monotonic = monotonic
        self._known: OrderedDict[str, _Remembered] = OrderedDict()
        self._reading = threading.Lock()  # concurrent callers read once

    def shares(
        self,
        by: Grouping,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        projects: Collection[str] | None = None,
    ) -> SharesView:
        """Return the device time of the jobs of `projects` between `since` and `until`, by default the last 30 days.

        `projects` None means all. Raises Refused for more than MOST_JOBS.
        """
        now = self._clock.now()
        end = max(_BEGINNING, min(until or now, now))
        begin = since or end - USUAL_WINDOW
        found = share_out(self._holdings(begin, end, projects), by, self._prices)
        return SharesView(
            by=by.value,
            since=begin,
            until=end,
            currency=None if self._prices is None else self._prices.currency,
            total=self._view(found.total),
            items=[self._view(share) for share in found.items],
        )

    def last_day(self, projects: Collection[str] | None = None) -> Mapping[tuple[str, str], float]:
        """Device-seconds of the last day by project and bin. Empty if there were too many jobs.

        Also empty if reading takes too long. A later call continues.
        """
        now, until_s = self._clock.now(), self._monotonic() + _SCRAPE_S
        try:
            found = share_out(self._holdings(now - _DAY, now, projects, until_s=until_s), Grouping.PROJECT)
        except Refused:
            return {}
        return {
            (share.name or "", into.value): amount_us / _MICROSECONDS
            for share in found.items
            for into, amount_us in share.ledger.bins.items()
        }

    def goodputs(self, jobs: Sequence[Lifespan], *, within_s: float) -> Mapping[str, float]:
        """Return the goodput of each job that held a device, as far as it is cached or can be read within `within_s`.

        Reads nothing while another caller reads. A later call returns the rest.
        """
        if self._reading.acquire(blocking=False):
            try:
                until_s = self._monotonic() + within_s
                for span in jobs:
                    if self._monotonic() >= until_s:
                        break
                    self._read(span, self._fresh_s())
            finally:
                self._reading.release()
        known = {span.job_id: self._known.get(span.job_id) for span in jobs}
        return {name: one.goodput for name, one in known.items() if one is not None and one.goodput is not None}

    def _holdings(
        self, begin: datetime, end: datetime, projects: Collection[str] | None, *, until_s: float = math.inf
    ) -> list[Holding]:
        """Return what the jobs of `projects` held between two times.

        Raises Refused for more than MOST_JOBS, and if they are not all read by `until_s`.
        """
        lived = self._chronicles.lifespans(since=begin, until=end, projects=projects, limit=MOST_JOBS + 1)
        if len(lived) > MOST_JOBS:
            raise Refused(f"more than {MOST_JOBS} jobs ran then; choose a shorter time or one project")
        with self._reading:
            fresh_s = self._fresh_s()
            found = [each for span in lived if (each := self._read_by(until_s, span, fresh_s)) is not None]
        now = self._clock.now()
        return [_holding(each, begin, end, now) for each in found]

    def _read_by(self, until_s: float, span: Lifespan, fresh_s: float) -> _Remembered | None:
        if self._monotonic() > until_s:
            raise Refused("the jobs of this time are still being read; ask again")
        return self._read(span, fresh_s)

    def _fresh_s(self) -> float:
        all_take_s = sum(each.took_s for each in self._known.values() if not each.settled)
        return max(_FRESH_S, _IDLE_SHARE * all_take_s)

    def _read(self, span: Lifespan, fresh_s: float) -> _Remembered | None:
        """Read a job, from the cache if it is fresh. None if it was deleted meanwhile, or its spec cannot be parsed."""
        known, began_s = self._known.get(span.job_id), self._monotonic()
        unchanged = known is not None and known.updated_at == span.updated_at
        if known is not None and unchanged and (known.settled or began_s - known.read_s < fresh_s):
            return known
        try:
            chronicle = self._chronicles.chronicle(span.job_id)
        except (NotFound, ValueError):
            return None
        life = read_life(chronicle)
        fresh = _Remembered(
            holder=_holder(chronicle.job),
            life=life,
            updated_at=span.updated_at,
            read_s=began_s,
            took_s=self._monotonic() - began_s,
            settled=span.finished_at is not None and self._clock.now() - span.finished_at > _SETTLED,
            goodput=add_up(lay_out(life, self._clock.now())).goodput,
        )
        self._known[span.job_id] = fresh
        self._known.move_to_end(span.job_id)
        while len(self._known) > MOST_JOBS:
            self._known.popitem(last=False)
        return fresh

    def _view(self, share: Share) -> ShareView:
        has_prices, ledger = self._prices is not None, share.ledger
        return ShareView(
            name=share.name,
            jobs=len(share.job_ids),
            device_seconds=ledger.whole_us / _MICROSECONDS,
            held_device_seconds=ledger.held_us / _MICROSECONDS,
            goodput=ledger.goodput,
            bins={into.value: amount_us / _MICROSECONDS for into, amount_us in ledger.bins.items()},
            cost=share.cost if has_prices else None,
            lost_cost=share.lost_cost if has_prices else None,
            gain_device_seconds=None if share.gain_us is None else share.gain_us / _MICROSECONDS,
        )


def _holding(found: _Remembered, begin: datetime, end: datetime, now: datetime) -> Holding:
    stretches = lay_out(found.life, now)
    gain_us = judge_interval(measure(found.life, stretches)).device_us
    return replace(found.holder, stretches=clip(stretches, begin, end), gain_us=gain_us)


def _holder(job: Job) -> Holding:
    return Holding(job_id=job.id, user=job.owner, project=job.spec.project, cluster=job.spec.cluster, stretches=())


def visible(projects: Collection[str] | None, wanted: str | None) -> Sequence[str] | None:
    """Return the `wanted` project if the caller sees it, or else no project. Without it, all that the caller sees."""
    if wanted is None:
        return None if projects is None else sorted(projects)
    return [wanted] if projects is None or wanted in projects else []
