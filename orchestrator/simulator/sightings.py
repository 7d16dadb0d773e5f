"""Build the sightings of simulated attempts. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import lru_cache

from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.observation.observation import Liveness, Presence, ReplicaSighting, Sighting
from trainer.contract.failure import Failure


def absent(key: AttemptKey) -> Sighting:
    return Sighting(key=key, presence=Presence.ABSENT, evidence="the cluster does not know it")


def pending(key: AttemptKey, evidence: str) -> Sighting:
    return Sighting(key=key, presence=Presence.PENDING, evidence=evidence)


def running(key: AttemptKey, replicas: tuple[ReplicaSighting, ...]) -> Sighting:
    return Sighting(key=key, presence=Presence.RUNNING, evidence="its agents run", replicas=replicas)


def last_node_unreachable(key: AttemptKey, replicas: tuple[ReplicaSighting, ...]) -> Sighting:
    """Return a running attempt whose last node does not answer. The workers of that node may run."""
    *others, last = replicas
    silent = replace(
        last, liveness=Liveness.UNKNOWN, evidence=f"node {last.node} does not answer", node_unreachable=True
    )
    return running(key, (*others, silent))


def gone(
    key: AttemptKey, evidence: str, replicas: tuple[ReplicaSighting, ...], cause: Failure | None = None
) -> Sighting:
    return Sighting(key=key, presence=Presence.GONE, evidence=evidence, replicas=replicas, cause=cause)


def replicas_on(nodes: Sequence[str], dead: Collection[int]) -> tuple[ReplicaSighting, ...]:
    """Return a replica on each node. The nodes of dead replicas are reported as down."""
    return tuple(
        dead_replica(replica, node, f"node {node} is down") if replica in dead else _alive_replica(replica, node)
        for replica, node in enumerate(nodes)
    )


def dead_replica(replica: int, node: str | None, evidence: str, *, leftovers: bool = False) -> ReplicaSighting:
    return ReplicaSighting(replica=replica, liveness=Liveness.DEAD, evidence=evidence, leftovers=leftovers, node=node)


@lru_cache(maxsize=65536)  # most replicas of a large attempt look the same in every attempt
def _alive_replica(replica: int, node: str) -> ReplicaSighting:
    return ReplicaSighting(replica=replica, liveness=Liveness.ALIVE, evidence="its agent runs", node=node)
