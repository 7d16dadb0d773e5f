"""Pages of the list of jobs: its orders and its filters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import BindParameter, ColumnElement, Connection, Select, bindparam, func, or_, select

from orchestrator.domain.job.job_summary import JobSummary
from orchestrator.store.job_summaries import JOBS, select_jobs, select_summaries, summaries_of
from orchestrator.store.paging import Key, Listing
from orchestrator.store.records import LOOKED_AT, JobFilter, JobOrder
from orchestrator.store.tables import JobLabelRow

_JOB, _LABELS = JOBS.c, JobLabelRow.__table__.c
_UP = (Key(_JOB.created_at, datetime), Key(_JOB.id, str))
_DOWN = (Key(_JOB.created_at, datetime, descending=True), Key(_JOB.id, str, descending=True))
# All keys of an order have the same direction, so that one index serves it.
_LISTINGS = {
    order: Listing(f"jobs-{order}", keys)
    for order, keys in {
        JobOrder.NEWEST: _DOWN,
        JobOrder.OLDEST: _UP,
        JobOrder.UPDATED: (Key(_JOB.updated_at, datetime), Key(_JOB.id, str)),
        JobOrder.UPDATED_DOWN: (
            Key(_JOB.updated_at, datetime, descending=True),
            Key(_JOB.id, str, descending=True),
        ),
        JobOrder.NAME: (Key(_JOB.name, str), *_UP),
        JobOrder.NAME_DOWN: (Key(_JOB.name, str, descending=True), *_DOWN),
        JobOrder.STATE: (Key(_JOB.state, str), *_UP),
        JobOrder.STATE_DOWN: (Key(_JOB.state, str, descending=True), *_DOWN),
        JobOrder.PROJECT: (Key(_JOB.project, str), *_UP),
        JobOrder.PROJECT_DOWN: (Key(_JOB.project, str, descending=True), *_DOWN),
        JobOrder.CLUSTER: (Key(_JOB.cluster, str), *_UP),
        JobOrder.CLUSTER_DOWN: (Key(_JOB.cluster, str, descending=True), *_DOWN),
        JobOrder.PRIORITY: (Key(_JOB.priority, int), *_UP),
        JobOrder.PRIORITY_DOWN: (Key(_JOB.priority, int, descending=True), *_DOWN),
    }.items()
}
_FEW = 2000  # jobs; sorting that many is fast
_ESCAPE = "/"  # the escape character of LIKE
_TEXT = "text"  # a condition and its parameter


def read_page(
    connection: Connection, where: JobFilter, *, order: JobOrder, limit: int, cursor: str | None
) -> tuple[Sequence[JobSummary], str | None]:
    """Return a page and the cursor of the next one, None at the end. Raises Refused for a cursor of another list.

    No index finds a text within others. So a page of a search ends after it has looked at LOOKED_AT jobs. It may have
    fewer jobs than `limit`, even none, and a cursor. All pages together have all jobs that match.
    Sends one statement, and one more for a search, a label, several projects, and a state of a cluster.
    """
    listing, continues = _LISTINGS[order], cursor is not None
    wanted = _wanted(connection, where)
    values = {name: value for each in wanted.values() for name, value in each.items()}
    values |= listing.parameters(limit=limit, cursor=cursor)
    names = tuple(sorted(wanted))
    if not where.query:
        statement = _select_page(order, names, continues=continues, bounded=False)
        return listing.cut(summaries_of(connection.execute(statement, values)), limit=limit)
    last = connection.execute(_select_bound(order, names, continues=continues, rows=LOOKED_AT), values).first()
    statement = _select_page(order, (*names, _TEXT), continues=continues, bounded=last is not None)
    values |= {_TEXT: f"%{_escape(where.query)}%"} | ({} if last is None else listing.bound(last))
    return listing.cut(summaries_of(connection.execute(statement, values)), limit=limit, until=last)


@lru_cache(maxsize=500)  # building a statement costs more than running it
def _select_page(order: JobOrder, conditions: tuple[str, ...], *, continues: bool, bounded: bool) -> Select[Any]:
    listing = _LISTINGS[order]
    query = select_jobs().where(*(_CONDITIONS[name] for name in conditions))
    if bounded:
        query = query.where(listing.until())
    page = listing.select_page(query, continues=continues).subquery("page")
    return select_summaries(page).order_by(*listing.terms(page))


@lru_cache(maxsize=500)
def _select_bound(order: JobOrder, conditions: tuple[str, ...], *, continues: bool, rows: int) -> Select[Any]:
    """Select the keys of the last job that a page of a search looks at. It reads only an index for most filters."""
    listing = _LISTINGS[order]
    query = select(*(key.column for key in listing.keys)).where(*(_CONDITIONS[name] for name in conditions))
    return listing.select_bound(query, continues=continues, rows=rows)


def _wanted(connection: Connection, where: JobFilter) -> dict[str, dict[str, object]]:
    """Return the names of the conditions, with the values of their parameters."""
    wanted: dict[str, dict[str, object]] = {
        name: {name: value} for name in ("state", "project", "cluster") if (value := getattr(where, name)) is not None
    }
    if where.cluster is not None and where.state is not None:
        in_state = wanted["cluster"] | wanted["state"]
        if connection.scalar(_COUNT_IN_STATE, in_state) == _FEW:
            wanted["common cluster"] = wanted.pop("cluster")
        else:
            del wanted["cluster"], wanted["state"]
            wanted["few in a state"] = in_state
    if where.projects is not None:
        projects: dict[str, object] = {"projects": sorted(where.projects)}
        wanted["common projects" if connection.scalar(_COUNT_OF_PROJECTS, projects) == _FEW else "projects"] = projects
    if where.label is not None:
        label: dict[str, object] = {"label": where.label[0], "label_value": where.label[1]}
        wanted["common label" if connection.scalar(_COUNT_LABELED, label) == _FEW else "label"] = label
    return wanted


def _escape(text: str) -> str:
    """Escape the characters with a meaning in LIKE."""
    return "".join(f"{_ESCAPE}{each}" if each in f"%_{_ESCAPE}" else each for each in text)


_LABELED = select(_LABELS.job_id).where(_LABELS.name == bindparam("label"), _LABELS.value == bindparam("label_value"))
_COUNT_LABELED = select(func.count()).select_from(_LABELED.limit(_FEW).subquery())
_PROJECTS: BindParameter[Any] = bindparam("projects", expanding=True)
_OF_PROJECTS = select(_JOB.project).where(_JOB.project.in_(_PROJECTS))
_COUNT_OF_PROJECTS = select(func.count()).select_from(_OF_PROJECTS.limit(_FEW).subquery())
# PostgreSQL assumes that each cluster has its share of a state, and would walk through the list to find a rare one.
# SQLite would sort all jobs of a common one.
_IN_STATE = (_JOB.cluster == bindparam("cluster")) & (_JOB.state == bindparam("state"))
_COUNT_IN_STATE = select(func.count()).select_from(select(_JOB.state).where(_IN_STATE).limit(_FEW).subquery())
_CONDITIONS: Mapping[str, ColumnElement[bool]] = {
    "state": _JOB.state == bindparam("state"),
    "project": _JOB.project == bindparam("project"),
    "projects": _JOB.project.in_(_PROJECTS),
    # With many such jobs, walking the list and checking each job is fastest. SQLite would sort all of them.
    "common projects": func.coalesce(_JOB.project, "").in_(_PROJECTS),
    "cluster": _JOB.cluster == bindparam("cluster"),
    "common cluster": func.coalesce(_JOB.cluster, "") == bindparam("cluster"),
    # The limit is no less than their number. It only says that they are few.
    "few in a state": _JOB.id.in_(select(_JOB.id).where(_IN_STATE).limit(2 * _FEW).correlate(None)),
    "label": _JOB.id.in_(_LABELED),
    "common label": _LABELED.where(_LABELS.job_id == _JOB.id).correlate(JOBS).exists(),
    _TEXT: or_(
        *(
            func.lower(column).like(func.lower(bindparam(_TEXT, type_=_JOB.reason.type)), escape=_ESCAPE)
            for column in (_JOB.id, _JOB.name, _JOB.reason)
        )
    ),
}
