"""Sum up by generation which steps of a job still count: from its metrics, or from sums that outlive them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import JSON, ColumnElement, Text, and_, case, cast, func, or_, select, type_coerce
from sqlalchemy.orm import Session

from orchestrator.domain.accounting.life import Kept
from orchestrator.domain.accounting.training_summary import LONGEST_S, fitting
from orchestrator.domain.job.event import Event
from orchestrator.domain.job.event import EventKind as Ours
from orchestrator.store.mapping import stored_of
from orchestrator.store.tables import MetricRow, TrainingRow
from trainer.contract.clock import parse_time, render_time
from trainer.contract.exit_record import EventKind

SUMS = "sums"  # key in the evidence of the event about the removal
MOST_SUMS = 300  # more do not fit into an event
# Few steps report one; a text search is cheaper than parsing.
_MENTIONED = cast(MetricRow.measured, Text).contains('"snapshot_s"', autoescape=True)
_REPORTED_S = case((_MENTIONED, type_coerce(MetricRow.measured, JSON)["snapshot_s"].as_float()))
_STALL_S = case((_REPORTED_S.between(0, LONGEST_S), _REPORTED_S))
_REPORTED_STALL = case((_STALL_S > 0, 1))

Sums = dict[tuple[int, int], Kept]


def read_kept(session: Session, job_id: str, events: Sequence[Event], *, is_thin: bool) -> Sums:
    """Return the sums by attempt and generation. If an attempt's metrics were removed, uses the stored sums."""
    summed = read_sums(events)
    after = max((attempt for attempt, _ in summed), default=0)
    return summed | read_rows(session, job_id, events, after=after, is_thin=is_thin)


def read_rows(session: Session, job_id: str, events: Sequence[Event], *, after: int, is_thin: bool) -> Sums:
    """Sum up the metrics of the attempts with numbers above `after`.

    A repeated step has the row of its last repetition. If the newest generation restarted from an earlier step, rows of
    later steps that it has not reached yet are old and do not count. `is_thin`: the metrics of some steps were not
    stored, so the number of rows is not the number of steps.
    """
    mine = and_(MetricRow.job_id == job_id, MetricRow.attempt > after)
    terms = _read_terms(session, mine)
    newest = _find_newest_base(terms, events)
    if newest is not None:
        attempt, generation, base = newest
        if any(term < (attempt, generation) and one.last_step > base for term, one in terms.items()):
            later = and_(MetricRow.attempt == attempt, MetricRow.generation >= generation)
            mine = and_(mine, or_(MetricRow.step <= base, MetricRow.attempt > attempt, later))
            terms = _read_terms(session, mine)
    return {
        term: Kept(
            steps=one.last_step - one.first_step + 1 if is_thin else one.steps,
            first_at=one.first_at,
            last_at=one.last_at,
            stall_s=one.stall_s,
            snapshots=one.snapshots,
        )
        for term, one in terms.items()
    }


def render_sums(sums: Sums) -> list[dict[str, object]]:
    return [
        {
            "attempt": attempt,
            "generation": generation,
            "steps": kept.steps,
            "first_at": render_time(kept.first_at),
            "last_at": render_time(kept.last_at),
            "stall_s": kept.stall_s,
            "snapshots": kept.snapshots,
        }
        for (attempt, generation), kept in sorted(sums.items())
    ]


def read_sums(events: Sequence[Event]) -> Sums:
    """Parse the stored sums. They are trusted, because agents cannot report events of this kind."""
    documents = [event.evidence.get(SUMS) for event in events if event.kind == Ours.REMOVED]
    return {
        (int(str(one["attempt"])), int(str(one["generation"]))): _parse(one)
        for document in documents
        if isinstance(document, list)
        for one in document
        if isinstance(one, Mapping)
    }


def _parse(one: Mapping[str, object]) -> Kept:
    return Kept(
        steps=int(str(one["steps"])),
        first_at=_moment(one["first_at"]),
        last_at=_moment(one["last_at"]),
        stall_s=float(str(one["stall_s"])),
        snapshots=int(str(one["snapshots"])),
    )


def _moment(text: object) -> datetime:
    return parse_time(str(text))


@dataclass(frozen=True, slots=True)
class _Term:
    """The rows of one generation."""

    steps: int
    first_at: datetime
    last_at: datetime
    first_step: int
    last_step: int
    stall_s: float
    snapshots: int


def has_thin_metrics(session: Session, job_id: str) -> bool:
    """Whether the metrics of some steps were not stored."""
    newest = select(TrainingRow.stored).where(TrainingRow.job_id == job_id).order_by(TrainingRow.attempt.desc())
    return stored_of(session.scalar(newest.limit(1))).level() > 0


def _read_terms(session: Session, mine: ColumnElement[bool]) -> dict[tuple[int, int], _Term]:
    query = select(
        MetricRow.attempt,
        MetricRow.generation,
        func.count(),
        func.min(MetricRow.at),
        func.max(MetricRow.at),
        func.min(MetricRow.step),
        func.max(MetricRow.step),
        func.coalesce(func.sum(_STALL_S), 0.0),
        func.count(_REPORTED_STALL),
    )
    rows = session.execute(query.where(mine).group_by(MetricRow.attempt, MetricRow.generation))
    return {(attempt, generation): _Term(*sums) for attempt, generation, *sums in rows}


def _find_newest_base(terms: Mapping[tuple[int, int], _Term], events: Sequence[Event]) -> tuple[int, int, int] | None:
    """Return (attempt, generation, step) of the newest start: from a restore event, or from the first step."""
    restored = [
        (event.attempt or 0, event.generation or 0, step)
        for event in events
        if event.kind == EventKind.RESTORED
        and type(reported := event.evidence.get("step")) is int  # a bool would pass isinstance
        and (step := fitting(reported)) is not None
    ]
    newest = max(terms, default=None)
    begun = [] if newest is None else [(*newest, terms[newest].first_step - 1)]
    return max([*restored, *begun], key=lambda found: found[:2], default=None)
