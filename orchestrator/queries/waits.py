"""What a queued job, or an elastic job on fewer nodes than it may have, waits for on its cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from orchestrator.configured_cluster import Cluster
from orchestrator.domain.errors import BackendUnavailable
from orchestrator.domain.explanation.growth import Shrunken, is_shrunken, tell_growth
from orchestrator.domain.job.attempt import Attempt
from orchestrator.domain.job.job import Job, JobState
from orchestrator.domain.job.job_summary import JobSummary
from orchestrator.domain.queueing.admission import Limits, claimant_of, dependencies_of
from orchestrator.domain.queueing.waiting import ClusterQueue, QueueWait, find_queue_wait, tell_queue_wait
from orchestrator.ports.jobs import JobStanding
from orchestrator.queries.job_queries import estimate_eta_s
from orchestrator.store.cluster_reader import ClusterReader
from orchestrator.store.job_reader import JobReader
from orchestrator.store.records import JobFilter, LiveJob
from orchestrator.wire.insight import HolderView, WaitView

_HOLDERS_SHOWN = 8
_ENDS_READ = 200  # running jobs whose expected end is read


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """`limits` apply to every cluster."""

    reader: ClusterReader
    jobs: JobReader
    clusters: Mapping[str, Cluster]
    limits: Limits

    def find(self, job: Job, now: datetime) -> WaitView | None:
        """Return None for a job that waits for nothing, and if the cluster does not answer. Raises StoreUnavailable."""
        topology = job.spec.topology
        may_grow = job.state is JobState.RUNNING and topology.min_nodes < topology.max_nodes
        cluster = self.clusters.get(job.spec.cluster)
        if cluster is None or not (may_grow or job.state is JobState.QUEUED):
            return None
        try:
            slots = cluster.backend.slots()
        except BackendUnavailable:
            return None
        limits = cluster.limits(self.limits, slots)
        return self._find_growth(job, limits, now) if may_grow else self._find_turn(job, limits, now)

    def _find_turn(self, job: Job, limits: Limits, now: datetime) -> WaitView | None:
        wait = find_queue_wait(self._queue(job.spec.cluster, limits, now), claimant_of(job, None))
        return None if wait is None else _view_of_turn(wait, job, now)

    def _find_growth(self, job: Job, limits: Limits, now: datetime) -> WaitView | None:
        standing = self.jobs.standing(job.id)
        if standing.attempt is None or limits.slots is None:
            return None
        nodes = _count_nodes(standing.attempt, standing, limits.gpus_per_node)
        if not is_shrunken(standing.job, standing.attempt, nodes):
            return None
        shrunken = Shrunken(job=standing.job, attempt=standing.attempt, training=standing.training, nodes=nodes)
        queue = self._queue(job.spec.cluster, limits, now)
        return WaitView(sentences=[tell_growth(shrunken, queue, now)], nodes=nodes)

    def _queue(self, cluster: str, limits: Limits, now: datetime) -> ClusterQueue:
        jobs = self.reader.live_jobs([cluster])[cluster]
        claimants = [each.claimant for each in jobs]
        named = dependencies_of(claimants)
        running = JobFilter(cluster=cluster, state=JobState.RUNNING)
        summaries, _ = self.jobs.summaries(running, limit=_ENDS_READ, cursor=None)
        return ClusterQueue(
            claimants=claimants,
            limits=limits,
            dependencies=self.reader.states(named) if named else {},
            ends_by=_expect_ends(jobs, summaries, now),
        )


def _expect_ends(jobs: Iterable[LiveJob], summaries: Iterable[JobSummary], now: datetime) -> dict[str, datetime]:
    """Return when running jobs end at their present speed, or at their limit of runtime, which ends a job."""
    left_s = {each.id: estimate_eta_s(each) for each in summaries}
    found = {}
    for each in jobs:
        limit_s, job_left_s = each.job.spec.supervise.max_runtime_s, left_s.get(each.job.id)
        started_at = None if each.attempt is None or each.attempt.state.terminal else each.attempt.started_at
        ends = [] if job_left_s is None else [now + timedelta(seconds=job_left_s)]
        ends += [] if limit_s is None or started_at is None else [started_at + timedelta(seconds=limit_s)]
        if ends:
            found[each.job.id] = max(now, min(ends))
    return found


def _count_nodes(attempt: Attempt, standing: JobStanding, gpus_per_node: int) -> int:
    """Return the nodes of the newest group. Without a report of its size, those of the attempt."""
    per_node = attempt.workers_per_node or standing.job.spec.topology.count_workers(gpus_per_node)
    if standing.world_size is None or not per_node:
        return attempt.max_nodes
    return min(attempt.max_nodes, -(-standing.world_size // per_node))


def _view_of_turn(wait: QueueWait, job: Job, now: datetime) -> WaitView:
    """Name only jobs of the same project, because its readers may see those."""
    mine = [each for each in wait.holders if each.job.spec.project == job.spec.project][:_HOLDERS_SHOWN]
    return WaitView(
        sentences=tell_queue_wait(wait, now),
        ahead=wait.ahead,
        holders=[
            HolderView(
                id=each.job.id,
                name=each.job.spec.name,
                state=each.job.state,
                devices=each.devices,
                ends_by=each.ends_by,
            )
            for each in mine
        ],
        other_devices=sum(each.devices for each in wait.holders) - sum(each.devices for each in mine),
        starts_by=wait.starts_by,
    )
