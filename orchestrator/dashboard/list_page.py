"""The list of jobs. Its filters are in its URL, so that it can be shared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Annotated
from urllib.parse import urlencode

from fastapi import Depends, Query, Response

from orchestrator.dashboard.answers import CachedPage, CurrentRequest, answer_cached, page_of
from orchestrator.dashboard.page_cache import Recent
from orchestrator.dashboard.sparks import Sparks
from orchestrator.domain.access.identity import Principal, Role
from orchestrator.domain.errors import Refused
from orchestrator.domain.job.job import JobState
from orchestrator.ports.clock import Clock
from orchestrator.queries.job_queries import Queries
from orchestrator.queries.usage import Usage
from orchestrator.store.records import LOOKED_AT, JobFilter, JobOrder, Lifespan
from orchestrator.wire.job_views import ListedJobView

JOBS_SHOWN = 50
READ_S = 0.02  # the time limit to compute goodputs for one page
_COLUMNS = {
    "name": (JobOrder.NAME, JobOrder.NAME_DOWN),
    "state": (JobOrder.STATE, JobOrder.STATE_DOWN),
    "updated": (JobOrder.UPDATED, JobOrder.UPDATED_DOWN),
    "submitted": (JobOrder.OLDEST, JobOrder.NEWEST),
}
_NEWEST_FIRST = frozenset({"updated", "submitted"})  # columns that sort in descending order first
_WORDS = {
    JobOrder.NEWEST: "Newest first",
    JobOrder.OLDEST: "Oldest first",
    JobOrder.UPDATED_DOWN: "Recently updated",
    JobOrder.UPDATED: "Least recently updated",
    JobOrder.PRIORITY_DOWN: "Highest priority",
    JobOrder.PRIORITY: "Lowest priority",
    JobOrder.NAME: "Name, A to Z",
    JobOrder.NAME_DOWN: "Name, Z to A",
    JobOrder.STATE: "State, A to Z",
    JobOrder.STATE_DOWN: "State, Z to A",
    JobOrder.PROJECT: "Project, A to Z",
    JobOrder.PROJECT_DOWN: "Project, Z to A",
    JobOrder.CLUSTER: "Cluster, A to Z",
    JobOrder.CLUSTER_DOWN: "Cluster, Z to A",
}

Text = Annotated[str, Query(max_length=400)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """The filters of the URL, as texts. An empty text is no filter."""

    state: str = ""
    project: str = ""
    cluster: str = ""
    label: str = ""
    q: str = ""
    order: str = "newest"
    cursor: str = ""

    def link(self, **changes: str) -> str:
        """Return the address with some filters changed, on the first page unless `cursor` is given."""
        wanted = {name: getattr(self, name) for name in _NAMES} | {"cursor": "", **changes}
        if wanted["order"] == "newest":
            del wanted["order"]
        return _address(tuple((name, value) for name, value in wanted.items() if value))

    def sort(self, column: str) -> str:
        """Return the URL that sorts by a column, or reverses the order if the list is sorted by it."""
        up, down = _COLUMNS[column]
        first, other = (down, up) if column in _NEWEST_FIRST else (up, down)
        return self.link(order=other.value if self.order == first else first.value)

    def sorted(self, column: str) -> str | None:
        """Return the value of aria-sort for a column. None if the list is sorted by another one."""
        up, down = _COLUMNS[column]
        return {up.value: "ascending", down.value: "descending"}.get(self.order)

    @property
    def narrow(self) -> bool:
        return bool(self.state or self.project or self.cluster or self.label or self.q)

    def where(self, caller: Principal) -> JobFilter:
        """Raises Refused for a filter that cannot be parsed."""
        if self.state and self.state not in JobState.__members__:
            raise Refused(f"{self.state!r} is not a state; the states are {', '.join(JobState)}")
        name, equals, value = self.label.partition("=")
        if self.label and not (name and equals):
            raise Refused(f"label {self.label!r} must be written key=value")
        return JobFilter(
            state=JobState(self.state) if self.state else None,
            project=self.project or None,
            cluster=self.cluster or None,
            label=(name, value) if self.label else None,
            query=self.q or None,
            projects=caller.projects(Role.VIEWER),
        )


_NAMES = tuple(each.name for each in fields(Filters))


@lru_cache(maxsize=5000)  # a page has a link for each project, cluster and label, and rows share most of them
def _address(query: tuple[tuple[str, str], ...]) -> str:
    return f"/?{urlencode(query)}" if query else "/"


async def _filters(
    state: Text = "",
    project: Text = "",
    cluster: Text = "",
    label: Text = "",
    q: Text = "",
    order: Text = "newest",
    cursor: Annotated[str, Query(max_length=512)] = "",
) -> Filters:
    texts = {name: value.strip() for name, value in locals().items()}
    return Filters(**{**texts, "order": texts["order"] if texts["order"] in set(JobOrder) else JobOrder.NEWEST.value})


@dataclass(frozen=True, slots=True)
class ListPage:
    queries: Queries
    sparks: Sparks
    usage: Usage
    recent: Recent[CachedPage]
    clock: Clock

    async def show(self: Shared, request: CurrentRequest, filters: Annotated[Filters, Depends(_filters)]) -> Response:
        return await answer_cached(request, self.recent, "jobs.html", lambda: self._read(filters, request.caller))

    def _read(self, filters: Filters, caller: Principal) -> dict[str, object]:
        counts = self.queries.count_by_state(caller.projects(Role.VIEWER))
        jobs, behind, trouble = self._page(filters, caller)
        return {
            "now": self.clock.now(),
            "jobs": jobs,
            "next_cursor": behind,
            "looked_at": LOOKED_AT,
            "sparks": self._sparks(jobs),
            "goodputs": self._goodputs(jobs),
            "counts": {known: counts.get(known, 0) for known in JobState if counts.get(known)},
            "total": sum(counts.values()),
            "filters": filters,
            "orders": _WORDS,
            "trouble": trouble,
        }

    def _page(self, filters: Filters, caller: Principal) -> tuple[Sequence[ListedJobView], str | None, str]:
        """Return the jobs, the cursor of the next page, and an error for filters that cannot be parsed."""
        try:
            page = self.queries.jobs(
                filters.where(caller),
                limit=JOBS_SHOWN,
                cursor=filters.cursor or None,
                order=JobOrder(filters.order),
            )
        except Refused as error:
            return [], None, str(error)
        return page.items, page.next_cursor, ""

    def _goodputs(self, jobs: Sequence[ListedJobView]) -> Mapping[str, float]:
        """Return the goodputs by job id. Those that take too long now are in the answer to a later poll."""
        spans = [Lifespan(job_id=job.id, updated_at=job.updated_at, finished_at=job.finished_at) for job in jobs]
        return self.usage.goodputs(spans, within_s=READ_S)

    def _sparks(self, jobs: Sequence[ListedJobView]) -> Mapping[str, str]:
        ends = {job.id: (job.step, job.loss) for job in jobs if job.step is not None and job.loss is not None}
        return self.sparks.draw(ends)


Shared = Annotated[ListPage, Depends(page_of(ListPage))]
