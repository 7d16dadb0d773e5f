"""A live attempt and what is seen of it, with the questions that the rules ask about its end."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.domain.attempt import Attempt
from orchestrator.domain.observation import Liveness, Observation, Presence, ReplicaSighting
from trainer.contract.exit_record import ExitRecord, Outcome
from trainer.contract.failure import FailureKind, is_collateral, is_echo, is_taken_port


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
        """How many replicas it has."""
        given = self.seen.sighting.nodes
        return self.attempt.max_nodes if given is None else given

    def exits(self) -> list[ExitRecord]:
        """The exit records of the attempt, refused double starts aside, earliest first."""
        replicas = range(self.attempt.max_nodes)
        told = [record for replica, record in self.seen.exits.items() if replica in replicas]
        return sorted((one for one in told if one.outcome is not Outcome.REFUSED), key=lambda record: record.at)

    def all_succeeded(self) -> bool:
        """Enough replicas left a record of success, none another one, and no agent is alive or out of sight.

        Enough is all of them, or the least number of an elastic range: what was lost on the way was not needed.
        """
        exits = self.exits()
        if len(exits) < self.attempt.min_nodes or self._unaccounted():
            return False
        if any(seen.liveness is Liveness.ALIVE for seen in self.seen.sighting.replicas):
            return False
        return all(record.outcome is Outcome.SUCCEEDED for record in exits)

    def ended_badly(self) -> ExitRecord | None:
        """The record of the first cause: the earliest end that is no success and no mere consequence of another."""
        bad = [record for record in self.exits() if record.outcome is not Outcome.SUCCEEDED]
        return min(bad, key=lambda record: (is_consequence(record), record.at), default=None)

    def vanished(self) -> str | None:
        """Positive evidence, as a clause, that more agents are gone without a record than the group can spare."""
        gone = self.gone()
        spare = self.nodes - self.attempt.min_nodes
        if not gone or (len(gone) <= spare and self.presence is not Presence.GONE):
            return None
        return "; ".join(seen.evidence for seen in gone)

    def gone(self) -> list[ReplicaSighting]:
        """The replicas that are dead and left no record; that a second start was refused is no end of the first."""
        told = {replica for replica, end in self.seen.exits.items() if end.outcome is not Outcome.REFUSED}
        replicas = self.seen.sighting.replicas
        return [one for one in replicas if one.liveness is Liveness.DEAD and one.replica not in told]

    def lost_nodes(self) -> tuple[str, ...]:
        """Where those were, as far as anybody knows."""
        return tuple(sorted({one.node for one in self.gone() if one.node is not None}))

    def node_of(self, replica: int) -> str | None:
        return next((one.node for one in self.seen.sighting.replicas if one.replica == replica), None)

    def leftovers(self) -> bool:
        """Whether anything of the attempt runs, or may run for all we know."""
        return self.seen.sighting.leftovers or self._unaccounted()

    def _unaccounted(self) -> bool:
        """Whether there is a replica of which neither a record nor a judgement exists."""
        if self.presence in (Presence.ABSENT, Presence.GONE):
            return False
        judged = {seen.replica for seen in self.seen.sighting.replicas if seen.liveness is not Liveness.UNKNOWN}
        return any(number not in judged | self.seen.exits.keys() for number in range(self.nodes))


def is_consequence(record: ExitRecord) -> bool:
    """Whether an agent ended because another one did: it lost a peer, or the store that the peer held, or says so."""
    failure = record.failure
    if failure is None:
        return False
    return (
        is_collateral(failure)
        or is_echo(failure)
        or (failure.kind is FailureKind.RENDEZVOUS and not is_taken_port(failure))
    )
