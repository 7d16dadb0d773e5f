"""Who left a group that went on without them, and what ended each. Pure.

An agent that is gone says nothing against its node: somebody may have killed it, or deleted its pod. A node is lost
only if the service has recorded that of the node.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from orchestrator.domain.job.event import Event
from orchestrator.domain.job.event import EventKind as Ours
from orchestrator.domain.observation.membership import Participant, read_life
from trainer.contract.failure import Failure, FailureKind, parse_failure


@dataclass(frozen=True, slots=True)
class Lost:
    """`names` is the subject of a clause, such as "replica 1 on n2" or "nodes n2, n3"."""

    names: str
    are_several: bool = False

    @property
    def clause(self) -> str:
        return f"{self.names} {'were' if self.are_several else 'was'} lost"


def name_nodes(nodes: Sequence[str]) -> Lost:
    """Name lost nodes. Without names, it is only known that an agent is gone."""
    return Lost(_name("node", nodes), len(nodes) > 1) if nodes else Lost("an agent")


def find_left(before: Collection[Participant], after: Collection[Participant]) -> list[Participant]:
    """Return who was in a group and is not in the next one. Another incarnation of a replica is somebody else."""
    stayed = {(one.replica, one.incarnation) for one in after}
    left = [one for one in before if (one.replica, one.incarnation) not in stayed]
    return sorted(left, key=lambda one: one.replica)


class Losses:
    """What the service recorded of an attempt's lost replicas and nodes. `events` are the attempt's."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._notes = {read_life(event): event for event in events if event.kind == Ours.REPLICA_LOST}
        self._marked_at: dict[str, datetime] = {}
        for event in events:
            node = event.evidence.get("node")
            if event.kind == Ours.NODE_MARKED and isinstance(node, str):
                self._marked_at[node] = event.at

    def explain(self, left: Sequence[Participant]) -> tuple[Lost, Failure]:
        """Name these replicas, or their nodes if all were lost with them, and say what ended them."""
        nodes = [self._find_node(one) for one in left]
        known = [failure for one in left if (failure := self._find_failure(one)) is not None]
        named = sorted({node for node in nodes if node is not None})
        if None not in nodes:
            return _tell(name_nodes(named), known, FailureKind.NODE)
        kinds = {failure.kind for failure in known}
        kind = kinds.pop() if len(kinds) == 1 and len(known) == len(left) else FailureKind.NODE
        where = f" on {left[0].host}" if len(left) == 1 and left[0].host and not known else ""
        lost = Lost(_name("replica", [str(one.replica) for one in left]) + where, len(left) > 1)
        return _tell(lost, known, kind)

    def explain_hosts(self, hosts: Sequence[str], since: datetime) -> tuple[Lost, Failure]:
        """Name the agents that ran on these hosts and report no replica, or their nodes if all of them were lost."""
        if all(self._is_marked(host, since) for host in hosts):
            return _tell(name_nodes(hosts), (), FailureKind.NODE)
        several = len(hosts) > 1
        return _tell(Lost(f"the agent{'s' if several else ''} on {', '.join(hosts)}", several), (), FailureKind.NODE)

    def _find_node(self, one: Participant) -> str | None:
        """Return the node that was lost with the replica."""
        note = self._notes.get((one.replica, one.incarnation))
        if note is not None:
            node = note.evidence.get("node")
            return node if isinstance(node, str) else None
        return one.host if self._is_marked(one.host, one.at) else None

    def _find_failure(self, one: Participant) -> Failure | None:
        note = self._notes.get((one.replica, one.incarnation))
        failure = None if note is None else note.evidence.get("failure")
        return parse_failure(failure) if isinstance(failure, Mapping) else None

    def _is_marked(self, host: str | None, since: datetime) -> bool:
        return host in self._marked_at and self._marked_at[host] >= since


def _tell(lost: Lost, known: Sequence[Failure], kind: FailureKind) -> tuple[Lost, Failure]:
    said = dict.fromkeys(failure.message for failure in known)
    return lost, Failure(kind=kind, message="; ".join(said) or lost.clause)


def _name(noun: str, names: Sequence[str]) -> str:
    return f"{noun}{'s' if len(names) > 1 else ''} {', '.join(names)}"
