"""A Situation: all that a decision may look at."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from orchestrator.domain.job.attempt import Attempt
from orchestrator.domain.job.job import Job
from orchestrator.domain.observation.node_record import Exclusion
from orchestrator.domain.observation.observation import Liveness, Presence
from orchestrator.domain.observation.watched import Watched
from orchestrator.domain.queueing.admission import Admission

# Between submissions that the cluster does not permit.
_SHORTEST_PAUSE, _LONGEST_PAUSE = timedelta(seconds=10), timedelta(seconds=60)


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
    repeat_s: float | None = None  # so long after it, it may be made again, by a cluster that takes a name once
    exclusions: tuple[Exclusion, ...] = ()  # of nodes that its next attempt would not run on
    silence: str | None = None  # why the cluster does not answer, as a clause; None: it does

    @property
    def avoided(self) -> frozenset[str]:
        return frozenset(each.node for each in self.exclusions)

    @property
    def retry_requested(self) -> bool:
        return self.job.desired.retry_number > self.job.retries_done

    @property
    def unwanted(self) -> str | None:
        """Why its owner does not want the live attempt to go on, as a clause."""
        if self.job.desired.cancelled:
            return "cancelled by its owner"
        if self.retry_requested:
            return "its owner asked for another attempt"
        return "suspended by its owner" if self.job.desired.suspended else None

    @property
    def disturbed(self) -> bool:
        """Whether a fault was requested of this very attempt: its troubles are evidence against no node."""
        chaos = self.job.desired.chaos
        return chaos is not None and self.attempt is not None and chaos.attempt == self.attempt.key.number

    def room(self, live: Watched) -> int | None:
        """How many nodes an elastic job could have if it began now; None: nobody can tell."""
        spare, replicas = live.seen.sighting.spare_nodes, live.seen.sighting.replicas
        if spare is None:
            return None if self.admission is None else self.admission.nodes
        held = {one.node for one in replicas if one.liveness is Liveness.ALIVE and one.node is not None}
        return min(self.job.spec.topology.max_nodes, len((held | set(spare)) - self.avoided))

    def overdue(self, live: Watched) -> bool:
        """Whether the attempt was asked to end and has had its time. A clock that was set back gives it no more."""
        since = live.attempt.stopping_since
        return since is not None and abs(self.now - since) >= timedelta(seconds=self.stop_timeout_s)

    def absent(self, live: Watched) -> bool:
        """Positive evidence that the attempt was never submitted: nothing is there, and nothing can be under way."""
        return live.presence is Presence.ABSENT and self.now >= self.look_up_at(live.attempt)

    def look_up_at(self, attempt: Attempt) -> datetime:
        """From when on a look-up tells whether the newest submission happened: at once, where none was permitted."""
        if attempt.not_permitted is not None:
            return attempt.created_at
        return (attempt.tried_at or attempt.created_at) + timedelta(seconds=self.submit_timeout_s)

    def submit_again_at(self, attempt: Attempt) -> datetime:
        """From when on an attempt that does not show may be submitted again, whether an earlier submission is under way
        or not. As long as no submission was permitted, the pause grows."""
        if attempt.not_permitted is not None:
            tried_at = attempt.tried_at or attempt.created_at
            pause = min(_LONGEST_PAUSE, max(_SHORTEST_PAUSE, tried_at - attempt.created_at))
            return tried_at + pause
        if self.repeat_s is None:
            return self.look_up_at(attempt)
        return (attempt.tried_at or attempt.created_at) + timedelta(seconds=min(self.repeat_s, self.submit_timeout_s))

    def at_rest(self) -> bool:
        return self.job.state.terminal and not self.retry_requested
