"""Observe: gather the facts of one pass, in an order in which none is missed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from orchestrator.domain.errors import BackendUnavailable
from orchestrator.domain.job.attempt import Attempt, AttemptKey
from orchestrator.domain.job.job import JobState
from orchestrator.domain.observation.hang import suspect
from orchestrator.domain.observation.membership import Members
from orchestrator.domain.observation.node_record import Exclusion, exclude, record_begins
from orchestrator.domain.observation.observation import Liveness, Observation, Presence, Sighting, Training
from orchestrator.ports.clock import Clock
from orchestrator.ports.cluster import Backend, Journals
from orchestrator.ports.supervision import Journaled, Supervised, SupervisorReader
from orchestrator.supervisor.repeats import Repeats
from orchestrator.supervisor.roster import Roster


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What one pass saw of the cluster and of its live attempts."""

    sightings: Mapping[AttemptKey, Sighting]
    dependencies: Mapping[str, JobState]  # states of the jobs that queued jobs wait for
    exclusions: Sequence[Exclusion]  # nodes that new attempts avoid
    silence: str | None  # why the cluster does not answer; until it does, no job is admitted
    slots: int | None  # None means that the cluster has its own queue


class Observer:
    """Observes one cluster.

    It remembers what it last saw of each attempt, and since when it has listened to each one without a gap. Losing this
    costs a look at every job and delays a verdict. It starts to listen anew if more than `longest_pause_s` (the process
    was paused) or less than zero seconds (the clock was set back) lie between two passes, or if the clock was set by
    more than that within a pass.

    With `by_reports_alone`, the service reads no files of the nodes, only what agents report over the network. An
    attempt without recent reports then counts as not listened to, because the network may be at fault. A report of a
    single agent shows that the network works.
    """

    def __init__(
        self,
        cluster: str,
        store: SupervisorReader,
        backend: Backend,
        journals: Journals,
        clock: Clock,
        *,
        node_cooldown_s: float = 3600.0,
        longest_pause_s: float = 30.0,
        by_reports_alone: bool = False,
        repeats: Repeats | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.roster = Roster(cluster, store)
        self._cluster = cluster
        self._store = store
        self._backend = backend
        self._journals = journals
        self._clock = clock
        self._node_cooldown_s = node_cooldown_s
        self._longest_pause_s = longest_pause_s
        self._by_reports_alone = by_reports_alone
        self._repeats = repeats or Repeats()
        self._sightings: Mapping[AttemptKey, Sighting] = {}  # of the last pass
        self._exclusions: Sequence[Exclusion] = ()
        self._heard_since: dict[AttemptKey, datetime] = {}
        self._last_look: datetime | None = None
        self._monotonic = monotonic
        self._ahead_s = clock.now().timestamp() - monotonic()  # of the clock, against one that nobody sets
        self._was_set = False  # whether the clock was set since the last look at every job

    def observe(self) -> Facts:
        """Observe the cluster once, and wake the jobs that changed. Raises StoreUnavailable.

        The order matters: first the cluster, then the run directories. An agent writes its exit record before it
        exits, so the record of an agent that the cluster reports as gone is there to be read. If the cluster does not
        answer, its attempts are UNKNOWN.
        """
        self.roster.refresh()
        self.roster.ring(self._clock.now())
        self._notice_pause()
        live = self.roster.live()
        try:
            sightings, slots, silence = dict(self._backend.observe(live)), self._backend.slots(), None
        except BackendUnavailable as error:
            self._repeats.warn("cluster does not answer", str(error), self._clock.now(), cluster=self._cluster)
            sightings = {key: _unknown(key, str(error)) for key in live}
            slots, silence = None, str(error)
        self._compare(sightings)
        unread = self._journals.collect(live, self.roster.awake_attempts())
        # An attempt whose directory cannot be read is UNKNOWN: its exit record may be there.
        seen = sightings | {
            key: _unknown(key, f"its run directory cannot be read: {why}") for key, why in unread.items()
        }
        self.roster.wake(key.job_id for key in unread)
        self.roster.refresh()
        now = self._now()
        self._listen(seen, now)
        dependencies = self.roster.dependencies
        return Facts(
            sightings=seen,
            dependencies=self._store.states(dependencies) if dependencies else {},
            exclusions=self._exclude(now),
            silence=silence,
            slots=slots,
        )

    def look(self, each: Supervised, facts: Facts) -> Observation | None:
        """Return the observation of the job's newest attempt. None without a live attempt, or if it began after the
        cluster was observed. Raises StoreUnavailable."""
        attempt, now = each.attempt, self._now()
        if attempt is None or attempt.state.terminal or attempt.key not in facts.sightings:
            return None
        key, sighting = attempt.key, facts.sightings[attempt.key]
        if sighting.presence is Presence.UNKNOWN and attempt.not_permitted:
            # A cluster that denies the service permission to look has accepted no submission from it either.
            sighting = replace(sighting, presence=Presence.ABSENT, evidence=attempt.not_permitted)
        until = each.training.heard_until if self._by_reports_alone else None
        unheard = self._by_reports_alone and (until is None or now > until)
        if unheard:
            self._heard_since[key] = now
        since = self._heard_since.setdefault(key, now)
        hang = suspect(each.training, each.job.spec.supervise, heard_since=since, now=now)
        may_be_cut_off = hang is not None or any(one.node_unreachable for one in sighting.replicas)
        journaled = self._store.journaled(key) if may_be_cut_off else Journaled()
        return Observation(
            sighting=sighting,
            training=each.training,
            exits=each.exits,
            heard_since=since,
            unheard=unheard,
            listened_until=until,
            ranks=() if hang is None else tuple(journaled.ranks),
            missed=journaled.missed,
            members=self._read_members(attempt, each.training, sighting),
        )

    def _read_members(self, attempt: Attempt, training: Training, sighting: Sighting) -> Members:
        """Read who is in the group if it can go on without a replica, and misses one or has missed one before."""
        gone = [one.replica for one in sighting.replicas if one.liveness is not Liveness.ALIVE]
        if attempt.min_nodes == attempt.max_nodes or training.formed_at is None:
            return Members()
        return self._store.members(attempt.key, gone) if gone or training.resized_at is not None else Members()

    def _notice_pause(self) -> None:
        """Start to listen anew, and look at every job, if this process was paused or its clock was set."""
        now = self._now()
        pause_s = None if self._last_look is None else (now - self._last_look).total_seconds()
        if self._was_set or pause_s is None or not 0 <= pause_s <= self._longest_pause_s:
            self._heard_since, self._was_set = {}, False
            self.roster.wake_all()

    def _now(self) -> datetime:
        """Return the time. Start to listen anew if the clock was set since the last call.

        A long call to the cluster is no reason: what was reported meanwhile is read after it.
        """
        now = self._clock.now()
        ahead_s = now.timestamp() - self._monotonic()
        if abs(ahead_s - self._ahead_s) > self._longest_pause_s:
            self._heard_since, self._was_set = {}, True
        self._ahead_s = ahead_s
        return now

    def _listen(self, sightings: Mapping[AttemptKey, Sighting], now: datetime) -> None:
        """Remember for each attempt since when the service has listened without a gap."""
        before = self._heard_since
        self._heard_since = {
            key: now if seen.presence is Presence.UNKNOWN else before.get(key, now) for key, seen in sightings.items()
        }
        self._last_look = now

    def _compare(self, sightings: Mapping[AttemptKey, Sighting]) -> None:
        """Wake the jobs of attempts that the cluster shows differently than in the last pass."""
        before = self._sightings
        self.roster.wake(
            key.job_id for key, seen in sightings.items() if seen is not (known := before.get(key)) and seen != known
        )
        self._sightings = sightings

    def _exclude(self, now: datetime) -> Sequence[Exclusion]:
        """Return the nodes to avoid. If they have changed, wake all jobs, because each may wait for one of them."""
        since = record_begins(now, cooldown_s=self._node_cooldown_s)
        record = self._store.node_failures(self._cluster, since=since)
        found = exclude(record, now=now, cooldown_s=self._node_cooldown_s) if record else ()
        if found != self._exclusions:
            self.roster.wake_all()
        self._exclusions = found
        return found


def _unknown(key: AttemptKey, evidence: str) -> Sighting:
    return Sighting(key=key, presence=Presence.UNKNOWN, evidence=evidence)
