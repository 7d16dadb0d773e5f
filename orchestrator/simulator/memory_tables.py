"""The tables of the store in memory, and the intake of journals. Only the training summaries are mutable."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from orchestrator.domain.accounting.training_summary import TrainingSummary, time_of
from orchestrator.domain.errors import NotFound
from orchestrator.domain.job.attempt import Attempt, AttemptKey
from orchestrator.domain.job.event import REPLICA, Event
from orchestrator.domain.job.job import Job
from orchestrator.domain.observation.node_record import NodeFailure
from orchestrator.domain.observation.observation import RankReport
from orchestrator.domain.queueing.lease import Lease
from orchestrator.ports.journals import JournalBatch, JournalOffsets
from trainer.contract.exit_record import ExitRecord, Outcome
from trainer.contract.progress import Progress

Life = tuple[int, int]  # replica, incarnation


@dataclass(frozen=True, slots=True)
class Journal:
    offsets: JournalOffsets = field(default_factory=JournalOffsets)
    exit_record: ExitRecord | None = None


@dataclass(slots=True)
class Tables:
    """Rows by key. `at_work` are the jobs that are not at rest."""

    jobs: dict[str, Job] = field(default_factory=dict)
    at_work: set[str] = field(default_factory=set)
    # (project, owner, key): (digest, job)
    keys: dict[tuple[str, str, str], tuple[str, str]] = field(default_factory=dict)
    attempts: dict[AttemptKey, Attempt] = field(default_factory=dict)
    newest: dict[str, int] = field(default_factory=dict)  # attempt number by job
    summaries: dict[AttemptKey, TrainingSummary] = field(default_factory=dict)
    ranks: dict[AttemptKey, dict[int, RankReport]] = field(default_factory=dict)
    journals: dict[AttemptKey, dict[Life, Journal]] = field(default_factory=dict)
    ports: dict[AttemptKey, tuple[str, int]] = field(default_factory=dict)
    node_failures: dict[tuple[str, str, AttemptKey], NodeFailure] = field(default_factory=dict)
    # when node records were cleared, by cluster and node
    cleared: dict[tuple[str, str], datetime] = field(default_factory=dict)
    leases: dict[str, tuple[Lease, datetime]] = field(default_factory=dict)  # with their ends
    events: list[tuple[str, Event]] = field(default_factory=list)

    def job(self, job_id: str) -> Job:
        """Raises NotFound."""
        if job_id not in self.jobs:
            raise NotFound(f"there is no job {job_id}")
        return self.jobs[job_id]

    def put_job(self, job: Job) -> None:
        self.jobs[job.id] = job
        (self.at_work.discard if job.at_rest else self.at_work.add)(job.id)

    def put_attempt(self, attempt: Attempt) -> None:
        key = attempt.key
        self.attempts[key] = attempt
        self.newest[key.job_id] = max(key.number, self.newest.get(key.job_id, 0))
        self.summaries.setdefault(key, TrainingSummary())
        if attempt.state.terminal:
            self.ports.pop(key, None)

    def attempt_of(self, job_id: str) -> Attempt | None:
        """Return the newest attempt of a job."""
        number = self.newest.get(job_id)
        return None if number is None else self.attempts[AttemptKey(job_id, number)]


def ingest(tables: Tables, batch: JournalBatch, arrived_at: datetime) -> None:
    key, life = batch.key, (batch.replica, batch.incarnation)
    journals = tables.journals.setdefault(key, {})
    journal, summary = journals.get(life, Journal()), tables.summaries[key]
    progress_to = 0 if batch.progress_cut else journal.offsets.progress
    events_to = 0 if batch.events_cut else journal.offsets.events
    if batch.reported:
        summary.heard_at = arrived_at
    if batch.events_from <= events_to:
        for event in [event for end, event in batch.events if end > events_to]:
            summary.add_event(event, arrived_at)
            at = time_of(event.at, arrived_at)
            stored = Event(
                at=at,
                kind=event.kind,
                sentence=event.sentence,
                attempt=key.number,
                generation=event.generation,
                evidence=event.evidence | {REPLICA: batch.replica},
            )
            tables.events.append((key.job_id, stored))
        events_to = max(events_to, batch.events_to)
    if batch.progress_from <= progress_to:
        for line in [line for end, line in batch.progress if end > progress_to]:
            summary.add_line(line, arrived_at)
            _update_rank(tables.ranks.setdefault(key, {}), batch, line, arrived_at)
        progress_to = max(progress_to, batch.progress_to)
    record = journal.exit_record or batch.exit_record
    offsets = JournalOffsets(progress=progress_to, events=events_to, exited=record is not None)
    journals[life] = Journal(offsets, record)


def _update_rank(ranks: dict[int, RankReport], batch: JournalBatch, line: Progress, arrived_at: datetime) -> None:
    """Store a rank's report. A late line of an earlier generation is ignored, as the rank may have moved."""
    known = ranks.get(line.rank)
    if known is None or line.generation >= known.generation:
        ranks[line.rank] = RankReport(
            rank=line.rank,
            replica=batch.replica,
            generation=line.generation,
            phase=line.phase.value,
            step=line.step,
            heard_at=arrived_at,
        )


def exits_of(tables: Tables, key: AttemptKey) -> dict[int, ExitRecord]:
    """Return the exit record of each replica's newest incarnation. A refused one counts only if there is no other."""
    newest: dict[int, tuple[tuple[bool, int], ExitRecord | None]] = {}
    for (replica, life), row in tables.journals.get(key, {}).items():
        record = row.exit_record
        standing = (record is None or record.outcome is not Outcome.REFUSED, life)
        if replica not in newest or standing > newest[replica][0]:
            newest[replica] = (standing, record)
    return {replica: record for replica, (_, record) in newest.items() if record is not None}
