"""Turn new journal lines into a summary of each attempt and into rows of workers, metrics, snapshots and events.

Rows of many attempts are collected, then written at once. Every write may be repeated. The summary counts each line;
the number of rows is limited by row_limits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from operator import itemgetter
from typing import NamedTuple

from sqlalchemy.orm import Session

from orchestrator.domain.accounting.training_summary import TrainingSummary, fitting, time_of
from orchestrator.domain.explanation.row_limits import MOST_SNAPSHOTS, Launch, Room, Stored, tell_thinned
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.job.event import REPLICA, Event
from orchestrator.domain.job.event import EventKind as ServiceEventKind
from orchestrator.ports.journals import JournalBatch
from orchestrator.store.many_rows import Values
from orchestrator.store.sanitize import MAX_EVIDENCE_BYTES, clean_share, clean_text, shorten_evidence
from orchestrator.store.upserts import (
    Journal,
    drop_snapshots,
    write_metrics,
    write_snapshots,
    write_verified,
    write_workers,
)
from trainer.contract.exit_record import GROUP_CHANGES, EventKind, JournalEvent, render_exit_record
from trainer.contract.manifest import parse_snapshot_name
from trainer.contract.progress import Progress

_SNAPSHOT_STATES = {
    EventKind.SNAPSHOT_COMMITTED.value: "committed",
    EventKind.SNAPSHOT_QUARANTINED.value: "quarantined",
    EventKind.SNAPSHOT_DELETED.value: "deleted",
}
_MAX_VERIFIED = 1000  # names in one event
_MAX_KIND_CHARS, _MAX_SENTENCE_CHARS = 100, 2000
_POINT_BYTES, _VALUE_BYTES = 100, 20  # of a row of metrics, and of each value in it without its name
# Of an agent's events, listeners get only these kinds: an agent must not speak in the service's name.
_NEWS = frozenset(kind.value for kind in EventKind)


class Training(NamedTuple):
    """What intake needs of an attempt: its summary, how much it has stored, and its launch."""

    summary: TrainingSummary
    stored: Stored
    launch: Launch


class JournalRows:
    """Takes batches in the order of their arrival. Rows of a later batch replace those of an earlier one."""

    def __init__(self, arrived_at: datetime) -> None:
        self.events: list[tuple[str, Event]] = []
        self.news: list[tuple[str, Event]] = []  # the events for listeners
        self._arrived_at = arrived_at
        self._workers: list[Values] = []
        self._metrics: list[Values] = []
        self._snapshots: list[Values] = []
        self._verified: dict[tuple[str, str], Values] = {}

    def take(self, batch: JournalBatch, journal: Journal, training: Training) -> None:
        """Take what is new in a batch. Updates `journal` and `training`."""
        lines, events = _new(batch, journal)
        if batch.reported:
            training.summary.heard_at = self._arrived_at
        for event in events:
            self._take_event(batch, event, training)
        self._take_lines(batch, lines, training)
        if batch.has_broken_exit and training.stored.mark_said("exit"):
            sentence = f"Replica {batch.replica} left an exit.json that cannot be parsed. It is ignored."
            self._add_own_event(batch.key, sentence, kind=ServiceEventKind.FILE_BROKEN)
        if journal.exit_record is None and batch.exit_record is not None:
            journal.exit_record = shorten_evidence(render_exit_record(batch.exit_record))

    def refuse(self, batch: JournalBatch, refusal: str, training: Training) -> None:
        """Add one event that the replica's journals are not stored. A refused HTTP report gets an error instead."""
        if not batch.reported and training.stored.mark_said("replica"):
            self._add_own_event(batch.key, f"{refusal} Its journals are not stored.")

    def _take_event(self, batch: JournalBatch, event: JournalEvent, training: Training) -> None:
        summary, stored = training.summary, training.stored
        changed = summary.changed_generation
        summary.add_event(event, self._arrived_at)
        snapshot = _snapshot(batch.key, event, self._arrived_at)
        if snapshot is not None:
            self._snapshots.append(snapshot)
        self._verified |= _verified(batch.key.job_id, event, self._arrived_at)
        room, is_free = stored.find_room(training.launch, event.kind, event.generation)
        if not is_free:
            if stored.mark_said(room):
                self._add_own_event(batch.key, stored.tell_full(room, training.launch), {"room": room.value})
            return
        row = self._event(batch, event)
        stored.count_event(room, event.kind, event.generation, _size_of(row))
        self.events.append((batch.key.job_id, row))
        # Every agent reports a change of the group. Listeners get it once.
        if event.kind in _NEWS and (event.kind not in GROUP_CHANGES or summary.changed_generation > changed):
            self.news.append(self.events[-1])

    def _take_lines(self, batch: JournalBatch, lines: Sequence[Progress], training: Training) -> None:
        summary, stored = training.summary, training.stored
        waits = summary.step_s is None
        for line in lines:
            summary.add_line(line, self._arrived_at)
            if waits and summary.step_s is not None:
                waits = False
                self.news.append((batch.key.job_id, self._first_step(batch, line)))
        storable = [line for line in lines if _fits(line) and training.launch.has_worker(line.local_rank)]
        newest = {line.local_rank: line for line in storable}
        self._workers += [_worker(batch, line, self._arrived_at) for line in newest.values()]
        level_before = stored.level()
        self._metrics += _metrics(batch.key, storable, stored, self._arrived_at)
        level = stored.level()
        if level > level_before and stored.mark_said(f"{Room.POINTS}-{level}"):
            self._add_own_event(batch.key, tell_thinned(level), {"room": Room.POINTS.value})

    def _add_own_event(
        self,
        key: AttemptKey,
        sentence: str,
        evidence: dict[str, object] | None = None,
        *,
        kind: ServiceEventKind = ServiceEventKind.LIMIT_REACHED,
    ) -> None:
        """Add an event of the service itself."""
        event = Event(at=self._arrived_at, kind=kind, sentence=sentence, attempt=key.number, evidence=evidence or {})
        self.events.append((key.job_id, event))
        self.news.append((key.job_id, event))

    def write(self, session: Session) -> None:
        """Write all rows except the events."""
        write_workers(session, self._workers)
        # Always in the same order, so that two attempts of one job cannot deadlock.
        write_metrics(session, sorted(self._metrics, key=itemgetter("job_id", "step")))
        write_snapshots(session, self._snapshots)
        for job_id in sorted({str(row["job_id"]) for row in self._snapshots}):
            drop_snapshots(session, job_id, beyond=MOST_SNAPSHOTS)
        write_verified(session, [self._verified[key] for key in sorted(self._verified)])

    def _event(self, batch: JournalBatch, event: JournalEvent) -> Event:
        return Event(
            at=time_of(event.at, self._arrived_at),
            kind=clean_text(event.kind, max_chars=_MAX_KIND_CHARS),
            sentence=clean_text(event.sentence, max_chars=_MAX_SENTENCE_CHARS),
            attempt=batch.key.number,
            generation=event.generation,
            evidence=_with_replica(batch.replica, event.evidence),
        )

    def _first_step(self, batch: JournalBatch, line: Progress) -> Event:
        return Event(
            at=time_of(line.at, self._arrived_at),
            kind=ServiceEventKind.FIRST_STEP,
            sentence=f"attempt {batch.key.number} has completed a step",
            attempt=batch.key.number,
            generation=line.generation,
            evidence={"step": line.step},
        )


