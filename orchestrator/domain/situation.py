"""A Situation: all that a decision may look at, and the questions that the rules ask of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from orchestrator.domain.admission import Admission
from orchestrator.domain.attempt import Attempt
from orchestrator.domain.job import Job, JobState
from orchestrator.domain.observation import Liveness, Observation, Presence
from trainer.contract.exit_record import ExitRecord, Outcome


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
        told = [record for record in self.observation.exits.values() if record.outcome is not Outcome.REFUSED]
        return sorted(told, key=lambda record: record.at)

    def all_succeeded(self) -> bool:
        """Every replica left a record of success."""
        exits = self.exits()
        return len(exits) == self._replicas() and all(record.outcome is Outcome.SUCCEEDED for record in exits)

    def ended_badly(self) -> ExitRecord | None:
        """The earliest record of another end: the first cause, as far as agents can tell."""
        return next((record for record in self.exits() if record.outcome is not Outcome.SUCCEEDED), None)

    def cannot_go_on(self) -> str | None:
        """Positive evidence, as a clause, that too few agents are left for the group; None without such evidence."""
        if self.live is None or self.observation is None:
            return None
        sighting = self.observation.sighting
        if sighting.presence is Presence.GONE:
            return sighting.evidence
        unrecorded = [
            seen
            for seen in sighting.replicas
            if seen.liveness is Liveness.DEAD and seen.replica not in self.observation.exits
        ]
        spare = self.job.spec.topology.max_nodes - self.job.spec.topology.min_nodes
        if len(unrecorded) <= spare:
            return None
        return "; ".join(seen.evidence for seen in unrecorded)

    def leftovers(self) -> bool:
        return self.observation is not None and self.observation.sighting.leftovers

    def at_rest(self) -> bool:
        return self.job.state.terminal and not self.retry_wished

    def waits_to_recover(self) -> bool:
        return self.job.state is JobState.RECOVERING and self.live is None

    def _replicas(self) -> int:
        return self.job.spec.topology.max_nodes
