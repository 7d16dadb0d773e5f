"""A Situation: all that a decision may look at, and the questions that the rules ask of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from orchestrator.domain.admission import Admission
from orchestrator.domain.attempt import Attempt
from orchestrator.domain.job import Job, JobState
from orchestrator.domain.observation import Liveness, Observation, Presence
from trainer.contract.exit_record import ExitRecord, Outcome
from trainer.contract.failure import FailureKind, is_collateral, is_taken_port


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """One job at one moment. `observation` is of `attempt` and None when that has ended."""

    now: datetime
    job: Job
    attempt: Attempt | None
    observation: Observation | None
    admission: Admission | None  # of a queued job
    stop_timeout_s: float

    @property
    def live(self) -> Attempt | None:
        return self.attempt if self.attempt is not None and not self.attempt.state.terminal else None

    @property
    def retry_wished(self) -> bool:
        return self.job.desired.retry_number > self.job.retries_done

    @property
    def stop_overdue(self) -> bool:
        since = None if self.live is None else self.live.stopping_since
        return since is not None and self.now - since >= timedelta(seconds=self.stop_timeout_s)

    def exits(self) -> list[ExitRecord]:
        """The exit records of the live attempt, refused double starts aside, earliest first."""
        if self.live is None or self.observation is None:
            return []
        replicas = range(self.live.max_nodes)
        told = [record for replica, record in self.observation.exits.items() if replica in replicas]
        return sorted((one for one in told if one.outcome is not Outcome.REFUSED), key=lambda record: record.at)

    def all_succeeded(self) -> bool:
        """Enough replicas left a record of success, none another one, and no agent is alive or out of sight.

        Enough is all of them, or the least number of an elastic range: what was lost on the way was not needed.
        """
        exits = self.exits()
        if self.live is None or self.observation is None or len(exits) < self.live.min_nodes:
            return False
        replicas = self.observation.sighting.replicas
        if self._unaccounted() or any(seen.liveness is Liveness.ALIVE for seen in replicas):
            return False
        return all(record.outcome is Outcome.SUCCEEDED for record in exits)

    def ended_badly(self) -> ExitRecord | None:
        """The record of the first cause: the earliest end that is no success and no mere consequence of another."""
        bad = [record for record in self.exits() if record.outcome is not Outcome.SUCCEEDED]
        return min(bad, key=lambda record: (is_consequence(record), record.at), default=None)

    def vanished(self) -> str | None:
        """Positive evidence, as a clause, that more agents are gone without a record than the group can spare."""
        if self.live is None or self.observation is None:
            return None
        sighting = self.observation.sighting
        gone = [
            seen
            for seen in sighting.replicas
            if seen.liveness is Liveness.DEAD and seen.replica not in self.observation.exits
        ]
        spare = self.live.max_nodes - self.live.min_nodes
        if not gone or (len(gone) <= spare and sighting.presence is not Presence.GONE):
            return None
        return "; ".join(seen.evidence for seen in gone)

    def leftovers(self) -> bool:
        """Whether anything of the attempt runs, or may run for all we know."""
        if self.observation is None:
            return False
        return self.observation.sighting.leftovers or self._unaccounted()

    def _unaccounted(self) -> bool:
        """Whether there is a replica of which neither a record nor a judgement exists."""
        if self.live is None or self.observation is None:
            return False
        sighting = self.observation.sighting
        if sighting.presence in (Presence.ABSENT, Presence.GONE):
            return False
        judged = {seen.replica for seen in sighting.replicas if seen.liveness is not Liveness.UNKNOWN}
        return any(number not in judged | self.observation.exits.keys() for number in range(self.live.max_nodes))

    def at_rest(self) -> bool:
        return self.job.state.terminal and not self.retry_wished

    def waits_to_recover(self) -> bool:
        return self.job.state is JobState.RECOVERING and self.live is None


def is_consequence(record: ExitRecord) -> bool:
    """Whether an agent ended because another one did: it lost a peer, or the store that the peer held."""
    failure = record.failure
    if failure is None:
        return False
    return is_collateral(failure) or (failure.kind is FailureKind.RENDEZVOUS and not is_taken_port(failure))
