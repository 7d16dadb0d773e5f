"""Read side for what there is to run on: clusters, the records of nodes, and what projects use. Changes nothing."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from orchestrator.clusters import Cluster
from orchestrator.domain.admission import Claimant, Limits, Quota, devices_of, place_in_line
from orchestrator.domain.errors import BackendUnavailable
from orchestrator.domain.job import JobState
from orchestrator.domain.lease import LeaseStanding
from orchestrator.domain.node import NodeFailure, exclude, record_begins
from orchestrator.ports import Clock, ClusterReader, LeaseStore
from orchestrator.wire import ClusterView, LeaseView, NodeView, ProjectView, QueuedView, SlotsView, UseView


class Inventory:
    """Every method raises StoreUnavailable. `limits` are those of every cluster."""

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

    def clusters(self) -> list[ClusterView]:
        """By name."""
        leases = {standing.lease.cluster: standing for standing in self._leases.leases()}
        return [self._cluster(self._clusters[name], leases.get(name)) for name in sorted(self._clusters)]

    def queue(self, cluster: str, *, limit: int) -> list[QueuedView]:
        """The cluster's queued jobs in the order in which they are to start."""
        queued = [each for each in self._reader.claimants(cluster) if each.job.state is JobState.QUEUED]
        return [
            QueuedView(
                id=each.job.id,
                name=each.job.spec.name,
                project=each.job.spec.project,
                priority=each.job.spec.priority,
                reason=each.job.reason,
                created_at=each.job.created_at,
            )
            for each in sorted(queued, key=place_in_line)[:limit]
        ]

    def nodes(self, cluster: str | None = None) -> list[NodeView]:
        """Nodes with a record, by cluster and name."""
        now = self._clock.now()
        records: defaultdict[tuple[str, str], list[NodeFailure]] = defaultdict(list)
        for failure in self._reader.node_failures(since=record_begins(now, cooldown_s=self._node_cooldown_s)):
            if cluster in (None, failure.cluster):
                records[failure.cluster, failure.node].append(failure)
        views = []
        for (where, name), record in sorted(records.items()):
            excluded = exclude(record, now=now, cooldown_s=self._node_cooldown_s)
            last = max(record, key=lambda failure: failure.at)
            view = NodeView(
                cluster=where,
                name=name,
                excluded_until=excluded[0].until if excluded else None,
                failures=len(record),
                last_at=last.at,
                last_kind=last.kind.value,
                last_sentence=last.sentence,
                last_job=last.key.job_id,
            )
            views.append(view)
        return views

    def projects(self) -> list[ProjectView]:
        """Those with a quota or with jobs that are not at rest, by name."""
        use: defaultdict[str, list[UseView]] = defaultdict(list)
        for name, cluster in sorted(self._clusters.items()):
            by_project: defaultdict[str, list[Claimant]] = defaultdict(list)
            for each in self._reader.claimants(name):
                by_project[each.job.spec.project].append(each)
            for project, claimants in by_project.items():
                use[project].append(_use(cluster, claimants))
        names = sorted(use.keys() | self._limits.quotas.keys())
        return [_project(name, self._limits.quotas.get(name, Quota()), use[name]) for name in names]

    def _cluster(self, cluster: Cluster, lease: LeaseStanding | None) -> ClusterView:
        claimants = self._reader.claimants(cluster.name)
        used = _devices(cluster, claimants)
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
            max_jobs=self._limits.max_jobs,
            jobs=dict(Counter(each.job.state.value for each in claimants)),
            lease=None if lease is None else _lease(lease),
        )


def _use(cluster: Cluster, claimants: Sequence[Claimant]) -> UseView:
    return UseView(
        cluster=cluster.name,
        jobs=sum(each.held_nodes > 0 for each in claimants),
        devices=_devices(cluster, claimants),
        queued=sum(each.job.state is JobState.QUEUED for each in claimants),
    )


def _devices(cluster: Cluster, claimants: Iterable[Claimant]) -> int:
    return sum(devices_of(each.job, each.attempt, cluster.gpus) for each in claimants)


def _project(name: str, quota: Quota, use: list[UseView]) -> ProjectView:
    return ProjectView(name=name, max_jobs=quota.max_jobs, max_devices=quota.max_devices, use=use)


def _lease(standing: LeaseStanding) -> LeaseView:
    return LeaseView(
        holder=standing.lease.holder,
        since=standing.since,
        expires_at=standing.expires_at,
        expired=standing.expired,
    )
