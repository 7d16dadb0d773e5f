"""The pages of an array and of a comparison. Both lay the curves of several jobs over each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import quote

from fastapi import Depends, Query, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from orchestrator.api.array_requests import request_members
from orchestrator.api.authorization import Caller, require_sight
from orchestrator.api.deps import Services
from orchestrator.dashboard.actions import Scripted
from orchestrator.dashboard.answers import CurrentRequest, answer_page, page_of
from orchestrator.dashboard.charts import render_curves
from orchestrator.dashboard.pages import render_page
from orchestrator.domain.access.identity import Principal, Role
from orchestrator.domain.errors import Refused
from orchestrator.domain.specs.differences import list_differences
from orchestrator.ports.clock import Clock
from orchestrator.queries.arrays import find_array
from orchestrator.wire.curves import read_curve, tell_not_finite
from orchestrator.wire.job_views import JobView

MOST_CURVES = 12  # more are not told apart
_POINTS = 500
_LABEL = 60  # characters
_DONE = {"cancel": "being cancelled", "retry": "retried"}

Jobs = Annotated[list[str], Query(default_factory=list, max_length=MOST_CURVES)]
Metric = Annotated[str, Query(max_length=100)]


@dataclass(frozen=True, slots=True)
class ComparePages:
    services: Services
    clock: Clock

    def show_array(self: Shared, array_id: str, request: CurrentRequest) -> Response:
        found = find_array(self.services.queries, array_id, request.caller.projects(Role.VIEWER))
        begun = [member.job_id for member in found.members if member.step is not None]
        return answer_page(
            request, "array.html", now=self.clock.now(), array=found, drawn=begun[:MOST_CURVES], begun=len(begun)
        )

    def compare(self: Shared, request: CurrentRequest, job: Jobs) -> Response:
        if not job:
            raise Refused("no job is selected; select the jobs to compare in the list")
        jobs = self._visible(job, request.caller)
        differences = list_differences([each.spec for each in jobs])
        drawn = [each.id for each in jobs]
        return answer_page(
            request, "compare.html", now=self.clock.now(), jobs=jobs, drawn=drawn, differences=differences
        )

    def curves(self: Shared, caller: Caller, job: Jobs, metric: Metric = "loss") -> Response:
        """Return the curves of the jobs as JSON."""
        jobs = self._visible(job, caller)
        return Response(self._render(jobs, metric), media_type="application/json")

    def _render(self, jobs: Sequence[JobView], metric: str) -> str:
        read = {
            each.id: self.services.queries.metrics(each.id, names=(), since_step=-1, points=_POINTS) for each in jobs
        }
        names = sorted({name for metrics in read.values() for name in metrics.series})
        labels = _label(jobs)
        curves = {labels[job_id]: read_curve(metrics, metric) for job_id, metrics in read.items()}
        notes = (
            (labels[each.id], tell_not_finite(each, metric, self.services.queries.find_not_finite(each.id, metric)))
            for each in jobs
        )
        return render_curves(curves, names, [f"{label}: {note}" for label, note in notes if note is not None])

    def _visible(self, job_ids: Sequence[str], caller: Principal) -> list[JobView]:
        """Raises NotFound, also for a job that the caller may not see."""
        for job_id in job_ids:
            require_sight(self.services.identity.places, caller, job_id)
        return [self.services.queries.job(job_id) for job_id in dict.fromkeys(job_ids)]

    def cancel(self: Shared, array_id: str, caller: Caller, scripted: Scripted = None) -> Response:
        return self._request(array_id, caller, "cancel", scripted)

    def retry(self: Shared, array_id: str, caller: Caller, scripted: Scripted = None) -> Response:
        return self._request(array_id, caller, "retry", scripted)

    def _request(self, array_id: str, caller: Principal, verb: str, scripted: str | None) -> Response:
        found = request_members(self.services, caller, array_id, verb)
        if scripted is None:
            return RedirectResponse(f"/arrays/{quote(array_id, safe='')}", status_code=303)
        sentences = [f"The members of {found.id} are {_DONE[verb]}.", *found.refused]
        return HTMLResponse(render_page("notice.html", sentences=sentences))


Shared = Annotated[ComparePages, Depends(page_of(ComparePages))]


def _label(jobs: Sequence[JobView]) -> Mapping[str, str]:
    """Return a short text for each job: what differs, or its id."""
    differences = list_differences([job.spec for job in jobs])
    labels = [
        ", ".join(f"{path.removeprefix('run.')} {values[place]}" for path, values in differences.items())[:_LABEL]
        for place in range(len(jobs))
    ]
    tells_apart = len(set(labels)) == len(labels) and all(labels)
    return {job.id: label if tells_apart else job.id for job, label in zip(jobs, labels, strict=True)}
