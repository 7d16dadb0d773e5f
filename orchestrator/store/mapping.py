"""Convert rows to the domain's dataclasses and back. No queries."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from operator import attrgetter
from types import MappingProxyType
from typing import Any

from orchestrator.domain.accounting.training_summary import TrainingSummary
from orchestrator.domain.explanation.row_limits import Stored
from orchestrator.domain.job.attempt import Attempt, AttemptKey, AttemptState
from orchestrator.domain.job.event import Event
from orchestrator.domain.job.job import Desired, Job, JobState, RequestedChaos, RequestedStacks
from orchestrator.domain.observation.node_record import NodeFailure
from orchestrator.domain.observation.observation import RankReport, Training
from orchestrator.domain.specs.spec import JobSpec
from orchestrator.store.records import MetricPoint, StoredEvent, StoredReplica, StoredSnapshot, StoredWorker
from orchestrator.store.tables import (
    AttemptRow,
    EventRow,
    JobRow,
    JournalRow,
    SnapshotRow,
    TrainingRow,
    WorkerRow,
)
from trainer.contract.chaos import Fault
from trainer.contract.clock import parse_time, render_time
from trainer.contract.failure import FailureKind, parse_failure, render_failure
from trainer.contract.silence import PhaseTimes

# Equal for most of the waiting jobs, which may be thousands.
_NOTHING_SPENT: Mapping[str, int] = MappingProxyType({})
_NOTHING_DESIRED = Desired()


def job_of(row: JobRow, spec: JobSpec | None = None) -> Job:
    """`spec` is the parsed spec of the row, if the caller already has it. Jobs share equal texts."""
    return Job(
        id=row.id,
        spec=JobSpec.model_validate(row.spec) if spec is None else spec,
        state=JobState(row.state),
        reason=sys.intern(row.reason),
        desired=desired_of(row),
        created_at=row.created_at,
        updated_at=row.updated_at,
        finished_at=row.finished_at,
        owner=None if row.owner is None else sys.intern(row.owner),
        retries_done=row.retries_done,
        spent={name: int(str(count)) for name, count in row.spent.items()} if row.spent else _NOTHING_SPENT,
        fruitless=row.fruitless,
        retry_at=row.retry_at,
        recovering_since=row.recovering_since,
        farthest_step=row.farthest_step,
        kept_step=row.kept_step,
        kept_s=row.kept_s,
        last_failure=None if row.last_failure is None else parse_failure(row.last_failure),
    )


def desired_of(row: JobRow) -> Desired:
    found = Desired(
        number=row.desired_number,
        cancelled=row.desired_cancelled,
        suspended=row.desired_suspended,
        retry_number=row.desired_retry_number,
        restore_from=row.desired_restore_from,
        snapshot_number=row.desired_snapshot_number,
        stacks=None if row.desired_stacks is None else RequestedStacks(**row.desired_stacks),  # type: ignore[arg-type]  # our own document
        chaos=None if row.desired_chaos is None else _chaos_of(row.desired_chaos),
    )
    return _NOTHING_DESIRED if found == _NOTHING_DESIRED else found


def _chaos_of(document: Mapping[str, Any]) -> RequestedChaos:
    return RequestedChaos(**{**document, "fault": Fault(document["fault"])})


def spec_columns(spec: JobSpec) -> dict[str, object]:
    """Return the spec of a job and the columns that are copies from it."""
    return {
        "name": spec.name,
        "project": spec.project,
        "cluster": spec.cluster,
        "priority": spec.priority,
        "spec": spec.model_dump(mode="json", by_alias=True),
    }


def desired_columns(desired: Desired) -> dict[str, object]:
    return {
        "desired_number": desired.number,
        "desired_cancelled": desired.cancelled,
        "desired_suspended": desired.suspended,
        "desired_retry_number": desired.retry_number,
        "desired_restore_from": desired.restore_from,
        "desired_snapshot_number": desired.snapshot_number,
        "desired_stacks": None if desired.stacks is None else asdict(desired.stacks),
        "desired_chaos": None
        if desired.chaos is None
        else {**asdict(desired.chaos), "fault": desired.chaos.fault.value},
    }


def status_columns(job: Job) -> dict[str, object]:
    """Return the columns of a job that the supervisor writes."""
    return {
        "state": job.state.value,
        "reason": job.reason,
        "updated_at": job.updated_at,
        "finished_at": job.finished_at,
        "retries_done": job.retries_done,
        "spent": dict(job.spent),
        "fruitless": job.fruitless,
        "retry_at": job.retry_at,
        "recovering_since": job.recovering_since,
        "farthest_step": job.farthest_step,
        "kept_step": job.kept_step,
        "kept_s": job.kept_s,
        "last_failure": None if job.last_failure is None else render_failure(job.last_failure),
    }


def attempt_of(row: AttemptRow) -> Attempt:
    return Attempt(
        key=AttemptKey(row.job_id, row.number),
        state=AttemptState(row.state),
        reason=row.reason,
        nonce=row.nonce,
        nodes=row.nodes,
        asked=row.asked,
        workers_per_node=row.workers_per_node,
        port=row.port,
        created_at=row.created_at,
        restore_from=row.restore_from,
        handle=row.handle,
        started_at=row.started_at,
        stopping_since=row.stopping_since,
        ended_at=row.ended_at,
        failure=None if row.failure is None else parse_failure(row.failure),
        tried_at=row.tried_at,
        not_permitted=row.not_permitted,
        excluded_nodes=tuple(row.excluded_nodes),
        marked_nodes=tuple(row.marked_nodes),
        snapshots_told=row.snapshots_told,
        errand_told=row.errand_told,
    )


def attempt_columns(attempt: Attempt) -> dict[str, object]:
    """Return the columns of an attempt, without its key."""
    return {
        "state": attempt.state.value,
        "reason": attempt.reason,
        "nonce": attempt.nonce,
        "nodes": attempt.nodes,
        "asked": attempt.asked,
        "workers_per_node": attempt.workers_per_node,
        "port": attempt.port,
        "created_at": attempt.created_at,
        "restore_from": attempt.restore_from,
        "handle": attempt.handle,
        "started_at": attempt.started_at,
        "stopping_since": attempt.stopping_since,
        "ended_at": attempt.ended_at,
        "failure": None if attempt.failure is None else render_failure(attempt.failure),
        "tried_at": attempt.tried_at,
        "not_permitted": attempt.not_permitted,
        "excluded_nodes": list(attempt.excluded_nodes),
        "marked_nodes": list(attempt.marked_nodes),
        "snapshots_told": attempt.snapshots_told,
        "errand_told": attempt.errand_told,
    }


def training_of(row: TrainingRow | None) -> Training:
    if row is None:
        return Training()
    return Training(
        generation=row.generation,
        world_size=row.world_size,
        step=row.step,
        total_steps=row.total_steps,
        formed_at=row.formed_at,
        progress_at=row.progress_at,
        heard_at=row.heard_at,
        phase=row.phase,
        step_s=row.step_s,
        restarts=row.restarts,
        shrinks=row.shrinks,
        resized_at=row.resized_at,
        restored=row.restored,
        snapshots=row.snapshots,
        began_step=row.began_step,
        kept_step=row.kept_step,
        kept_at=row.kept_at,
        phase_times=_phase_times_of(row.pace_book).summary(),
    )


def summary_of(columns: Sequence[Any]) -> TrainingSummary:
    """Read the values of SUMMARY_COLUMNS."""
    *values, book = columns
    return TrainingSummary(*(*values, _phase_times_of(book)))


def summary_columns(summary: TrainingSummary) -> dict[str, object]:
    """Return the columns of a training, without its key."""
    book = summary.phase_times
    since = None if book.since is None else render_time(book.since)
    columns = dict(zip(_SUMMARY_FIELDS, _read_summary(summary), strict=True))
    columns["pace_book"] = dict(zip(_PHASE_TIMES, _read_phase_times(book), strict=True)) | {"since": since}
    return columns


def stored_of(document: Mapping[str, object] | None) -> Stored:
    """Return the parsed document. None (the attempt began before stored rows were counted) gives an empty one."""
    known = {name: value for name, value in (document or {}).items() if name in _STORED}
    return Stored(**known)  # type: ignore[arg-type]  # our own document


def stored_document(stored: Stored) -> dict[str, object]:
    """Render without empty fields, because the document is written with each report and most fields are empty."""
    return {name: value for name, value in zip(_STORED, _read_stored(stored), strict=True) if value}


_STORED = tuple(one.name for one in fields(Stored))
_SUMMARY_FIELDS = tuple(one.name for one in fields(TrainingSummary) if one.name != "phase_times")
SUMMARY_COLUMNS = (*_SUMMARY_FIELDS, "pace_book")  # in the order of the fields, of which phase_times is the last
_PHASE_TIMES = tuple(one.name for one in fields(PhaseTimes) if one.name != "since")
_read_stored, _read_summary, _read_phase_times = (
    attrgetter(*names) for names in (_STORED, _SUMMARY_FIELDS, _PHASE_TIMES)
)


def _phase_times_of(document: Mapping[str, object]) -> PhaseTimes:
    known = {name: document[name] for name in _PHASE_TIMES if name in document}
    since = document.get("since")
    return PhaseTimes(**known, since=parse_time(since) if isinstance(since, str) else None)  # type: ignore[arg-type]  # our own document


def stored_event_of(row: EventRow) -> StoredEvent:
    event = Event(
        at=row.at,
        kind=row.kind,
        sentence=row.sentence,
        attempt=row.attempt,
        generation=row.generation,
        evidence=dict(row.evidence),
        actor=row.actor,
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
        world_size=row.world_size,
        at=row.at,
        verified_at=row.verified_at,
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
        utilisation=row.utilisation,
        at=row.at,
    )


AgentPlace = tuple[str | None, int | None]  # its node's name, its pid


def agents_of(started: Iterable[Mapping[str, object]]) -> dict[tuple[int, int], AgentPlace]:
    """Map (replica, incarnation) to the agent's node and pid, from the evidence of `agent.started` events.

    Agents of older versions report no replica and are left out.
    """
    found: dict[tuple[int, int], AgentPlace] = {}
    for evidence in started:
        replica, incarnation, pid = (evidence.get(name) for name in ("replica", "incarnation", "pid"))
        host = evidence.get("host")
        if isinstance(replica, int) and isinstance(incarnation, int):
            found[replica, incarnation] = (
                host if isinstance(host, str) else None,
                pid if isinstance(pid, int) else None,
            )
    return found


def stored_replica_of(
    row: JournalRow, agents: Mapping[tuple[int, int], AgentPlace], ranks: Mapping[tuple[int, int], Sequence[int]]
) -> StoredReplica:
    incarnation = (row.replica, row.incarnation)
    name, pid = agents.get(incarnation, (None, None))
    outcome = None if row.exit_record is None else row.exit_record.get("outcome")
    return StoredReplica(
        attempt=row.attempt,
        replica=row.replica,
        incarnation=row.incarnation,
        name=name,
        pid=pid,
        ranks=ranks.get(incarnation, ()),
        ended=outcome if isinstance(outcome, str) else None,
    )


def rank_report_of(row: WorkerRow) -> RankReport:
    return RankReport(
        rank=row.rank,
        replica=row.replica,
        generation=row.generation,
        phase=row.phase,
        step=row.step,
        heard_at=row.heard_at,
    )


def node_failure_of(row: Any) -> NodeFailure:
    """`row` has the columns of NodeFailureRow, and also `cleared_at` and `began_at`."""
    return NodeFailure(
        cluster=row.cluster,
        node=row.node,
        at=row.at,
        key=AttemptKey(row.job_id, row.attempt),
        kind=FailureKind(row.kind),
        sentence=row.sentence,
        cleared_at=row.cleared_at,
        began_at=row.began_at,
    )


def node_failure_columns(mark: NodeFailure) -> dict[str, object]:
    return {
        "cluster": mark.cluster,
        "node": mark.node,
        "job_id": mark.key.job_id,
        "attempt": mark.key.number,
        "at": mark.at,
        "kind": mark.kind.value,
        "sentence": mark.sentence,
    }


def metric_point_of(row: Any) -> MetricPoint:
    """`row` is a MetricRow, or a tuple of its columns."""
    return MetricPoint(
        step=row.step, attempt=row.attempt, generation=row.generation, at=row.at, values=_floats(row.measured)
    )


def _floats(measured: Mapping[str, object]) -> dict[str, float]:
    return {name: value if isinstance(value, float) else float(str(value)) for name, value in measured.items()}
