"""Jobs and requests, as the API writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import bindparam, delete, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from orchestrator.domain.errors import Conflict
from orchestrator.domain.job.event import Event
from orchestrator.domain.job.job import Desired, Job
from orchestrator.domain.specs.spec import JobSpec
from orchestrator.store.engine import Database
from orchestrator.store.group_commit import GroupCommit
from orchestrator.store.lookups import append_events, require_job
from orchestrator.store.many_rows import Values, insert_rows
from orchestrator.store.mapping import desired_columns, job_of, spec_columns, status_columns
from orchestrator.store.tables import JobLabelRow, JobRow

# Built once, because building an expression costs more than running it.
_OF_KEY = select(JobRow).where(
    JobRow.project == bindparam("project"),
    JobRow.owner == bindparam("owner"),
    JobRow.idempotency_key == bindparam("key"),
)


@dataclass(frozen=True, slots=True)
class _Submission:
    job: Job
    idempotency_key: str | None
    digest: str
    event: Event


class SqlJobStore:
    """Implements ports.JobStore."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._added = GroupCommit(self._add_all)

    def add(self, job: Job, *, idempotency_key: str | None, digest: str, event: Event) -> Job:
        try:
            return self._added.add(_Submission(job, idempotency_key, digest, event))
        except IntegrityError as error:
            # Another call committed this key, or this id, first.
            with self._database.read() as session:
                first = _first_of_key(session, job.spec.project, job.owner, idempotency_key, digest)
            if first is None:
                raise Conflict(f"there is a job {job.id} already") from error
            return first

    def _add_all(self, submissions: Sequence[_Submission]) -> Sequence[Job]:
        """Raises IntegrityError, and adds none, if another job has the id or the key of one of them."""
        with self._database.write() as session:
            insert_rows(session, JobRow, [_columns(each) for each in submissions])
            _insert_labels(session, {each.job.id: each.job.spec for each in submissions})
            append_events(session, [(each.job.id, each.event) for each in submissions])
        return [each.job for each in submissions]

    def repeated(self, project: str, owner: str, idempotency_key: str, digest: str) -> Job | None:
        with self._database.read() as session:
            return _first_of_key(session, project, owner, idempotency_key, digest)

    def get(self, job_id: str) -> Job:
        with self._database.read() as session:
            return job_of(require_job(session, job_id))

    def record_request(self, job_id: str, desired: Desired, event: Event, *, spec: JobSpec | None = None) -> bool:
        columns = desired_columns(desired) | ({} if spec is None else spec_columns(spec))
        with self._database.write() as session:
            seen = JobRow.desired_number == desired.number - 1
            written = update(JobRow).where(JobRow.id == job_id, seen).values(columns).returning(JobRow.id)
            if session.scalar(written) is None:
                require_job(session, job_id)
                return False
            if spec is not None:
                session.execute(delete(JobLabelRow).where(JobLabelRow.job_id == job_id))
                _insert_labels(session, {job_id: spec})
            append_events(session, [(job_id, event)])
            return True


def _first_of_key(session: Session, project: str, owner: str | None, key: str | None, digest: str) -> Job | None:
    """Return the job of an idempotency key. None also without a key or an owner, because NULL equals nothing."""
    row = session.scalar(_OF_KEY, {"project": project, "owner": owner, "key": key})
    if row is None:
        return None
    if row.digest != digest:
        raise Conflict(f"Idempotency-Key {key!r} was used for job {row.id} with another body: choose a new key")
    return job_of(row)


def _columns(submission: _Submission) -> dict[str, object]:
    job = submission.job
    return {
        "id": job.id,
        "created_at": job.created_at,
        "owner": job.owner,
        "idempotency_key": submission.idempotency_key,
        "digest": submission.digest,
        **spec_columns(job.spec),
        **desired_columns(job.desired),
        **status_columns(job),
    }


def _insert_labels(session: Session, specs: Mapping[str, JobSpec]) -> None:
    """`specs` by job id."""
    rows: list[Values] = [
        {"job_id": job_id, "name": name, "value": value}
        for job_id, spec in specs.items()
        for name, value in spec.labels.items()
    ]
    insert_rows(session, JobLabelRow, rows)
