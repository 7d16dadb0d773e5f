"""Answers questions about clusters, node records, queues, and what projects use."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from orchestrator.configured_cluster import Cluster
from orchestrator.domain.errors import BackendUnavailable
from orchestrator.domain.job.job import JobState
from orchestrator.domain.observation.node_record import Exclusion, NodeFailure, exclude, find_incidents, record_begins
from orchestrator.domain.queueing.admission import Claimant, Limits, Quota, admit, queue_key
from orchestrator.domain.queueing.lease import LeaseStanding
from orchestrator.domain.specs.spec import JobSpec
from orchestrator.ports.clock import Clock
from orchestrator.ports.leases import LeaseStore
from orchestrator.store.cluster_reader import ClusterReader
from orchestrator.store.records import LiveJob
from orchestrator.wire.cluster_views import (
    ClusterView,
    LeaseView,
    NodeView,
    PartitionView,
    ProjectView,
    QueuedView,
    SlotsView,
    UseView,
)
from orchestrator.wire.plans import OutlookView

Group = TypeVar("Group", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgeView:
    """Ages in seconds."""

    cluster: str
    queued_s: float | None
    snapshot_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldingView:
    """What one owner's jobs of a project hold on a cluster. `owner` None: the caller was not identified."""

    cluster: str
    project: str
    owner: str | None
    jobs: int  # those that hold nodes
    devices: int
    queued: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """All clusters, from one reading. `queues` are by cluster, in the order in which the jobs start."""

    clusters: Sequence[ClusterView]
    queues: Mapping[str, Sequence[QueuedView]]
    projects: Sequence[ProjectView]
    holdings: Sequence[HoldingView]  # the largest first


class Inventory:
    """Every method raises StoreUnavailable. `limits` apply to every cluster."""

    def __init__(
        self,
        reader: ClusterReader,
        leases: LeaseStore,
        clusters: Mapping[str, Cluster],
        clock: Clock,
        *,
        limits: Limits,
        node_cooldown_s: float,
    ) -> None:
        self._reader = reader
        self._leases = leases
        self._clusters = clusters
        self._clock = clock
        self._limits = limits
        self._node_cooldown_s = node_cooldown_s

    def names(self) -> list[str]:
        """Return the names of the configured clusters, without asking any cluster."""
        return sorted(self._clusters)

    def clusters(self) -> list[ClusterView]:
        """Return all clusters, by name."""
        return self._describe(self._live_jobs())

    def survey(self, *, queued: int) -> Survey:
        """Everything about all clusters, with up to `queued` jobs of each queue. Reads the jobs once."""
        jobs = self._live_jobs()
        return Survey(
            clusters=self._describe(jobs),
            queues={name: _queue(each, limit=queued) for name, each in jobs.items()},
            projects=self._sum_up(jobs),
            holdings=self._holdings(jobs),
        )

    def outlook(self, spec: JobSpec, dependencies: Mapping[str, JobState]) -> OutlookView | None:
        """Return whether such a job would be admitted now. None if the cluster does not answer."""
        cluster, now = self._clusters.get(spec.cluster), self._clock.now()
        try:
            slots = None if cluster is None else cluster.backend.slots()
        except BackendUnavailable:
            return None
        if cluster is None:
            return None
        mine = _build_candidate(spec, now)
        jobs = self._reader.live_jobs([cluster.name])[cluster.name]
        others = [each.claimant for each in jobs]
        limits = cluster.limits(self._limits, slots)
        admission = admit([*others, mine], limits, dependencies=dependencies)[mine.id]
        waiting = [each for each in others if each.state in (JobState.QUEUED, JobState.RECOVERING)]
        avoided = [node.name for node in self.nodes(cluster.name) if (node.excluded_until or now) > now]
        return OutlookView(
            admitted=admission.admitted,
            sentence=admission.sentence,
            ahead=sum(queue_key(each) < queue_key(mine) for each in waiting),
            total=slots,
            free=None if slots is None else max(0, slots - _devices(cluster, jobs)),
            excluded_nodes=avoided if spec.supervise.exclude_bad_nodes else [],
        )

    def nodes(self, cluster: str | None = None) -> list[NodeView]:
        """Return the nodes with a record that was not cleared, by cluster and name."""
        now = self._clock.now()
        records: defaultdict[tuple[str, str], list[NodeFailure]] = defaultdict(list)
        for failure in self._reader.node_failures(since=record_begins(now, cooldown_s=self._node_cooldown_s)):
            if cluster in (None, failure.cluster):
                records[failure.cluster, failure.node].append(failure)
        views = []
        for (where, name), record in sorted(records.items()):
            incidents = find_incidents(record, cooldown_s=self._node_cooldown_s)
            if not incidents:
                continue  # it was cleared
            excluded = exclude(record, now=now, cooldown_s=self._node_cooldown_s)
            last = incidents[-1].newest
            view = NodeView(
                cluster=where,
                name=name,
                excluded_until=excluded[0].until if excluded else None,
                failures=len(incidents),
                last_at=last.at,
                last_kind=last.kind.value,
                last_sentence=last.sentence,
                last_job=last.key.job_id,
            )
            views.append(view)
        return views

    def exclusions(self, cluster: str) -> list[Exclusion]:
        """Return the nodes of a cluster that new attempts avoid now."""
        now = self._clock.now()
        reports = self._reader.node_failures(since=record_begins(now, cooldown_s=self._node_cooldown_s))
        mine = [each for each in reports if each.cluster == cluster]
        return exclude(mine, now=now, cooldown_s=self._node_cooldown_s)

    def ages(self) -> list[AgeView]:
        """Return, by cluster, the longest wait of a queued job and the greatest age of a job's newest snapshot."""
        now = self._clock.now()
        return [
            AgeView(
                cluster=each.cluster,
                queued_s=_age_s(each.queued_since, now),
                snapshot_s=_age_s(each.snapshot_at, now),
            )
            for each in self._reader.ages()
        ]

    def projects(self) -> list[ProjectView]:
        """Return the projects with a quota or with jobs that are not at rest, by name."""
        return self._sum_up(self._live_jobs())

    def _live_jobs(self) -> Mapping[str, Sequence[LiveJob]]:
        return self._reader.live_jobs(sorted(self._clusters))

    def _describe(self, jobs: Mapping[str, Sequence[LiveJob]]) -> list[ClusterView]:
        leases = {standing.lease.cluster: standing for standing in self._leases.leases()}
        return [self._cluster(self._clusters[name], each, leases.get(name)) for name, each in jobs.items()]

    def _sum_up(self, jobs: Mapping[str, Sequence[LiveJob]]) -> list[ProjectView]:
        use: defaultdict[str, list[UseView]] = defaultdict(list)
        for name, of_cluster in jobs.items():
            for project, some in _group(lambda each: each.job.spec.project, of_cluster).items():
                use[project].append(_use(self._clusters[name], some))
        names = sorted(use.keys() | self._limits.quotas.keys())
        return [_project(name, self._limits.quotas.get(name, Quota()), use[name]) for name in names]

    def _holdings(self, jobs: Mapping[str, Sequence[LiveJob]]) -> list[HoldingView]:
        found = []
        for name, of_cluster in jobs.items():
            for (project, owner), some in _group(
                lambda each: (each.job.spec.project, each.job.owner), of_cluster
            ).items():
                use = _use(self._clusters[name], some)
                found.append(HoldingView(project=project, owner=owner, **use.model_dump()))
        return sorted(found, key=lambda each: (-each.devices, -each.queued, each.project, each.owner or ""))

    def _cluster(self, cluster: Cluster, jobs: Sequence[LiveJob], lease: LeaseStanding | None) -> ClusterView:
        used = _devices(cluster, jobs)
        try:
            total, detail, answers = cluster.backend.slots(), "", True
        except BackendUnavailable as error:
            total, detail, answers = None, str(error), False
        return ClusterView(
            name=cluster.name,
            kind=cluster.kind,
            answers=answers,
            detail=detail,
            slots=SlotsView(used=used, total=total, free=None if total is None else max(0, total - used)),
            max_jobs=cluster.max_jobs,
            jobs=dict(Counter(each.job.state.value for each in jobs)),
            lease=None if lease is None else _lease(lease),
            partitions=_partitions(cluster) if answers else [],
        )


