"""Find the replicas that a running group has lost, and what ended each. Pure.

A replica that is gone says nothing against its node. A node is lost only if the cluster says so.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.domain.observation.observation import Liveness, ReplicaSighting
from orchestrator.domain.observation.watched import Watched, is_lost_peer
from trainer.contract.exit_record import ExitRecord, Outcome
from trainer.contract.failure import Failure, FailureKind

_LEFT = (None, Outcome.FAILED, Outcome.PREEMPTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class LostReplica:
    """A replica whose agent has ended while the others go on. `node` is lost with it; None if nothing says so."""

    replica: int
    incarnation: int
    words: str  # what ended its agent, as a clause
    failure: Failure
    returns: bool  # the cluster starts another agent under the same number
    node: str | None = None

    @property
    def sentence(self) -> str:
        where = "" if self.node is None else f" with node {self.node}"
        return f"replica {self.replica} was lost{where}: {self.failure.message}"


def find_lost_replicas(live: Watched) -> tuple[LostReplica, ...]:
    """Return the lost replicas that are not recorded yet. A replica whose agent never began was not in the group."""
    found = (_judge(one, live) for one in live.seen.sighting.replicas)
    return tuple(each for each in found if each is not None)


def _judge(one: ReplicaSighting, live: Watched) -> LostReplica | None:
    members, record = live.seen.members, live.seen.exits.get(one.replica)
    newest = members.reported.get(one.replica)
    incarnation = newest if one.end is None else one.end.incarnation
    if newest is None or incarnation != newest or (one.replica, newest) in members.lost:
        return None  # it never began, the cluster shows an earlier agent, or its loss is recorded
    is_cut_off = one.node_unreachable and one.replica in live.seen.missed
    if not (one.liveness is Liveness.DEAD or is_cut_off) or (record and record.outcome) not in _LEFT:
        return None
    return LostReplica(
        replica=one.replica,
        incarnation=newest,
        words=one.evidence if one.end is None else one.end.words,
        failure=_find_cause(one, record),
        returns=one.returns,
        node=one.node,
    )


def _find_cause(one: ReplicaSighting, record: ExitRecord | None) -> Failure:
    """Return the agent's own failure, or what the cluster says. Without either, all of the replica is just gone."""
    if record is not None and record.failure is not None and not is_lost_peer(record.failure):
        return record.failure
    if one.end is not None and one.end.failure is not None:
        return one.end.failure
    preempted = record is not None and record.outcome is Outcome.PREEMPTED
    words = one.evidence if one.end is None else one.end.words
    return Failure(kind=FailureKind.PREEMPTED if preempted else FailureKind.NODE, message=words)
