"""Clear the record of a node that is healthy again."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from orchestrator.domain.access.identity import Principal
from orchestrator.domain.errors import NotFound
from orchestrator.domain.observation.node_record import record_begins
from orchestrator.ports.clock import Clock
from orchestrator.store.cluster_reader import ClusterReader
from orchestrator.store.node_records import NodeStore

log = structlog.get_logger()


class NodeRecords:
    """`wake` starts a pass of the supervisors soon. It must not block."""

    def __init__(
        self, store: NodeStore, reader: ClusterReader, clock: Clock, wake: Callable[[], None], *, cooldown_s: float
    ) -> None:
        self._store = store
        self._reader = reader
        self._clock = clock
        self._wake = wake
        self._cooldown_s = cooldown_s

    def clear(self, cluster: str, node: str, *, by: Principal) -> None:
        """Let jobs use the node again. Idempotent. Raises NotFound for a node without a record."""
        now = self._clock.now()
        reports = self._reader.node_failures(since=record_begins(now, cooldown_s=self._cooldown_s))
        if not any((report.cluster, report.node) == (cluster, node) for report in reports):
            raise NotFound(f"node {node} of cluster {cluster} has no failure in its record")
        self._store.clear(cluster, node, at=now, by=by.name)
        log.info("node cleared", cluster=cluster, node=node, by=by.name)
        self._wake()
