"""Cheap reads for pages that stay open all day: whether a job changed, and a short curve of its losses."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import BigInteger, BindParameter, Select, Text, and_, bindparam, column, func, select, true, values

from orchestrator.domain.errors import NotFound
from orchestrator.domain.job.job import JobState
from orchestrator.store.engine import Database
from orchestrator.store.records import ChangeMark
from orchestrator.store.tables import EventRow, JobRow, JournalRow, MetricRow


class ChangeMarks:
    """Raises StoreUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def mark(self, job_id: str) -> ChangeMark:
        """Summarize a job's row, its newest event and the size of its journals. Raises NotFound."""
        with self._database.read() as session:
            found = session.execute(_MARK, {"job_id": job_id}).one_or_none()
        if found is None:
            raise NotFound(f"there is no job {job_id}")
        *actions, retried, reported = found
        at_rest = JobState(found.state).terminal and retried
        digest = hashlib.sha256(repr(actions).encode()).hexdigest()[:16]
        return ChangeMark(actions=digest, reports=str(reported), at_rest=at_rest)

    def losses(self, ends: Mapping[str, int], *, points: int) -> Mapping[str, Sequence[float]]:
        """Return about `points` losses of each job, oldest first, evenly spread up to its last step (`ends`).

        Jobs without losses are left out. Each point costs one index search, however many steps there are.
        """
        if not ends:
            return {}
        # The database computes the steps, because each bound value costs as much to compile as a row to find.
        last = values(column("job_id", Text), column("step", BigInteger), name="last").data(list(ends.items())).cte()
        places = values(column("place", BigInteger), name="places").data([(place,) for place in range(points)]).cte()
        upto = last.c.step - last.c.step * places.c.place // points
        wanted = (
            select(last.c.job_id, upto.label("upto")).select_from(last.join(places, true())).distinct().cte("wanted")
        )
        nearest = (
            select(MetricRow.step)
            .where(MetricRow.job_id == wanted.c.job_id, MetricRow.step <= wanted.c.upto)
            .order_by(MetricRow.step.desc())
            .limit(1)
            .correlate(wanted)
            .scalar_subquery()
        )
        query = select(MetricRow.job_id, MetricRow.step, MetricRow.measured).join(
            wanted, and_(MetricRow.job_id == wanted.c.job_id, MetricRow.step == nearest)
        )
        found: defaultdict[str, dict[int, float]] = defaultdict(dict)
        with self._database.read() as session:
            for job_id, step, measured in session.execute(query):
                if "loss" in measured:
                    found[job_id][step] = float(str(measured["loss"]))
        return {job_id: [loss for _, loss in sorted(losses.items())] for job_id, losses in found.items()}


def _select_mark() -> Select[Any]:
    mine: BindParameter[str] = bindparam("job_id")
    newest_event = select(func.max(EventRow.id)).where(EventRow.job_id == mine).scalar_subquery()
    reports = select(func.sum(JournalRow.progress_to + JournalRow.events_to)).where(JournalRow.job_id == mine)
    actions = (JobRow.updated_at, JobRow.state, JobRow.desired_number, newest_event)
    retried = JobRow.retries_done >= JobRow.desired_retry_number
    return select(*actions, retried, reports.scalar_subquery()).where(JobRow.id == mine)


_MARK = _select_mark()  # built once, because building an expression costs more than running it