def _group(key: Callable[[LiveJob], Group], jobs: Iterable[LiveJob]) -> Mapping[Group, Sequence[LiveJob]]:
    groups: defaultdict[Group, list[LiveJob]] = defaultdict(list)
    for each in jobs:
        groups[key(each)].append(each)
    return groups


def _queue(jobs: Sequence[LiveJob], *, limit: int) -> list[QueuedView]:
    queued = [each for each in jobs if each.job.state is JobState.QUEUED]
    return [
        QueuedView(
            id=each.job.id,
            name=each.job.spec.name,
            project=each.job.spec.project,
            priority=each.job.spec.priority,
            reason=each.job.reason,
            created_at=each.job.created_at,
        )
        for each in sorted(queued, key=lambda each: queue_key(each.claimant))[:limit]
    ]


def _build_candidate(spec: JobSpec, now: datetime) -> Claimant:
    """Return the job as if it had been submitted now."""
    return Claimant(
        id=f"{spec.name}-preview",
        spec=spec,
        state=JobState.QUEUED,
        created_at=now,
        number=0,
        suspended=False,
        cancelled=False,
    )


def _age_s(since: datetime | None, now: datetime) -> float | None:
    return None if since is None else max(0.0, (now - since).total_seconds())


def _partitions(cluster: Cluster) -> list[PartitionView]:
    if cluster.partitions is None:
        return []
    try:
        return [PartitionView.model_validate(partition) for partition in cluster.partitions()]
    except BackendUnavailable:
        return []


def _use(cluster: Cluster, jobs: Sequence[LiveJob]) -> UseView:
    return UseView(
        cluster=cluster.name,
        jobs=sum(each.claimant.held_nodes > 0 for each in jobs),
        devices=_devices(cluster, jobs),
        queued=sum(each.job.state is JobState.QUEUED for each in jobs),
    )


def _devices(cluster: Cluster, jobs: Iterable[LiveJob]) -> int:
    return sum(each.claimant.held_devices(cluster.gpus) for each in jobs)


def _project(name: str, quota: Quota, use: list[UseView]) -> ProjectView:
    return ProjectView(name=name, max_jobs=quota.max_jobs, max_devices=quota.max_devices, use=use)


def _lease(standing: LeaseStanding) -> LeaseView:
    return LeaseView(
        holder=standing.lease.holder,
        since=standing.since,
        expires_at=standing.expires_at,
        expired=standing.expired,
    )
