"""Answer questions about jobs from the store, with wire models."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

from orchestrator.domain.job.job import Job, JobState
from orchestrator.domain.job.job_summary import JobSummary, summarize
from orchestrator.domain.job.rank_stacks import newest_stacks
from orchestrator.domain.job.requests import pending_requests
from orchestrator.domain.specs.spec import Budgets
from orchestrator.queries.census import Census
from orchestrator.store.change_marks import ChangeMarks
from orchestrator.store.history_reader import HistoryReader
from orchestrator.store.job_reader import JobReader
from orchestrator.store.records import AttemptStanding, ChangeMark, JobFilter, JobOrder, MetricPoint, StoredEvent
from orchestrator.wire.answers import Page
from orchestrator.wire.history_views import JobNodeView, MetricsView, SnapshotView, StacksView, WorkerView
from orchestrator.wire.job_views import AttemptView, EventView, FailureView, JobView, ListedJobView
from trainer.contract.exit_record import EventKind
from trainer.contract.failure import Failure

_PREEMPTION = "preemption"
_SPREAD = 100  # points of a search
_MOST_SEARCHED = 4  # series in an answer
_STACKS_EVENTS = 2000  # each agent reports one for each request

Row = TypeVar("Row")
View = TypeVar("View")


class Queries:
    """Every method raises NotFound for an unknown job, Refused for a cursor of another list, and StoreUnavailable."""

    def __init__(self, jobs: JobReader, history: HistoryReader, change_marks: ChangeMarks) -> None:
        self._jobs = jobs
        self._census = Census(jobs)
        self._history = history
        self._change_marks = change_marks

    def jobs(
        self, where: JobFilter, *, limit: int, cursor: str | None, order: JobOrder = JobOrder.NEWEST
    ) -> Page[ListedJobView]:
        return _page(self._jobs.summaries(where, limit=limit, cursor=cursor, order=order), _view_of_summary)

    def listed_job(self, job_id: str) -> ListedJobView:
        """Return the job as a list shows it, also with a spec that this version cannot parse."""
        return _view_of_summary(self._jobs.summary(job_id))

    def job(self, job_id: str) -> JobView:
        return JobView.model_validate(dict(self.listed_job(job_id)))

    def mark(self, job_id: str) -> ChangeMark:
        """Return a value that changes whenever anything of the job changes."""
        return self._change_marks.mark(job_id)

    def losses(self, ends: Mapping[str, int], *, points: int) -> Mapping[str, Sequence[float]]:
        """About `points` finite losses of each job up to its last step (`ends`), oldest first."""
        found = self._change_marks.losses(ends, points=points)
        return {job_id: [loss for loss in losses if math.isfinite(loss)] for job_id, losses in found.items()}

    def count_by_state(self, projects: Collection[str] | None = None) -> Mapping[JobState, int]:
        return self._census.count(projects)

    def attempts(self, job_id: str, *, limit: int, cursor: str | None) -> Page[AttemptView]:
        return _page(self._history.attempts(job_id, limit=limit, cursor=cursor), _view_of_attempt)

    def events(self, job_id: str, *, limit: int, cursor: str | None, newest_first: bool = False) -> Page[EventView]:
        rows = self._history.events(job_id, limit=limit, cursor=cursor, newest_first=newest_first)
        return _page(rows, _view_of_event)

    def snapshots(self, job_id: str, *, limit: int, cursor: str | None) -> Page[SnapshotView]:
        return _page(self._history.snapshots(job_id, limit=limit, cursor=cursor), SnapshotView.model_validate)

    def snapshot_steps(self, job_id: str, *, since_step: int, until_step: int | None) -> Sequence[int]:
        """Return the steps above `since_step` after which a snapshot was committed, also of deleted ones, in order."""
        return self._history.snapshot_steps(job_id, since_step=since_step, until_step=until_step)

    def workers(self, job_id: str, *, limit: int, cursor: str | None) -> Page[WorkerView]:
        return _page(self._history.workers(job_id, limit=limit, cursor=cursor), WorkerView.model_validate)

    def nodes(self, job_id: str, *, limit: int, cursor: str | None) -> Page[JobNodeView]:
        """Return the nodes of the newest attempt."""
        return _page(self._history.replicas(job_id, limit=limit, cursor=cursor), JobNodeView.model_validate)

    def stacks(self, job_id: str, *, rank: int | None) -> Page[StacksView]:
        """Return the newest stacks of each rank, of the newest attempt that has any, by rank."""
        events = self._history.newest_of_kind(job_id, EventKind.STACKS_SAVED.value, limit=_STACKS_EVENTS)
        found = newest_stacks([stored.event for stored in events])
        return Page(items=[StacksView.model_validate(each) for each in found if rank in (None, each.rank)])

    def metrics(
        self, job_id: str, *, names: Sequence[str], since_step: int, points: int, until_step: int | None = None
    ) -> MetricsView:
        """Return at most `points` steps above `since_step`. Without `names`, every series that was reported."""
        found = self.steps(job_id, since_step=since_step, points=points, until_step=until_step)
        suspect = [name for name in names[:_MOST_SEARCHED] if not all(_is_finite(point, name) for point in found)]
        searched = {name: self.find_not_finite(job_id, name, since_step=since_step) for name in suspect}
        not_finite = {name: step for name, step in searched.items() if step is not None}
        return _view_of_metrics(found, names or sorted({name for point in found for name in point.values}), not_finite)

    def find_not_finite(self, job_id: str, name: str, *, since_step: int = -1) -> int | None:
        """Return the step above `since_step` at which a series became NaN or infinite.

        Searches between evenly spread points, so it may miss steps after which the series is finite again.
        """
        step: int | None = None
        while True:
            points = self.steps(job_id, since_step=since_step, points=_SPREAD, until_step=step)
            place = next((place for place, point in enumerate(points) if not _is_finite(point, name)), None)
            if place is None or (place == 0 and points[0].step == step):
                return step
            since_step, step = points[place - 1].step if place else since_step, points[place].step

    def steps(
        self, job_id: str, *, since_step: int, points: int, until_step: int | None = None
    ) -> Sequence[MetricPoint]:
        """Return the stored points of `metrics`, oldest first."""
        return self._history.metrics(job_id, since_step=since_step, points=points, until_step=until_step)


def view_of_new_job(job: Job) -> JobView:
    """Return a job that was stored just now and has no attempt."""
    return JobView.model_validate({**dict(_view_of_summary(summarize(job))), "spec": job.spec})


def _view_of_summary(job: JobSummary) -> ListedJobView:
    attempt, goes_on = job.attempt, not job.state.terminal
    return ListedJobView(
        id=job.id,
        name=job.name,
        project=job.project,
        cluster=job.cluster,
        state=job.state,
        reason=job.reason,
        cancelling=job.desired.cancelled and goes_on,
        retrying=job.desired.retry_number > job.retries_done,
        suspended=job.desired.suspended and goes_on,
        suspending=job.desired.suspended and goes_on and job.state is not JobState.SUSPENDED,
        pending=pending_requests(job),
        priority=job.priority,
        labels=dict(job.labels),
        owner=job.owner,
        created_at=job.created_at,
        updated_at=job.updated_at,
        finished_at=job.finished_at,
        attempt=None if attempt is None else attempt.number,
        attempts=job.attempts,
        nodes=None if attempt is None else attempt.nodes,
        asked=job.asked,
        phase=job.phase,
        spent=_spent(job),
        preemptions=job.spent.get(_PREEMPTION, 0),
        generation=job.generation,
        restarts=job.restarts,
        step=job.step,
        total_steps=job.total_steps,
        loss=_finite(job.loss),
        tokens_per_s=_finite(job.tokens_per_s),
        world_size=job.world_size,
        eta_s=estimate_eta_s(job),
        newest_snapshot=job.newest_snapshot,
        failure=None if attempt is None else _view_of_failure(attempt.failure),
        spec=dict(job.spec),
    )


def _spent(job: JobSummary) -> dict[str, int]:
    """Return the charges so far, including restarts and shrinks of the live attempt, which are charged at its end.

    A preemption costs nothing if the spec sets no limit.
    """
    spent = Counter(job.spent)
    if not job.limits_preemptions:
        del spent[_PREEMPTION]
    if job.attempt is not None and not job.attempt.state.terminal:
        spent += Counter(application=job.restarts, node=job.shrinks)
    return {budget: count for budget, count in spent.items() if count and budget in Budgets.model_fields}


def estimate_eta_s(job: JobSummary) -> float | None:
    """Return seconds until the last step. None if the job does not run or its step time is not known."""
    if job.state is not JobState.RUNNING:
        return None
    if job.step is None or job.total_steps is None or _finite(job.step_s) is None:
        return None
    return max(0, job.total_steps - job.step) * (job.step_s or 0.0)


def _view_of_attempt(standing: AttemptStanding) -> AttemptView:
    attempt = standing.attempt
    return AttemptView(
        number=attempt.key.number,
        state=attempt.state,
        reason=attempt.reason,
        rendezvous_id=attempt.rendezvous_id,
        port=attempt.port,
        handle=attempt.handle,
        nodes=attempt.nodes,
        asked=attempt.asked,
        excluded_nodes=list(attempt.excluded_nodes),
        restore_from=attempt.restore_from,
        restored=standing.training.restored,
        step=standing.training.step,
        created_at=attempt.created_at,
        started_at=attempt.started_at,
        ended_at=attempt.ended_at,
        failure=_view_of_failure(attempt.failure),
    )


def _view_of_event(stored: StoredEvent) -> EventView:
    event = stored.event
    return EventView(
        id=stored.id,
        job_id=stored.job_id,
        at=event.at,
        kind=event.kind,
        sentence=event.sentence,
        attempt=event.attempt,
        generation=event.generation,
        evidence=event.evidence,
        actor=event.actor,
        replica=event.replica,
    )


def _view_of_failure(failure: Failure | None) -> FailureView | None:
    if failure is None:
        return None
    return FailureView(**{**vars(failure), "kind": failure.kind.value})


def _view_of_metrics(points: Sequence[MetricPoint], names: Collection[str], not_finite: dict[str, int]) -> MetricsView:
    return MetricsView(
        steps=[point.step for point in points],
        at=[point.at for point in points],
        attempts=[point.attempt for point in points],
        generations=[point.generation for point in points],
        series={name: [_finite(point.values.get(name)) for point in points] for name in names},
        not_finite=not_finite,
    )


def _page(found: tuple[Sequence[Row], str | None], view: Callable[[Row], View]) -> Page[View]:
    rows, next_cursor = found
    return Page(items=[view(row) for row in rows], next_cursor=next_cursor)


def _is_finite(point: MetricPoint, name: str) -> bool:
    return math.isfinite(point.values.get(name, 0.0))


def _finite(value: float | None) -> float | None:
    """Replace NaN and infinity, which JSON does not have, by None."""
    return value if value is not None and math.isfinite(value) else None
