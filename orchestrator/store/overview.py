"""Read all jobs of a cluster that are not at rest. Each pass does this, so it must be cheap.

Rows are plain tuples. A spec is parsed again only after a request, because nothing else changes a spec.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from typing import Any

import structlog
from pydantic import ValidationError
from sqlalchemy import ColumnElement, Select, select, text, union
from sqlalchemy.orm import Session

from orchestrator.domain.specs.spec import JobSpec
from orchestrator.ports.supervision import Supervised
from orchestrator.store.engine import Database
from orchestrator.store.lookups import LIVE_STATES, exits_of, in_parts, newest_attempts
from orchestrator.store.mapping import attempt_of, job_of, training_of
from orchestrator.store.shared_specs import SharedSpecs
from orchestrator.store.tables import AttemptRow, JobRow, JournalRow, TrainingRow
from trainer.contract.exit_record import ExitRecord

log = structlog.get_logger()


class Overview:
    """Reads a cluster. Not thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._specs: dict[str, tuple[int, JobSpec]] = {}  # with the job's request number when it was parsed
        self._shared = SharedSpecs()

    def supervised(self, cluster: str, among: Set[str] | None = None) -> Sequence[Supervised]:
        """Return the jobs, oldest first. A job whose spec this version cannot parse is logged and left out."""
        if among is None:
            found = self._read(cluster, not_at_rest(cluster))
            self._specs = {each.job.id: self._specs[each.job.id] for each in found}
            return found
        found = [each for some in in_parts(among) for each in self._read(cluster, JobRow.id.in_(some))]
        for job_id in among - {each.job.id for each in found}:
            self._specs.pop(job_id, None)
        return sorted(found, key=lambda each: (each.job.created_at, each.job.id))

    def _read(self, cluster: str, which: ColumnElement[bool]) -> list[Supervised]:
        with self._database.read() as session:
            # The cluster and the state are compared here, because SQLite would search by them instead of by the ids.
            jobs: list[Any] = [row for row in session.execute(_jobs(which)) if row.cluster == cluster and _at_work(row)]
            specs = self._parse_specs(session, jobs)
            newest = newest_attempts(which)
            attempts = _by_job(session.execute(_select_newest(AttemptRow, AttemptRow.number, newest)))
            trainings = _by_job(session.execute(_select_newest(TrainingRow, TrainingRow.attempt, newest)))
            exits = _exits(session, newest)
        return [
            Supervised(
                job=job_of(job, specs[job.id]),
                attempt=None if (row := attempts.get(job.id)) is None else attempt_of(row),
                training=training_of(trainings.get(job.id)),
                exits={} if row is None else exits.get((row.job_id, row.number), {}),
            )
            for job in jobs
            if job.id in specs
        ]

    def _parse_specs(self, session: Session, jobs: Collection[Any]) -> Mapping[str, JobSpec]:
        """Return the specs of these jobs. Only those that are not known yet, or were changed, are parsed."""
        wanted = {job.id: job.desired_number for job in jobs}
        fresh = {job_id for job_id, number in wanted.items() if self._specs.get(job_id, (None,))[0] == number}
        for some in in_parts(wanted.keys() - fresh):
            for job_id, number, document in session.execute(
                select(JobRow.id, JobRow.desired_number, JobRow.spec).where(JobRow.id.in_(some))
            ):
                try:
                    self._specs[job_id] = (number, self._shared.parse(document))
                except ValidationError as error:
                    self._specs.pop(job_id, None)
                    log.error("job is not supervised: its spec cannot be parsed", job=job_id, reason=str(error))
        return {job_id: self._specs[job_id][1] for job_id in wanted if job_id in self._specs}


def _by_job(rows: Iterable[Any]) -> dict[str, Any]:
    return {row.job_id: row for row in rows}


def _at_work(row: Any) -> bool:
    return row.state in LIVE_STATES or row.desired_retry_number > row.retries_done


def not_at_rest(cluster: str) -> ColumnElement[bool]:
    # Two searches, each with its index, so that a long history of ended jobs costs nothing. The text of the second
    # condition must equal that of its partial index.
    here = select(JobRow.id).where(JobRow.cluster == cluster)
    retry_requested = text("desired_retry_number > retries_done")
    return JobRow.id.in_(union(here.where(JobRow.state.in_(LIVE_STATES)), here.where(retry_requested)))


def _jobs(which: ColumnElement[bool]) -> Select[Any]:
    columns = [column for column in JobRow.__table__.columns if column.name != "spec"]
    return select(*columns).where(which).order_by(JobRow.created_at, JobRow.id)


def _select_newest(
    table: type[AttemptRow] | type[TrainingRow] | type[JournalRow], number: Any, newest: Any
) -> Select[Any]:
    """Select the rows of the newest attempts, without the columns that only intake needs."""
    columns = [column for column in table.__table__.columns if column.name not in ("pace_book", "stored")]
    return select(*columns).join(newest, (newest.c.job_id == table.job_id) & (newest.c.number == number))


def _exits(session: Session, newest: Any) -> Mapping[tuple[str, int], dict[int, ExitRecord]]:
    """Read the exit records of the newest attempts. Most have none, so all journals are read only of those that do."""
    journals = _select_newest(JournalRow, JournalRow.attempt, newest)
    ended = {row.job_id for row in session.execute(journals.where(JournalRow.exit_record.is_not(None)))}
    rows: list[Any] = []
    for some in in_parts(ended):
        rows += session.execute(journals.where(JournalRow.job_id.in_(some)))
    return exits_of(rows)
