"""Rows to the domain's dataclasses and back. No queries."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.domain.attempt import Attempt, AttemptKey, AttemptState
from orchestrator.domain.event import Event
from orchestrator.domain.job import Desired, Job, JobState
from orchestrator.domain.observation import Training
from orchestrator.domain.spec import JobSpec
from orchestrator.ports import MetricPoint, StoredEvent, StoredSnapshot, StoredWorker
from orchestrator.store.sanitize import clean_integer, shorten_evidence
from orchestrator.store.tables import (
    AttemptRow,
    EventRow,
    JobLabelRow,
    JobRow,
    MetricRow,
    SnapshotRow,
    TrainingRow,
    WorkerRow,
)
from trainer.contract.failure import parse_failure, render_failure


def job_of(row: JobRow) -> Job:
    return Job(
        id=row.id,
        spec=JobSpec.model_validate(row.spec),
        state=JobState(row.state),
        reason=row.reason,
        desired=Desired(
            cancelled=row.desired_cancelled,
            retry_number=row.desired_retry_number,
            restore_from=row.desired_restore_from,
        ),
        created_at=row.created_at,
        updated_at=row.updated_at,
        finished_at=row.finished_at,
        retries_done=row.retries_done,
        spent={name: int(str(count)) for name, count in row.spent.items()},
        fruitless=row.fruitless,
        retry_at=row.retry_at,
    )


def asked_columns(spec: JobSpec) -> dict[str, object]:
    """The columns of a job that repeat its spec, and the spec."""
    return {
        "name": spec.name,
        "project": spec.project,
        "cluster": spec.cluster,
        "spec": spec.model_dump(mode="json", by_alias=True),
    }


def desired_columns(desired: Desired) -> dict[str, object]:
    return {
        "desired_cancelled": desired.cancelled,
        "desired_retry_number": desired.retry_number,
        "desired_restore_from": desired.restore_from,
    }


def status_columns(job: Job) -> dict[str, object]:
    """The columns of a job that the supervisor writes."""
    return {
        "state": job.state.value,
        "reason": job.reason,
        "updated_at": job.updated_at,
        "finished_at": job.finished_at,
        "retries_done": job.retries_done,
        "spent": dict(job.spent),
        "fruitless": job.fruitless,
        "retry_at": job.retry_at,
    }


def label_rows(job_id: str, spec: JobSpec) -> list[JobLabelRow]:
    return [JobLabelRow(job_id=job_id, name=name, value=value) for name, value in spec.labels.items()]


def attempt_of(row: AttemptRow) -> Attempt:
    return Attempt(
        key=AttemptKey(row.job_id, row.number),
        state=AttemptState(row.state),
        reason=row.reason,
        nonce=row.nonce,
        nodes=row.nodes,
        port=row.port,
        created_at=row.created_at,
        restore_from=row.restore_from,
        handle=row.handle,
        started_at=row.started_at,
        stopping_since=row.stopping_since,
        ended_at=row.ended_at,
        failure=None if row.failure is None else parse_failure(row.failure),
    )


def attempt_columns(attempt: Attempt) -> dict[str, object]:
    """The columns of an attempt but for its key."""
    return {
        "state": attempt.state.value,
        "reason": attempt.reason,
        "nonce": attempt.nonce,
        "nodes": attempt.nodes,
        "port": attempt.port,
        "created_at": attempt.created_at,
        "restore_from": attempt.restore_from,
        "handle": attempt.handle,
        "started_at": attempt.started_at,
        "stopping_since": attempt.stopping_since,
        "ended_at": attempt.ended_at,
        "failure": None if attempt.failure is None else render_failure(attempt.failure),
    }


def training_of(row: TrainingRow | None) -> Training:
    if row is None:
        return Training()
    return Training(
        generation=row.generation,
        step=row.step,
        total_steps=row.total_steps,
        formed_at=row.formed_at,
        progress_at=row.progress_at,
        phase=row.phase,
        step_s=row.step_s,
        restarts=row.restarts,
        restored=row.restored,
    )


def event_row(job_id: str, event: Event) -> EventRow:
    return EventRow(
        job_id=job_id,
        attempt=event.attempt,
        generation=clean_integer(event.generation),
        at=event.at,
        kind=event.kind,
        sentence=event.sentence,
        evidence=shorten_evidence(event.evidence),
    )


def stored_event_of(row: EventRow) -> StoredEvent:
    event = Event(
        at=row.at,
        kind=row.kind,
        sentence=row.sentence,
        attempt=row.attempt,
        generation=row.generation,
        evidence=dict(row.evidence),
    )
    return StoredEvent(id=row.id, job_id=row.job_id, event=event)


def stored_snapshot_of(row: SnapshotRow) -> StoredSnapshot:
    return StoredSnapshot(
        name=row.name,
        step=row.step,
        attempt=row.attempt,
        generation=row.generation,
        state=row.state,
        size_bytes=row.size_bytes,
        at=row.at,
    )


def stored_worker_of(row: WorkerRow) -> StoredWorker:
    return StoredWorker(
        attempt=row.attempt,
        replica=row.replica,
        local_rank=row.local_rank,
        rank=row.rank,
        world_size=row.world_size,
        generation=row.generation,
        pid=row.pid,
        phase=row.phase,
        step=row.step,
        memory_bytes=row.memory_bytes,
        at=row.at,
    )


def metric_point_of(row: MetricRow) -> MetricPoint:
    return MetricPoint(
        step=row.step, attempt=row.attempt, generation=row.generation, at=row.at, values=_floats(row.measured)
    )


def _floats(measured: Mapping[str, object]) -> dict[str, float]:
    return {name: float(str(value)) for name, value in measured.items()}