def _with_replica(replica: int, evidence: Mapping[str, object]) -> dict[str, object]:
    """Put the replica first, where shortening keeps it. A value that the agent itself reports is dropped."""
    return {REPLICA: replica} | {name: value for name, value in evidence.items() if name != REPLICA}


def _new(batch: JournalBatch, journal: Journal) -> tuple[Sequence[Progress], Sequence[JournalEvent]]:
    """Return the lines that are not stored yet, and advance the journal's offsets past them."""
    journal.progress_to = 0 if batch.progress_cut else journal.progress_to
    journal.events_to = 0 if batch.events_cut else journal.events_to
    lines: Sequence[Progress] = ()
    events: Sequence[JournalEvent] = ()
    if batch.progress_from <= journal.progress_to:
        lines = [line for offset, line in batch.progress if offset > journal.progress_to]
        journal.progress_to = max(journal.progress_to, batch.progress_to, *(offset for offset, _ in batch.progress))
    if batch.events_from <= journal.events_to:
        events = [event for offset, event in batch.events if offset > journal.events_to]
        journal.events_to = max(journal.events_to, batch.events_to, *(offset for offset, _ in batch.events))
    return lines, events


def _worker(batch: JournalBatch, line: Progress, arrived_at: datetime) -> Values:
    return {
        "job_id": batch.key.job_id,
        "attempt": batch.key.number,
        "replica": batch.replica,
        "local_rank": line.local_rank,
        "incarnation": batch.incarnation,
        "rank": line.rank,
        "world_size": line.world_size,
        "generation": line.generation,
        "pid": line.pid,
        "phase": line.phase.value,
        "step": line.step,
        "memory_bytes": fitting(line.memory_bytes),
        "utilisation": clean_share(line.utilisation),
        "at": time_of(line.at, arrived_at),
        "heard_at": arrived_at,
    }


