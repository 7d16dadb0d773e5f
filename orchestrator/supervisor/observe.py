"""Observe: gather the facts of one pass, in the order in which they are safe to read."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import structlog

from orchestrator.domain.attempt import AttemptKey
from orchestrator.domain.errors import BackendUnavailable, StoreUnavailable
from orchestrator.domain.observation import Observation, Presence, Sighting
from orchestrator.intake import Intake
from orchestrator.ports import Backend, Supervised, SupervisorStore

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Facts:
    """What one pass saw: the jobs that are not at rest, and of each live attempt what the cluster says."""

    supervised: Sequence[Supervised]
    sightings: Mapping[AttemptKey, Sighting]
    answers: bool  # whether the cluster answers at all; while it does not, nobody is admitted
    slots: int | None  # None: the cluster queues by itself

    def observation(self, supervised: Supervised) -> Observation | None:
        """What was seen of the job's attempt; None when that is not live."""
        attempt = supervised.attempt
        if attempt is None or attempt.state.terminal or attempt.key not in self.sightings:
            return None
        return Observation(
            sighting=self.sightings[attempt.key], training=supervised.training, exits=dict(supervised.exits)
        )


class Observer:
    """Looks at one cluster."""

    def __init__(self, cluster: str, store: SupervisorStore, backend: Backend, intake: Intake) -> None:
        self._cluster = cluster
        self._store = store
        self._backend = backend
        self._intake = intake

    def observe(self) -> Facts:
        """Look at everything once. Raises StoreUnavailable; a silent cluster makes its attempts UNKNOWN.

        The cluster first, the run directories second: an agent writes its exit record before it goes, so whoever is
        seen gone has left a record by the time we read, if it ever will.
        """
        supervised = self._store.supervised(self._cluster)
        live = [s.attempt.key for s in supervised if s.attempt is not None and not s.attempt.state.terminal]
        try:
            sightings, slots, answers = dict(self._backend.observe(live)), self._backend.slots(), True
        except BackendUnavailable as error:
            log.warning("cluster does not answer", cluster=self._cluster, reason=str(error))
            evidence = f"cluster {self._cluster} does not answer: {error}"
            sightings = {key: Sighting(key=key, presence=Presence.UNKNOWN, evidence=evidence) for key in live}
            slots, answers = None, False
        unread = dict(self._read(live))
        supervised = self._store.supervised(self._cluster) if live else supervised
        return Facts(supervised, sightings | unread, answers, slots)

    def _read(self, keys: Collection[AttemptKey]) -> Iterator[tuple[AttemptKey, Sighting]]:
        """Take in the run directories. Attempts whose cannot be read are UNKNOWN: their last word may stand there."""
        for key in keys:
            try:
                self._intake.collect(key)
            except StoreUnavailable:
                raise
            except Exception as error:
                # An edge of the loop: whatever one job's files hold, its neighbours are supervised.
                log.exception("run directory cannot be read", attempt=str(key))
                evidence = f"its run directory cannot be read: {error}"
                yield key, Sighting(key=key, presence=Presence.UNKNOWN, evidence=evidence)
