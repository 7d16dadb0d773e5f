"""The timeline of a job: the stretches of its ledger as a band, attempts below it, and events as pins above it. Pure.

The ledger decides the bin of each stretch (`domain/accounting/life.py`). This module computes positions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import groupby

from orchestrator.domain.accounting.goodput import Bin
from orchestrator.domain.counted import counted
from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.event import EventKind
from orchestrator.wire.insight import StretchView
from orchestrator.wire.job_views import AttemptView, EventView, JobView
from trainer.contract.exit_record import GROUP_CHANGES
from trainer.contract.exit_record import EventKind as AgentEvent

_PLACES = 120  # across the band: pins with one shape in one place are merged
_CELLS = 400  # maximum parts of the band. With more stretches, each cell shows the bin that took most of its time
_LANES = 60  # the newest attempts, which are drawn


class Shape(StrEnum):
    FAILURE = "failure"
    RECOVERY = "recovery"
    SNAPSHOT = "snapshot"
    DAMAGE = "damage"
    REQUEST = "request"


_SHAPES: Mapping[str, Shape] = {
    **dict.fromkeys(GROUP_CHANGES, Shape.RECOVERY),
    AgentEvent.WORKER_FAILED.value: Shape.FAILURE,
    EventKind.NODE_MARKED: Shape.FAILURE,
    EventKind.REPLICA_LOST: Shape.FAILURE,
    EventKind.REPLICA_REJOINED: Shape.RECOVERY,
    EventKind.RECOVERED: Shape.RECOVERY,
    EventKind.GREW_BACK: Shape.RECOVERY,
    AgentEvent.SNAPSHOT_COMMITTED.value: Shape.SNAPSHOT,
    AgentEvent.SNAPSHOT_QUARANTINED.value: Shape.DAMAGE,
    AgentEvent.SNAPSHOT_FAILED.value: Shape.DAMAGE,
    EventKind.CANCEL_REQUESTED: Shape.REQUEST,
    EventKind.SUSPEND_REQUESTED: Shape.REQUEST,
    EventKind.RESUME_REQUESTED: Shape.REQUEST,
    EventKind.RETRY_REQUESTED: Shape.REQUEST,
    EventKind.SCALE_REQUESTED: Shape.REQUEST,
    EventKind.SNAPSHOT_REQUESTED: Shape.REQUEST,
}
_BAD_ENDS = {AttemptState.FAILED, AttemptState.LOST, AttemptState.PREEMPTED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """`x` and `width` are percent of the band. `seconds` is the wall time in the bin."""

    bin: Bin
    x: float
    width: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    shape: Shape
    x: float
    words: str
    event: int  # the id of the newest event of this pin
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One attempt. `ticks` are where its later generations began."""

    number: int
    state: AttemptState
    x: float
    width: float
    ticks: Sequence[float]
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    begin: datetime
    end: datetime
    parts: Sequence[Part]
    lanes: Sequence[Lane]
    pins: Sequence[Pin]


@dataclass(frozen=True, slots=True)
class _Scale:
    begin: datetime
    end: datetime

    def place(self, at: datetime) -> float:
        share = (at - self.begin) / (self.end - self.begin)
        return round(100 * min(1.0, max(0.0, share)), 3)


def build_timeline(
    job: JobView,
    stretches: Sequence[StretchView],
    attempts: Sequence[AttemptView],
    events: Sequence[EventView],
    now: datetime,
) -> Timeline:
    """`stretches` are in order and without gaps. They may be some seconds old: the last one is extended to `now` unless
    the job has ended."""
    if stretches and not job.state.terminal:
        last = stretches[-1]
        stretches = [*stretches[:-1], last.model_copy(update={"until": max(last.until, now)})]
    end = stretches[-1].until if stretches else job.created_at
    scale = _Scale(job.created_at, max(end, job.created_at + timedelta(seconds=1)))
    merged = list(_merge(stretches))
    return Timeline(
        begin=scale.begin,
        end=scale.end,
        parts=[_part(each, scale) for each in (merged if len(merged) <= _CELLS else _merge(_coarsen(merged, scale)))],
        lanes=[_lane(each, stretches, scale) for each in sorted(attempts, key=_number)[-_LANES:]],
        pins=_pins(sorted(events, key=_time), scale),
    )


@dataclass(frozen=True, slots=True)
class _Span:
    bin: Bin
    since: datetime
    until: datetime


def _number(attempt: AttemptView) -> int:
    return attempt.number


def _time(event: EventView) -> datetime:
    return event.at


def _merge(stretches: Iterable[StretchView | _Span]) -> Iterator[_Span]:
    """Merge adjacent stretches in one bin, such as the end of an attempt and the start of the next in a recovery."""
    spans = (_Span(Bin(each.bin), each.since, each.until) for each in stretches)
    for _, group in groupby(spans, key=lambda span: span.bin):
        first, *others = group
        yield replace(first, until=others[-1].until) if others else first


def _coarsen(spans: Sequence[_Span], scale: _Scale) -> Iterator[_Span]:
    width = (scale.end - scale.begin) / _CELLS
    place = 0
    for number in range(_CELLS):
        since, until = scale.begin + number * width, scale.begin + (number + 1) * width
        lasted: Counter[Bin] = Counter()
        while place < len(spans):
            span = spans[place]
            lasted[span.bin] += round((min(span.until, until) - max(span.since, since)).total_seconds() * 1e6)
            if span.until > until:
                break
            place += 1
        if lasted:
            yield _Span(lasted.most_common(1)[0][0], since, until)


def _part(span: _Span, scale: _Scale) -> Part:
    x = scale.place(span.since)
    width = round(scale.place(span.until) - x, 3)
    return Part(bin=span.bin, x=x, width=width, seconds=(span.until - span.since).total_seconds())


def _lane(attempt: AttemptView, stretches: Iterable[StretchView], scale: _Scale) -> Lane:
    x = scale.place(attempt.created_at)
    width = max(0.2, round(scale.place(attempt.ended_at or scale.end) - x, 3))
    began: dict[int, datetime] = {}
    for each in stretches:
        if each.attempt == attempt.number and each.generation is not None:
            began.setdefault(each.generation, each.since)
    later = [began[number] for number in sorted(began)[1:]]
    restarts = f", {counted(len(later), 'restart')} in place" if later else ""
    return Lane(
        number=attempt.number,
        state=attempt.state,
        x=x,
        width=width,
        ticks=[scale.place(at) for at in later[-_PLACES:]],
        words=f"attempt {attempt.number}: {attempt.state.lower()}{restarts}",
    )


def _pins(events: Iterable[EventView], scale: _Scale) -> list[Pin]:
    """Return one pin for each place and shape, so that a thousand snapshots do not hide a failure."""
    pins: dict[tuple[int, Shape], Pin] = {}
    for event in events:
        shape = shape_of(event)
        if shape is None:
            continue
        x = scale.place(event.at)
        key = (int(x * _PLACES / 100), shape)
        count = pins[key].count + 1 if key in pins else 1
        more = f" (and {count - 1} more here)" if count > 1 else ""
        pins[key] = Pin(shape=shape, x=x, words=f"{event.sentence or event.kind}{more}", event=event.id, count=count)
    return sorted(pins.values(), key=lambda pin: (list(Shape).index(pin.shape), pin.x))


def shape_of(event: EventView) -> Shape | None:
    """Return the shape that marks an event. None if it has none."""
    if event.kind == EventKind.ATTEMPT_STATE:
        return Shape.FAILURE if event.evidence.get("state") in _BAD_ENDS else None
    return _SHAPES.get(event.kind)
