"""A Situation: all that a decision may look at."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from orchestrator.domain.admission import Admission
from orchestrator.domain.attempt import Attempt
from orchestrator.domain.job import Job
from orchestrator.domain.observation import Presence
from orchestrator.domain.watched import Watched


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """One job at one moment. `attempt` is its newest, which may have ended; `live` is there while it has not."""

    now: datetime
    job: Job
    attempt: Attempt | None
    live: Watched | None
    admission: Admission | None  # of a job that could start, or grow
    stop_timeout_s: float
    submit_timeout_s: float = 0.0  # so long after a submission nobody can tell that it did not happen

    @property
    def retry_wished(self) -> bool:
        return self.job.desired.retry_number > self.job.retries_done

    @property
    def unwanted(self) -> str | None:
        """Why its owner does not want the live attempt to go on, as a clause."""
        if self.job.desired.cancelled:
            return "cancelled by its owner"
        if self.retry_wished:
            return "its owner asked for another attempt"
        return "suspended by its owner" if self.job.desired.suspended else None

    def overdue(self, live: Watched) -> bool:
        """Whether the attempt was asked to end and has had its time."""
        since = live.attempt.stopping_since
        return since is not None and self.now - since >= timedelta(seconds=self.stop_timeout_s)

    def absent(self, live: Watched) -> bool:
        """Positive evidence that the attempt was never submitted: nothing is there, and nothing can be under way."""
        return live.presence is Presence.ABSENT and self.now >= self.look_up_at(live.attempt)

    def look_up_at(self, attempt: Attempt) -> datetime:
        """From when on a look-up tells whether the newest submission happened."""
        return (attempt.tried_at or attempt.created_at) + timedelta(seconds=self.submit_timeout_s)

    def at_rest(self) -> bool:
        return self.job.state.terminal and not self.retry_wished
