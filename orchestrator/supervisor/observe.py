"""Observe: gather the facts of one pass, in the order in which they are safe to read."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from orchestrator.domain.errors import BackendUnavailable
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.job.job import JobState
from orchestrator.domain.observation.hang import suspect
from orchestrator.domain.observation.node_record import Exclusion, exclude, record_begins
from orchestrator.domain.observation.observation import Observation, Presence, Sighting
from orchestrator.domain.queueing.admission import dependencies_of
from orchestrator.ports.clock import Clock
from orchestrator.ports.cluster import Backend, Journals
from orchestrator.ports.supervision import Journalled, Supervised, SupervisorReader
from orchestrator.supervisor.repeats import Repeats


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What one pass saw: the jobs that are not at rest, and of each live attempt what the cluster says."""

    supervised: Sequence[Supervised]
    observations: Mapping[AttemptKey, Observation]
    dependencies: Mapping[str, JobState]  # of the jobs that queued ones wait for
    exclusions: Sequence[Exclusion]  # nodes that new attempts avoid
    silence: str | None  # why the cluster does not answer; while that is so, nobody is admitted
    slots: int | None  # None: the cluster queues by itself

    def observation(self, supervised: Supervised) -> Observation | None:
        """What was seen of the job's attempt; None when that is not live."""
        attempt = supervised.attempt
        if attempt is None or attempt.state.terminal:
            return None
        return self.observations.get(attempt.key)


class Observer:
    """Looks at one cluster. What it remembers is since when it has been listening; to forget that delays a verdict.

    A pass that comes later than `longest_pause_s` after the last one, or before it: the process slept, or its clock was
    set back, and it began to listen anew.
    `by_reports_alone`: nothing that its nodes write is read here. An attempt that does not report is then not listened
    to: that nobody hears it may be the road's fault. One agent that is heard shows that the road is open.
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
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._backend = backend
        self._journals = journals
        self._clock = clock
        self._node_cooldown_s = node_cooldown_s
        self._longest_pause_s = longest_pause_s
        self._by_reports_alone = by_reports_alone
        self._repeats = repeats or Repeats()
        self._heard_since: dict[AttemptKey, datetime] = {}
        self._last_look: datetime | None = None

    def observe(self) -> Facts:
        """Look at everything once. Raises StoreUnavailable; a silent cluster makes its attempts UNKNOWN.

        The cluster first, the run directories second: an agent writes its exit record before it goes, so whoever is
        seen gone has left a record by the time we read, if it ever will.
        """
        live = self._store.live(self._cluster)
        try:
            sightings, slots, silence = dict(self._backend.observe(live)), self._backend.slots(), None
        except BackendUnavailable as error:
            self._repeats.warn("cluster does not answer", str(error), self._clock.now(), cluster=self._cluster)
            sightings = {key: _unknown(key, f"cluster {self._cluster} does not answer: {error}") for key in live}
            slots, silence = None, str(error)
        # Attempts whose directory cannot be read are UNKNOWN: their last word may stand there.
        for key, reason in self._journals.collect(live).items():
            sightings[key] = _unknown(key, f"its run directory cannot be read: {reason}")
        supervised = self._store.supervised(self._cluster)
        now = self._clock.now()
        unheard = {each.attempt.key for each in supervised if each.attempt is not None and self._unheard(each, now)}
        self._listen(sightings, unheard, now)
        dependencies = dependencies_of([each.job for each in supervised])
        return Facts(
            supervised=supervised,
            observations=dict(self._observations(supervised, sightings, now)),
            dependencies=self._store.states(dependencies) if dependencies else {},
            exclusions=self._exclusions(now),
            silence=silence,
            slots=slots,
        )

    def _observations(
        self, supervised: Sequence[Supervised], sightings: Mapping[AttemptKey, Sighting], now: datetime
    ) -> Sequence[tuple[AttemptKey, Observation]]:
        return [
            (each.attempt.key, self._observation(each, sightings[each.attempt.key], now))
            for each in supervised
            if each.attempt is not None and each.attempt.key in sightings
        ]

    def _observation(self, each: Supervised, sighting: Sighting, now: datetime) -> Observation:
        key, since = sighting.key, self._heard_since[sighting.key]
        if sighting.presence is Presence.UNKNOWN and each.attempt is not None and each.attempt.not_permitted:
            # Whoever does not let us look has not let us submit it either: no submission of it was taken.
            sighting = replace(sighting, presence=Presence.ABSENT, evidence=each.attempt.not_permitted)
        hang = suspect(each.training, each.job.spec.supervise, heard_since=since, now=now)
        may_be_cut_off = hang is not None or any(one.node_unreachable for one in sighting.replicas)
        journalled = self._store.journalled(key) if may_be_cut_off else Journalled()
        return Observation(
            sighting=sighting,
            training=each.training,
            exits=each.exits,
            heard_since=since,
            unheard=self._unheard(each, now),
            ranks=() if hang is None else tuple(journalled.ranks),
            missed=journalled.missed,
        )

    def _unheard(self, each: Supervised, now: datetime) -> bool:
        return self._by_reports_alone and not each.training.heard_lately(now)

    def _listen(self, sightings: Mapping[AttemptKey, Sighting], unheard: Collection[AttemptKey], now: datetime) -> None:
        """Remember of each attempt since when nothing of it can have escaped us."""
        pause_s = None if self._last_look is None else (now - self._last_look).total_seconds()
        slept = pause_s is None or not 0 <= pause_s <= self._longest_pause_s
        before = {} if slept else self._heard_since
        self._heard_since = {
            key: now if seen.presence is Presence.UNKNOWN or key in unheard else before.get(key, now)
            for key, seen in sightings.items()
        }
        self._last_look = now

    def _exclusions(self, now: datetime) -> Sequence[Exclusion]:
        since = record_begins(now, cooldown_s=self._node_cooldown_s)
        record = self._store.node_failures(self._cluster, since=since)
        return exclude(record, now=now, cooldown_s=self._node_cooldown_s) if record else ()


def _unknown(key: AttemptKey, evidence: str) -> Sighting:
    return Sighting(key=key, presence=Presence.UNKNOWN, evidence=evidence)
