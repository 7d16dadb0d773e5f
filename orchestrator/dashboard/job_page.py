"""The page of one job, and the parts that it fetches: charts and the launch."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated

import yaml
from fastapi import Depends, Query, Response
from markupsafe import Markup

from orchestrator.commands.plans import Plans
from orchestrator.dashboard.answers import CurrentRequest, PageRequest, answer_page, answer_unchanged, page_of, tag_of
from orchestrator.dashboard.charts import MAX_POINTS, render_charts
from orchestrator.dashboard.grid import build_grid
from orchestrator.dashboard.ledger import build_ledger
from orchestrator.dashboard.page_cache import Parts, Recent
from orchestrator.dashboard.pages import render_page
from orchestrator.dashboard.timeline import build_timeline
from orchestrator.domain.access.identity import Role
from orchestrator.domain.accounting.step_time import describe_split
from orchestrator.domain.errors import InvalidSpec, LaunchRefused, NotFound
from orchestrator.domain.specs.beginning import tell_beginning
from orchestrator.logs.reader import LastLine, LogRequest, Logs
from orchestrator.ports.clock import Clock
from orchestrator.queries.accounts import Accounts
from orchestrator.queries.job_queries import Queries
from orchestrator.store.records import ChangeMark
from orchestrator.wire.history_views import SnapshotView
from orchestrator.wire.insight import WaitView
from orchestrator.wire.job_views import JobView, name_replicas
from trainer.contract.chaos import Fault

EVENTS_SHOWN = 60
EVENTS_READ = 600  # for the timeline
LOG_LINES_SHOWN = 120
WORKERS_READ = 4096
WORKERS_IN_A_TABLE = 32  # more workers are shown as a grid
WORST_SHOWN = 12
SNAPSHOTS_SHOWN = 12
NEWEST_STEPS = 20  # steps in which the newest value of each metric is searched, since a step may lack some metrics
STACK_LINES, RANK_LOG_LINES = 300, 60
_LAST_LINES_KEPT_S = 3.0
_BUCKET_S = 10.0  # an active job's page is rebuilt this often even without reports, to show how long the job is silent

Rank = Annotated[int | None, Query(ge=0, le=2**31 - 1)]
Step = Annotated[int, Query(ge=-1, le=2**62)]


@dataclass(frozen=True, slots=True)
class RankView:
    """The stacks and the log of one rank of the newest attempt."""

    rank: int
    stacks: Sequence[str]
    taken_at: datetime | None  # when the stacks were taken on request. None means that the worker saved them at its end
    log: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowParts:
    """The rendered parts of the page that are expensive. They change with events, and may be some seconds old."""

    verdict: str
    wait: WaitView | None
    snapshots: Sequence[SnapshotView]
    time: Markup
    events: Markup
    tables: Markup


@dataclass(frozen=True, slots=True)
class JobPage:
    queries: Queries
    accounts: Accounts
    plans: Plans
    logs: Logs
    clock: Clock
    slow_parts: Parts[SlowParts] = field(default_factory=lambda: Parts(keep_s=_BUCKET_S))
    last_lines: Recent[Sequence[LastLine]] = field(default_factory=lambda: Recent(keep_s=_LAST_LINES_KEPT_S))

    def show(self: Shared, job_id: str, request: CurrentRequest, rank: Rank = None) -> Response:
        """With `rank`, the page also shows the stacks and the log of that worker."""
        now = self.clock.now()
        mark = self.queries.mark(job_id)  # before the data that it identifies is read
        rank_view = None if rank is None else self._view_rank(job_id, rank)
        seen = "" if rank_view is None else tag_of(repr(rank_view))  # a log grows without a change in the store
        tag = f"{mark.actions}{mark.reports}{seen}-{_bucket(job_id, mark, now)}"
        return answer_unchanged(request, tag) or self._build(job_id, mark, now, request, tag, rank_view)

    def charts(
        self: Shared,
        job_id: str,
        since_step: Step = -1,
        until_step: Annotated[int | None, Query(ge=0, le=2**62)] = None,
        points: Annotated[int, Query(ge=1, le=MAX_POINTS)] = MAX_POINTS,
        marks_since: Step | None = None,
    ) -> Response:
        """The snapshots are those above `marks_since`, because some are reported later than their step."""
        found = self.queries.steps(job_id, since_step=since_step, until_step=until_step, points=points)
        marks_since = since_step if marks_since is None else marks_since
        snapshots = self.queries.snapshot_steps(job_id, since_step=marks_since, until_step=until_step)
        return Response(render_charts(found, snapshots), media_type="application/json")

    def launch(self: Shared, job_id: str, request: CurrentRequest) -> Response:
        """Return the spec, the launch command and the native request."""
        job = self.queries.job(job_id)
        try:
            plan, trouble = self.plans.launch(job_id), ""
        except (InvalidSpec, LaunchRefused, NotFound) as error:
            plan, trouble = None, str(error)
        return answer_page(request, "launch.html", job=job, spec=render_spec(job), plan=plan, trouble=trouble)

    def _build(
        self, job_id: str, mark: ChangeMark, now: datetime, request: PageRequest, tag: str, rank_view: RankView | None
    ) -> Response:
        job = self.queries.job(job_id)

        def build() -> SlowParts:
            return self._render_slow_parts(job, now)

        slow_parts = (self.slow_parts.get if request.fragment else self.slow_parts.renew)(job.id, mark.actions, build)
        newest = self._newest(job)
        workers = self.queries.workers(job.id, limit=WORKERS_READ, cursor=None).items
        running = job.state in ("STARTING", "RUNNING")
        mine = [worker for worker in workers if worker.attempt == job.attempt]
        grid = build_grid(mine, now=now, step_s=newest.get("step_s"), live=running)
        return answer_page(
            request,
            "job.html",
            tag=tag,
            now=now,
            job=job,
            newest=newest,
            began=_began(job, slow_parts.snapshots),
            split=describe_split(newest),
            slow_parts=slow_parts,
            beginning=tell_beginning(
                job.spec, has_snapshot=any(each.state != "deleted" for each in slow_parts.snapshots)
            ),
            faults=list(Fault),
            strikes=request.caller.may(Role.OPERATOR, job.project),
            grid=grid,
            in_table=grid.size <= WORKERS_IN_A_TABLE,
            worst_shown=WORST_SHOWN,
            last_lines=[] if grid.size > WORKERS_IN_A_TABLE else self._last_lines(job),
            rank_view=rank_view,
            rank_cell=None if rank_view is None else grid.find(rank_view.rank),
            # The script of an open page updates the log itself.
            log=[] if request.fragment else self._tail(job.id, LogRequest(tail=LOG_LINES_SHOWN)),
        )

    def _render_slow_parts(self, job: JobView, now: datetime) -> SlowParts:
        """Count all steps of the job and read its events."""
        account = self.accounts.account(job.id)
        attempts = self.queries.attempts(job.id, limit=200, cursor=None).items
        events = self.queries.events(job.id, limit=EVENTS_READ, cursor=None, newest_first=True).items
        snapshots = self.queries.snapshots(job.id, limit=SNAPSHOTS_SHOWN, cursor=None).items
        began = _began(job, snapshots)
        time = render_page(
            "job_time.html",
            now=now,
            job=job,
            why=account.why,
            began=began,
            goodput=account.goodput,
            ledger=build_ledger(account.goodput.bins),
            timeline=build_timeline(job, account.goodput.stretches, attempts, events, now),
            ranks_shown=WORST_SHOWN,
        )
        tables = render_page(
            "job_tables.html", now=now, job=job, began=began, attempts=list(reversed(attempts)), snapshots=snapshots
        )
        return SlowParts(
            verdict=account.why.verdict,
            wait=account.why.wait,
            snapshots=snapshots,
            time=Markup(time),
            events=Markup(
                render_page("job_events.html", now=now, events=events[:EVENTS_SHOWN], named=name_replicas(job, events))
            ),
            tables=Markup(tables),
        )

    def _newest(self, job: JobView) -> Mapping[str, float]:
        since = max(-1, (job.step or 0) - NEWEST_STEPS)
        return self.queries.metrics(job.id, names=(), since_step=since, points=NEWEST_STEPS).newest()

    def _view_rank(self, job_id: str, rank: int) -> RankView:
        log = self._tail(job_id, LogRequest(rank=rank, tail=RANK_LOG_LINES))
        stacks = next((each for each in self.queries.stacks(job_id, rank=rank).items if each.text), None)
        if stacks is not None and stacks.text is not None:
            return RankView(rank, stacks.text.splitlines()[-STACK_LINES:], stacks.at, log)
        return RankView(rank, self._tail(job_id, LogRequest(rank=rank, stream="stacks", tail=STACK_LINES)), None, log)

    def _last_lines(self, job: JobView) -> Sequence[LastLine]:
        try:
            return self.last_lines.get(job.id, lambda: self.logs.last_lines(job.id, most=WORKERS_IN_A_TABLE))
        except NotFound:  # its cluster is no longer configured
            return []

    def _tail(self, job_id: str, request: LogRequest) -> Sequence[str]:
        try:
            return self.logs.tail(job_id, request)
        except NotFound as error:
            return [str(error)]


Shared = Annotated[JobPage, Depends(page_of(JobPage))]


def render_spec(job: JobView) -> str:
    """Return the spec as YAML, without fields that have their default."""
    document = job.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100)


def _began(job: JobView, snapshots: Sequence[SnapshotView]) -> bool:
    """Whether the page has any training to show."""
    return job.attempts > 0 or bool(snapshots)


def _bucket(job_id: str, mark: ChangeMark, now: datetime) -> int:
    """Return a number that changes every _BUCKET_S while the job is active, at a different time for each job."""
    if mark.at_rest:
        return 0
    return int((now.timestamp() + zlib.crc32(job_id.encode()) % _BUCKET_S) / _BUCKET_S)