def _metrics(key: AttemptKey, lines: Sequence[Progress], stored: Stored, arrived_at: datetime) -> list[Values]:
    """Return one point for each step, of the latest generation that reported it, within the limits of `stored`."""
    points: dict[int, Progress] = {}
    for line in lines:
        if line.step is not None and line.metrics and stored.takes_metrics(line):
            known = points.get(line.step)
            if known is None or line.generation >= known.generation:
                points[line.step] = line
    rows = [_point(key, step, line, stored, arrived_at) for step, line in points.items()]
    return [row for row in rows if row is not None]


def _point(key: AttemptKey, step: int, line: Progress, stored: Stored, arrived_at: datetime) -> Values | None:
    measured = stored.take_names(line.metrics)
    size = _POINT_BYTES + sum(map(len, measured)) + _VALUE_BYTES * len(measured)
    if not measured or not stored.take_point(step, size, always="snapshot_s" in measured):
        return None
    return {
        "job_id": key.job_id,
        "step": step,
        "attempt": key.number,
        "generation": line.generation,
        "at": time_of(line.at, arrived_at),
        "measured": measured,
    }


def _size_of(event: Event) -> int:
    return len(event.kind) + len(event.sentence) + min(len(json.dumps(event.evidence)), MAX_EVIDENCE_BYTES)


def _fits(line: Progress) -> bool:
    """Whether a database can hold the line's numbers. A bad number costs its line, not the batch."""
    numbers = (line.rank, line.local_rank, line.world_size, line.generation, line.pid, line.step or 0)
    return fitting(min(numbers)) is not None and fitting(max(numbers)) is not None


def _snapshot(key: AttemptKey, event: JournalEvent, arrived_at: datetime) -> Values | None:
    """Return a row for an event about a snapshot. None for other events, and without a valid snapshot name."""
    state = _SNAPSHOT_STATES.get(event.kind)
    if state is None:
        return None
    name = clean_text(str(event.evidence.get("name", "")), max_chars=255)
    parsed = parse_snapshot_name(name)
    if parsed is None or parsed.term.attempt >= 2**31:
        return None
    step, generation = fitting(parsed.step), fitting(parsed.term.generation)
    size, world = event.evidence.get("size_bytes"), event.evidence.get("world_size")
    if step is None or generation is None:
        return None
    return {
        "job_id": key.job_id,
        "name": name,
        "step": step,
        "attempt": parsed.term.attempt,
        "generation": generation,
        "state": state,
        "size_bytes": fitting(size) if type(size) is int else None,
        "world_size": fitting(world) if type(world) is int else None,
        "at": time_of(event.at, arrived_at),
        "verified_at": None,
    }


def _verified(job_id: str, event: JournalEvent, arrived_at: datetime) -> dict[tuple[str, str], Values]:
    """Return the snapshots that this event says were verified: one that was restored, or those that were kept."""
    if event.kind == EventKind.RESTORED.value:
        names = [event.evidence.get("name")]
    else:
        summary = event.evidence.get("verified") if event.kind == EventKind.SNAPSHOT_DELETED.value else None
        names = summary[:_MAX_VERIFIED] if isinstance(summary, list) else []
    parsed = (parse_snapshot_name(clean_text(name, max_chars=255)) for name in names if isinstance(name, str))
    at = time_of(event.at, arrived_at)
    return {
        (job_id, str(name)): {"of_job": job_id, "of_name": str(name), "verified_at": at}
        for name in parsed
        if name is not None
    }
