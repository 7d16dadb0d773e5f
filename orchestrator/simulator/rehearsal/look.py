"""How a simulated attempt looks from outside. Kept between two looks: thousands of replicas look as they did before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.observation.observation import Liveness, Presence, ReplicaSighting, Sighting
from trainer.contract.failure import Failure


class Looks:
    """`known`: how the job's living replicas looked in its last attempt, by number; most of them look so again."""

    def __init__(self, key: AttemptKey, known: list[ReplicaSighting]) -> None:
        self._key = key
        self._known = known
        self._replicas: tuple[ReplicaSighting, ...] | None = None
        self._dead = 0

    def absent(self) -> Sighting:
        return Sighting(key=self._key, presence=Presence.ABSENT, evidence="the cluster has never heard of it")

    def pending(self, evidence: str) -> Sighting:
        return Sighting(key=self._key, presence=Presence.PENDING, evidence=evidence)

    def running(self, nodes: Sequence[str], dead: set[int]) -> Sighting:
        if self._replicas is None or len(dead) != self._dead:
            self._replicas, self._dead = self._each(nodes, dead), len(dead)
        return Sighting(key=self._key, presence=Presence.RUNNING, evidence="its agents run", replicas=self._replicas)

    def cut_off(self, nodes: Sequence[str]) -> Sighting:
        """The last node does not answer, and may be at work."""
        seen = self.running(nodes, set())
        *others, last = seen.replicas
        silent = replace(
            last, liveness=Liveness.UNKNOWN, evidence=f"node {last.node} does not answer", node_unreachable=True
        )
        return replace(seen, replicas=(*others, silent))

    def gone(
        self,
        evidence: str,
        *,
        nodes: Sequence[str],
        dead: Sequence[int],
        cause: Failure | None = None,
        leftovers: bool = False,
    ) -> Sighting:
        """A cluster names the replicas of whose end it knows more than that the whole is over."""
        places: Sequence[str | None] = nodes or [None] * (max(dead) + 1)
        replicas = tuple(_dead(replica, places[replica], evidence, leftovers=leftovers) for replica in dead)
        self._replicas = None
        return Sighting(key=self._key, presence=Presence.GONE, evidence=evidence, replicas=replicas, cause=cause)

    def _each(self, nodes: Sequence[str], dead: set[int]) -> tuple[ReplicaSighting, ...]:
        for replica, node in enumerate(nodes):
            if replica >= len(self._known):
                self._known.append(_alive(replica, node))
            elif self._known[replica].node != node:
                self._known[replica] = _alive(replica, node)
        replicas = self._known[: len(nodes)]
        for replica in dead:
            replicas[replica] = _dead(replica, nodes[replica], f"node {nodes[replica]} is down")
        return tuple(replicas)


def _alive(replica: int, node: str) -> ReplicaSighting:
    return ReplicaSighting(replica=replica, liveness=Liveness.ALIVE, evidence="its agent runs", node=node)


def _dead(replica: int, node: str | None, evidence: str, *, leftovers: bool = False) -> ReplicaSighting:
    return ReplicaSighting(replica=replica, liveness=Liveness.DEAD, evidence=evidence, leftovers=leftovers, node=node)
