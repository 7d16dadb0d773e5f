"""Observe: gather the facts of one pass, in the order in which they are safe to read."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import structlog

from orchestrator.domain.attempt import AttemptKey
from orchestrator.domain.errors import BackendUnavailable
from orchestrator.domain.observation import Observation, Presence, Sighting
from orchestrator.intake import Intake
from orchestrator.ports import Backend, Supervised, SupervisorStore

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Facts:
    supervised: Sequence[Supervised]
    slots: int | None


class Observer:
    """Looks at one cluster."""

    def __init__(self, cluster: str, store: SupervisorStore, backend: Backend, intake: Intake) -> None:
        self._cluster = cluster
        self._store = store
        self._backend = backend
        self._intake = intake
        self._sightings: Mapping[AttemptKey, Sighting] = {}

    def observe(self) -> Facts:
        """Look at everything once. Raises StoreUnavailable; a silent cluster makes its attempts UNKNOWN.

        The cluster first, the run directories second: an agent writes its exit record before it goes, so whoever is
        seen gone has left a record by the time we read, if it ever will.
        """
        supervised = self._store.supervised(self._cluster)
        live = [s.attempt.key for s in supervised if s.attempt is not None and not s.attempt.state.terminal]
        self._sightings = self._look(live)
        if self._intake.collect(live):
            supervised = self._store.supervised(self._cluster)
        return Facts(supervised, self._backend.slots())

    def observation(self, supervised: Supervised) -> Observation | None:
        """What this pass saw of the job's attempt; None when that is not live or is newer than the look."""
        attempt = supervised.attempt
        if attempt is None or attempt.state.terminal or attempt.key not in self._sightings:
            return None
        return Observation(
            sighting=self._sightings[attempt.key], training=supervised.training, exits=dict(supervised.exits)
        )

    def _look(self, keys: Collection[AttemptKey]) -> Mapping[AttemptKey, Sighting]:
        try:
            return self._backend.observe(keys)
        except BackendUnavailable as error:
            log.warning("cluster does not answer", cluster=self._cluster, reason=str(error))
            evidence = f"cluster {self._cluster} does not answer: {error}"
            return {key: Sighting(key=key, presence=Presence.UNKNOWN, evidence=evidence) for key in keys}
