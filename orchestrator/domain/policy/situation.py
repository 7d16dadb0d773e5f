"""A Situation: everything that the rules read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from orchestrator.domain.job.attempt import Attempt, AttemptState
from orchestrator.domain.job.job import Job
from orchestrator.domain.observation.node_record import Exclusion
from orchestrator.domain.observation.observation import Liveness, Presence
from orchestrator.domain.observation.watched import Watched
from orchestrator.domain.queueing.admission import Admission

# What the owner requested, as clauses.
CANCELLED, SUSPENDED = "cancelled by its owner", "suspended by its owner"
RETRY_REQUESTED = "its owner requested a retry"
# Pauses between submissions that the cluster does not permit.
_SHORTEST_PAUSE, _LONGEST_PAUSE = timedelta(seconds=10), timedelta(seconds=60)


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """One job at one time. `attempt` is its newest. `live` is None once that attempt has ended."""

    now: datetime
    job: Job
    attempt: Attempt | None
    live: Watched | None
    admission: Admission | None  # None for a job that can neither start nor grow
    stop_timeout_s: float
    submit_timeout_s: float = 0.0  # how long an unanswered submission may still take effect
    repeat_s: float | None = None  # the pause before a repeated submission, if the cluster accepts a name only once
    exclusions: tuple[Exclusion, ...] = ()  # nodes that the next attempt avoids
    silence: str | None = None  # why the cluster does not answer, as a clause

    @property
    def avoided(self) -> frozenset[str]:
        return frozenset(each.node for each in self.exclusions)

    @property
    def unwanted(self) -> str | None:
        """The owner's request that ends the live attempt, as a clause."""
        if self.job.desired.cancelled:
            return CANCELLED
        if self.job.retry_requested:
            return RETRY_REQUESTED
        return SUSPENDED if self.job.desired.suspended else None

    @property
    def disturbed(self) -> bool:
        """Whether a fault was requested of this attempt. Its failures are then no evidence against a node."""
        chaos = self.job.desired.chaos
        return chaos is not None and self.attempt is not None and chaos.attempt == self.attempt.key.number

    def room(self, live: Watched) -> int | None:
        """Return how many nodes an elastic job could have if it started now. None if nobody can tell."""
        spare, replicas = live.seen.sighting.spare_nodes, live.seen.sighting.replicas
        if spare is None:
            return None if self.admission is None else self.admission.nodes
        held = {one.node for one in replicas if one.liveness is Liveness.ALIVE and one.node is not None}
        return min(self.job.spec.topology.max_nodes, len((held | set(spare)) - self.avoided))

    def overdue(self, live: Watched) -> bool:
        """Whether the stop timeout has passed. A clock that is set back does not extend it."""
        since = live.attempt.stopping_since
        return since is not None and abs(self.now - since) >= timedelta(seconds=self.stop_timeout_s)

    def absent(self, live: Watched) -> bool:
        """Whether the attempt was certainly never submitted, and no submission can still take effect."""
        return live.presence is Presence.ABSENT and self.now >= self.look_up_at(live.attempt)

    def look_up_at(self, attempt: Attempt) -> datetime:
        """Return when a look-up can tell whether the newest submission took effect: at once if none was permitted."""
        if attempt.not_permitted is not None:
            return attempt.created_at
        return (attempt.tried_at or attempt.created_at) + timedelta(seconds=self.submit_timeout_s)

    def submit_again_at(self, attempt: Attempt) -> datetime:
        """Return when an attempt that the cluster does not list may be submitted again, even if an earlier submission
        is still under way. The pause grows as long as the cluster permits none."""
        if attempt.not_permitted is not None:
            tried_at = attempt.tried_at or attempt.created_at
            pause = min(_LONGEST_PAUSE, max(_SHORTEST_PAUSE, tried_at - attempt.created_at))
            return tried_at + pause
        if self.repeat_s is None:
            return self.look_up_at(attempt)
        return (attempt.tried_at or attempt.created_at) + timedelta(seconds=min(self.repeat_s, self.submit_timeout_s))

    @property
    def steady(self) -> bool:
        """Whether every change would show: in an event, in what the cluster shows, or in the queue.

        False while an attempt starts or ends, or cannot be observed fully.
        """
        if self.silence is not None:
            return False
        live = self.live
        if live is None or live.presence is Presence.PENDING:
            return live is None or live.attempt.state is AttemptState.PENDING
        trains = live.attempt.state is AttemptState.RUNNING and live.seen.training.formed_at is not None
        whole = all(one.liveness is Liveness.ALIVE for one in live.seen.sighting.replicas) and not live.seen.exits
        return live.presence is Presence.RUNNING and trains and whole and not live.seen.unheard
