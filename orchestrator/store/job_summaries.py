"""Select and read what lists show of jobs: only the columns that they need, and the spec as text."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sqlalchemy import FromClause, Result, ScalarSelect, Select, Subquery, Text, cast, func, select

from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.job import JobState
from orchestrator.domain.job.job_summary import AttemptSummary, JobSummary
from orchestrator.domain.specs.stored_spec import show_stored_spec
from orchestrator.store.mapping import desired_of
from orchestrator.store.tables import AttemptRow, JobRow, SnapshotRow, TrainingRow
from trainer.contract.failure import parse_failure

# Tables and not classes: the object-relational layer would double the time of a page.
JOBS, _ATTEMPTS, _TRAININGS, _SNAPSHOTS = (row.__table__ for row in (JobRow, AttemptRow, TrainingRow, SnapshotRow))
_OF_JOB = (
    *("id", "name", "project", "cluster", "priority", "owner", "state", "reason"),
    *("created_at", "updated_at", "finished_at", "retries_done", "spent"),
    *(column.name for column in JOBS.c if column.name.startswith("desired_")),
)
_OF_ATTEMPT = ("nodes", "asked", "snapshots_told", "errand_told", "failure")
_OF_TRAINING = (
    *("phase", "generation", "restarts", "shrinks", "step", "total_steps", "step_s"),
    *("loss", "tokens_per_s", "world_size"),
)


def select_jobs() -> Select[Any]:
    """Select the columns of jobs, with the number of the newest attempt as `attempt`."""
    newest = select(func.max(_ATTEMPTS.c.number)).where(_ATTEMPTS.c.job_id == JOBS.c.id).correlate(JOBS)
    spec = cast(JOBS.c.spec, Text).label("spec")
    return select(*(JOBS.c[name] for name in _OF_JOB), spec, newest.scalar_subquery().label("attempt"))


def select_summaries(jobs: Subquery) -> Select[Any]:
    """Select rows for `summary_of`. `jobs` is select_jobs(). With a limit, PostgreSQL joins by primary keys."""
    job, attempt, training = jobs.c, _ATTEMPTS.c, _TRAININGS.c
    joined = jobs.outerjoin(_ATTEMPTS, (attempt.job_id == job.id) & (attempt.number == job.attempt)).outerjoin(
        _TRAININGS, (training.job_id == job.id) & (training.attempt == job.attempt)
    )
    return select(
        *job,
        attempt.state.label("attempt_state"),
        *(attempt[name] for name in _OF_ATTEMPT),
        *(training[name] for name in _OF_TRAINING),
        count_attempts(jobs).label("attempts"),
        select_newest_snapshot(jobs).label("newest_snapshot"),
    ).select_from(joined)


def count_attempts(jobs: FromClause) -> ScalarSelect[int]:
    others = _ATTEMPTS.alias()
    return select(func.count()).where(others.c.job_id == jobs.c.id).correlate(jobs).scalar_subquery()


def select_newest_snapshot(jobs: FromClause) -> ScalarSelect[str]:
    """Select the name of the newest committed snapshot: of the highest step, then of the latest term."""
    snapshot = _SNAPSHOTS.c
    order = (snapshot.step.desc(), snapshot.attempt.desc(), snapshot.generation.desc())
    committed = (snapshot.job_id == jobs.c.id) & (snapshot.state == "committed")
    return select(snapshot.name).where(committed).order_by(*order).limit(1).correlate(jobs).scalar_subquery()


def summaries_of(found: Result[Any]) -> list[JobSummary]:
    """Read the rows of select_summaries."""
    names = tuple(found.keys())
    # Reading a value from a namespace takes a tenth of the time that a row takes.
    return [_summary_of(SimpleNamespace(**dict(zip(names, row, strict=True)))) for row in found.all()]


def _summary_of(row: Any) -> JobSummary:
    copied = {"name": row.name, "project": row.project, "cluster": row.cluster, "priority": row.priority}
    spec: dict[str, Any] = {**show_stored_spec(row.spec), **copied}  # a damaged spec lacks them
    return JobSummary(
        **copied,
        id=row.id,
        labels=_texts_of(spec["labels"]),
        asked=str(spec["topology"]["nodes"]),
        limits_preemptions=spec["supervise"]["budgets"]["preemption"] is not None,
        spec=spec,
        owner=row.owner,
        state=JobState(row.state),
        reason=row.reason,
        desired=desired_of(row),
        created_at=row.created_at,
        updated_at=row.updated_at,
        finished_at=row.finished_at,
        retries_done=row.retries_done,
        spent={name: int(str(count)) for name, count in row.spent.items()},
        attempt=_attempt_of(row),
        attempts=row.attempts,
        newest_snapshot=row.newest_snapshot,
        phase=row.phase,
        generation=row.generation,
        restarts=row.restarts or 0,
        shrinks=row.shrinks or 0,
        step=row.step,
        total_steps=row.total_steps,
        step_s=row.step_s,
        loss=row.loss,
        tokens_per_s=row.tokens_per_s,
        world_size=row.world_size,
    )


def _texts_of(labels: object) -> dict[str, str]:
    return {name: str(value) for name, value in labels.items()} if isinstance(labels, dict) else {}


def _attempt_of(row: Any) -> AttemptSummary | None:
    if row.attempt is None:
        return None
    return AttemptSummary(
        number=row.attempt,
        state=AttemptState(row.attempt_state),
        nodes=row.nodes,
        asked=row.asked,
        snapshots_sent=row.snapshots_told,
        errand_sent=row.errand_told,
        failure=None if row.failure is None else parse_failure(row.failure),
    )
