"""Apply the incidents of a failure trace to the simulated cluster and store."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from orchestrator.simulator.failure_traces import RACK_NODES, Incident, IncidentKind
from orchestrator.simulator.memory_store import MemoryStore
from orchestrator.simulator.simulated_cluster import SimulatedCluster
from orchestrator.simulator.virtual_clock import SECOND, VirtualClock

_LEMON_REPAIR_US = 600 * SECOND
_NOTICE_US = 60 * SECOND


class Incidents:
    """Schedules the incidents of a trace one by one."""

    def __init__(
        self,
        trace: Iterator[Incident],
        clock: VirtualClock,
        cluster: SimulatedCluster,
        store: MemoryStore,
        repair_us: int | None,
    ) -> None:
        self.count = 0
        self._trace = trace
        self._clock = clock
        self._cluster = cluster
        self._store = store
        self._repair_us = repair_us
        self._lemon = cluster.pool.population[0]
        self._lasting_until: dict[IncidentKind, int] = {}

    def schedule_next(self) -> None:
        incident = next(self._trace)
        self._clock.at(incident.at_us, partial(self._happen, incident))

    def _happen(self, incident: Incident) -> None:
        self.count += 1
        population = self._cluster.pool.population
        place = int(incident.where * len(population))
        match incident.kind:
            case IncidentKind.NODE:
                self._fail(population[place : place + 1])
            case IncidentKind.WORKER:
                self._cluster.fail_worker(population[place])
            case IncidentKind.RACK:
                first = place // RACK_NODES * RACK_NODES
                self._fail(population[first : first + RACK_NODES])
            case IncidentKind.LEMON:
                self._cluster.fail_nodes([self._lemon], repair_us=_LEMON_REPAIR_US)
            case IncidentKind.WAVE | IncidentKind.CLUSTER_SILENT | IncidentKind.STORE_SILENT:
                self._begin(incident)
        self.schedule_next()

    def _fail(self, names: list[str]) -> None:
        self._cluster.fail_nodes(names, repair_us=self._repair_us)

    def _begin(self, incident: Incident) -> None:
        """Start an incident that lasts, or extend one of its kind."""
        end_us = incident.at_us + incident.lasts_us
        self._lasting_until[incident.kind] = max(end_us, self._lasting_until.get(incident.kind, 0))
        self._switch(incident.kind, on=True)
        if incident.kind is IncidentKind.WAVE:
            for attempt in self._cluster.running():
                attempt.preempt(_NOTICE_US, "its nodes went to a job of higher priority")
        self._clock.at(end_us, partial(self._end, incident.kind))

    def _end(self, kind: IncidentKind) -> None:
        if self._clock.now_us >= self._lasting_until[kind]:
            self._switch(kind, on=False)

    def _switch(self, kind: IncidentKind, *, on: bool) -> None:
        if kind is IncidentKind.STORE_SILENT:
            self._store.available = not on
        elif kind is IncidentKind.CLUSTER_SILENT:
            self._cluster.silent = on
        else:
            self._cluster.set_closed(on)
        self._cluster.changed = True
