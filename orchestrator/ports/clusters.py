"""What all clusters hold, for readers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from orchestrator.domain.observation.node import NodeFailure
from orchestrator.domain.queueing.admission import Claimant


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAges:
    """What has stood longest on a cluster."""

    cluster: str
    queued_since: datetime | None = None  # the oldest QUEUED job was submitted; one that was retried does not count
    snapshot_at: datetime | None = None  # of the newest snapshots of the RUNNING jobs that have one, the oldest


class ClusterReader(Protocol):
    """What the clusters hold. Raises StoreUnavailable."""

    def claimants(self, cluster: str) -> Sequence[Claimant]:
        """The cluster's jobs that are not terminal, each with its newest attempt; the suspended ones included."""

    def node_failures(self, *, since: datetime) -> Sequence[NodeFailure]:
        """What stands in the records of the nodes of every cluster."""

    def ages(self) -> Sequence[ClusterAges]:
        """Of every cluster that has any."""


class NodeStore(Protocol):
    """The records of nodes, as people change them. Raises StoreUnavailable."""

    def clear(self, cluster: str, node: str, *, at: datetime, by: str) -> None:
        """Reports about the node until `at` no longer count against it. Idempotent."""
