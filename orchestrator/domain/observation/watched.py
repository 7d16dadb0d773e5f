"""A live attempt and its observation, with what the rules need to know about its end."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.domain.job.attempt import Attempt
from orchestrator.domain.observation.observation import Liveness, Observation, Presence, ReplicaSighting
from trainer.contract.exit_record import ExitRecord, Outcome
from trainer.contract.failure import Failure, FailureKind, is_collateral, is_echo, is_taken_port


@dataclass(frozen=True, slots=True)
class Watched:
    attempt: Attempt
    seen: Observation

    @property
    def presence(self) -> Presence:
        return self.seen.sighting.presence

    @property
    def stopping(self) -> bool:
        return self.attempt.stopping_since is not None

    @property
    def nodes(self) -> int:
        """The number of its replicas."""
        given = self.seen.sighting.nodes
        return self.attempt.max_nodes if given is None else given

    def exits(self) -> list[ExitRecord]:
        """Return the exit records without refused double starts, earliest first."""
        return sorted(self._exits().values(), key=lambda record: record.at)

    def all_succeeded(self) -> bool:
        """Whether enough replicas recorded success, no record speaks against the attempt, and no agent is alive or
        unknown.

        Enough is the minimum of the range of nodes: replicas that an elastic group lost were not needed.
        """
        succeeded = [record for record in self.exits() if record.outcome is Outcome.SUCCEEDED]
        if len(succeeded) < self.attempt.min_nodes or self._unaccounted():
            return False
        if any(seen.liveness is Liveness.ALIVE for seen in self.seen.sighting.replicas):
            return False
        return not self.bad_exits()

    def bad_exits(self) -> list[ExitRecord]:
        """Return the records of failed replicas that the group cannot spare."""
        tolerated = self._tolerated_exits()
        return [one for one in self._exits().values() if one.outcome is not Outcome.SUCCEEDED and one not in tolerated]

    def _tolerated_exits(self) -> list[ExitRecord]:
        """Return the records of failures after which the group continued, or still can with the other live agents.

        An agent whose program failed closes the group for all. An agent that lost its peers or its node, or was
        preempted, does not.
        """
        records = self._exits()
        newest = max([self.seen.training.generation or 0, *(record.generation for record in records.values())])
        at_work = sum(seen.liveness is Liveness.ALIVE for seen in self.seen.sighting.replicas)
        may_go_on = at_work >= self.attempt.min_nodes and not self.stopping
        tolerated = [
            record
            for record in records.values()
            if record.outcome is not Outcome.SUCCEEDED
            and (record.generation < newest or (may_go_on and _leaves_group_open(record)))
        ]
        return tolerated if self.nodes - len(tolerated) >= self.attempt.min_nodes else []

    def _exits(self) -> dict[int, ExitRecord]:
        """Return the exit records by replica without refused double starts."""
        replicas = range(self.attempt.max_nodes)
        exits = self.seen.exits.items()
        return {replica: one for replica, one in exits if replica in replicas and one.outcome is not Outcome.REFUSED}

    def began(self) -> bool:
        """Whether any worker has started, according to the journals or an exit record."""
        return self.seen.training.formed_at is not None or any(one.generation > 0 for one in self.exits())

    def vanished(self) -> str | None:
        """Evidence, as a clause, that more agents are gone without a record than the group can spare; else None."""
        gone = self.gone()
        spare = self.nodes - self.attempt.min_nodes - len(self._tolerated_exits())
        if not gone or (len(gone) <= spare and self.presence is not Presence.GONE):
            return None
        return "; ".join(seen.evidence for seen in gone)

    def gone(self) -> list[ReplicaSighting]:
        """Return the dead replicas without an exit record. The record of a refused second start does not count."""
        records, replicas = self._exits(), self.seen.sighting.replicas
        return [one for one in replicas if one.liveness is Liveness.DEAD and one.replica not in records]

    def unreachable(self) -> list[ReplicaSighting]:
        """Return the replicas on nodes that the scheduler cannot reach, unless they recorded an end of their own.

        A lost peer is no end of their own: an agent that is cut off loses its peers.
        """
        records = self._exits()
        ended = {number for number, record in records.items() if not (record.failure and is_lost_peer(record.failure))}
        return [one for one in self.seen.sighting.replicas if one.node_unreachable and one.replica not in ended]

    def lost_nodes(self) -> tuple[str, ...]:
        """Return the known nodes of the replicas that are gone."""
        return tuple(sorted({one.node for one in self.gone() if one.node is not None}))

    def node_of(self, replica: int) -> str | None:
        return next((one.node for one in self.seen.sighting.replicas if one.replica == replica), None)

    def leftovers(self) -> bool:
        """Whether any process of the attempt runs or may run."""
        return self.seen.sighting.leftovers or self._unaccounted()

    def _unaccounted(self) -> bool:
        """Whether any replica has no record and is neither alive nor dead."""
        if self.presence in (Presence.ABSENT, Presence.GONE):
            return False
        judged = {seen.replica for seen in self.seen.sighting.replicas if seen.liveness is not Liveness.UNKNOWN}
        return any(number not in judged | self.seen.exits.keys() for number in range(self.nodes))


def is_lost_peer(failure: Failure) -> bool:
    """Whether a failure follows from another one: the agent lost a peer or the peer's store, or quotes the other."""
    return (
        is_collateral(failure)
        or is_echo(failure)
        or (failure.kind is FailureKind.RENDEZVOUS and not is_taken_port(failure))
    )


def _leaves_group_open(record: ExitRecord) -> bool:
    failure = record.failure
    if failure is None:
        return record.outcome is Outcome.PREEMPTED
    return is_lost_peer(failure) or failure.kind is FailureKind.NODE
