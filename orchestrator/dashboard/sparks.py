"""The small loss curves in the list of jobs, cached until a job completes another step."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.dashboard.charts import draw_spark
from orchestrator.queries.job_queries import Queries

SPARK_POINTS = 16
_KEPT = 5000  # jobs

End = tuple[int, float]  # the last step and its loss: a retry may reach the same step with another loss


class Sparks:
    """Thread-safe."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries
        self._drawn: dict[str, tuple[End, str | None]] = {}

    def draw(self, ends: Mapping[str, End]) -> Mapping[str, str]:
        """Return the polyline of each job's loss up to its last step. Jobs with fewer than two losses are left out."""
        known = {job_id: self._drawn.get(job_id) for job_id in ends}
        drawn = {job_id: one for job_id, one in known.items() if one is not None and one[0] == ends[job_id]}
        new = {job_id: end[0] for job_id, end in ends.items() if job_id not in drawn}
        if len(self._drawn) > _KEPT:
            self._drawn = {}
        for job_id, losses in self._queries.losses(new, points=SPARK_POINTS).items() if new else ():
            drawn[job_id] = self._drawn[job_id] = ends[job_id], draw_spark(losses)
        return {job_id: points for job_id, (_, points) in drawn.items() if points is not None}
