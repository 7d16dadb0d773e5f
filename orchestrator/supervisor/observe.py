"""Observe: gather the facts of one pass, in an order in which none is missed."""

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
from orchestrator.ports.supervision import Journaled, Supervised, SupervisorReader
from orchestrator.supervisor.repeats import Repeats


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What one pass saw: the jobs that are not at rest, and an observation of each live attempt."""

    supervised: Sequence[Supervised]
    observations: Mapping[AttemptKey, Observation]
    dependencies: Mapping[str, JobState]  # states of the jobs that queued jobs wait for
    exclusions: Sequence[Exclusion]  # nodes that new attempts avoid
    silence: str | None  # why the cluster does not answer; until it does, no job is admitted
    slots: int | None  # None means that the cluster has its own queue

    def observation(self, supervised: Supervised) -> Observation | None:
        """Return the observation of the job's newest attempt. None if the attempt has ended."""
        attempt = supervised.attempt
        if attempt is None or attempt.state.terminal:
            return None
        return self.observations.get(attempt.key)


class Observer:
    """Observes one cluster.

    It remembers only since when it has listened to each attempt without a gap. Losing that only delays a verdict. It
    starts to listen anew if more than `longest_pause_s` (the process was paused) or less than zero seconds (the clock
    was set back) lie between two passes.

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
        """Observe every job once. Raises StoreUnavailable. If the cluster does not answer, its attempts are UNKNOWN.

        The order matters: first the cluster, then the run directories. An agent writes its exit record before it
        exits, so the record of an agent that the cluster reports as gone is there to be read.
        """
        live = self._store.live(self._cluster)
        try:
            sightings, slots, silence = dict(self._backend.observe(live)), self._backend.slots(), None
        except BackendUnavailable as error:
            self._repeats.warn("cluster does not answer", str(error), self._clock.now(), cluster=self._cluster)
            sightings = {key: _unknown(key, f"cluster {self._cluster} does not answer: {error}") for key in live}
            slots, silence = None, str(error)
        # An attempt whose directory cannot be read is UNKNOWN: its exit record may be there.
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
            # A cluster that denies the service permission to look has accepted no submission from it either.
            sighting = replace(sighting, presence=Presence.ABSENT, evidence=each.attempt.not_permitted)
        hang = suspect(each.training, each.job.spec.supervise, heard_since=since, now=now)
        may_be_cut_off = hang is not None or any(one.node_unreachable for one in sighting.replicas)
        journaled = self._store.journaled(key) if may_be_cut_off else Journaled()
        return Observation(
            sighting=sighting,
            training=each.training,
            exits=each.exits,
            heard_since=since,
            unheard=self._unheard(each, now),
            ranks=() if hang is None else tuple(journaled.ranks),
            missed=journaled.missed,
        )

    def _unheard(self, each: Supervised, now: datetime) -> bool:
        return self._by_reports_alone and not each.training.heard_lately(now)

    def _listen(self, sightings: Mapping[AttemptKey, Sighting], unheard: Collection[AttemptKey], now: datetime) -> None:
        """Remember for each attempt since when the service has listened without a gap."""
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
