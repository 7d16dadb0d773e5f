"""Read an array: the jobs with its label that are members of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from orchestrator.domain.errors import NotFound
from orchestrator.domain.specs.spec import ARRAY_LABEL, ArrayPlace
from orchestrator.queries.job_queries import Queries
from orchestrator.store.records import JobFilter, JobOrder
from orchestrator.wire.array_views import ArrayView, MemberView
from orchestrator.wire.job_views import ListedJobView

_PAGE = 200


def find_array(queries: Queries, array_id: str, projects: Collection[str] | None) -> ArrayView:
    """Return the array with the members in these projects; None is all projects. Raises NotFound."""
    found = [(job, _place_of(job)) for job in _jobs(queries, array_id, projects)]
    members = sorted(
        (_member(job, place) for job, place in found if place is not None and place.id == array_id),
        key=lambda member: member.index,
    )
    if not members:
        raise NotFound(f"there is no array {array_id}")
    job, place = next((job, place) for job, place in found if place is not None and place.id == array_id)
    return ArrayView(
        id=array_id,
        project=job.project,
        cluster=job.cluster,
        owner=job.owner,
        size=place.size,
        at_once=place.at_once,
        members=members,
    )


def _jobs(queries: Queries, array_id: str, projects: Collection[str] | None) -> Iterator[ListedJobView]:
    where, cursor = JobFilter(label=(ARRAY_LABEL, array_id), projects=projects), None
    while True:
        page = queries.jobs(where, limit=_PAGE, cursor=cursor, order=JobOrder.OLDEST)
        yield from page.items
        if page.next_cursor is None:
            return
        cursor = page.next_cursor


def _place_of(job: ListedJobView) -> ArrayPlace | None:
    place = job.spec["array"]
    return None if place is None else ArrayPlace.model_validate(place)


def _member(job: ListedJobView, place: ArrayPlace) -> MemberView:
    return MemberView(
        job_id=job.id,
        index=place.index,
        values=place.values,
        state=job.state,
        ended=job.ended,
        reason=job.reason,
        step=job.step,
        total_steps=job.total_steps,
        loss=job.loss,
    )
