"""The incidents of a trace, as they strike the cluster and the store."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from orchestrator.simulator.memory_store import MemoryStore
from orchestrator.simulator.rehearsal.agenda import SECOND, Agenda
from orchestrator.simulator.rehearsal.cluster import SimulatedCluster
from orchestrator.simulator.rehearsal.traces import RACK_NODES, Incident, Strike

_LEMON_REPAIR_US = 600 * SECOND
_NOTICE_US = 60 * SECOND


class Strikes:
    """Takes the trace's incidents one after the other."""

    def __init__(
        self,
        trace: Iterator[Incident],
        agenda: Agenda,
        cluster: SimulatedCluster,
        store: MemoryStore,
        repair_us: int | None,
    ) -> None:
        self.count = 0
        self._trace = trace
        self._agenda = agenda
        self._cluster = cluster
        self._store = store
        self._repair_us = repair_us
        self._lemon = cluster.pool.population[0]
        self._until = {Strike.WAVE: 0, Strike.CLUSTER_SILENT: 0, Strike.STORE_SILENT: 0}

    def go_on(self) -> None:
        """Enter the next incident."""
        incident = next(self._trace)
        self._agenda.at(incident.at_us, partial(self._strike, incident))

    def _strike(self, incident: Incident) -> None:
        self.count += 1
        population = self._cluster.pool.population
        place = int(incident.where * len(population))
        match incident.strike:
            case Strike.NODE:
                self._fail(population[place : place + 1])
            case Strike.RACK:
                first = place // RACK_NODES * RACK_NODES
                self._fail(population[first : first + RACK_NODES])
            case Strike.LEMON:
                self._cluster.fail_nodes([self._lemon], repair_us=_LEMON_REPAIR_US)
            case Strike.WAVE | Strike.CLUSTER_SILENT | Strike.STORE_SILENT:
                self._begin(incident)
        self.go_on()

    def _fail(self, names: list[str]) -> None:
        self._cluster.fail_nodes(names, repair_us=self._repair_us)

    def _begin(self, incident: Incident) -> None:
        """One that lasts; where it is on already, it lasts longer."""
        end_us = incident.at_us + incident.lasts_us
        self._until[incident.strike] = max(end_us, self._until[incident.strike])
        self._set(incident.strike, True)
        if incident.strike is Strike.WAVE:
            for attempt in self._cluster.running():
                attempt.preempt(_NOTICE_US, "its nodes went to a job of higher priority")
        self._agenda.at(end_us, partial(self._end, incident.strike))

    def _end(self, strike: Strike) -> None:
        if self._agenda.now_us >= self._until[strike]:
            self._set(strike, False)

    def _set(self, strike: Strike, on: bool) -> None:
        if strike is Strike.STORE_SILENT:
            self._store.available = not on
        elif strike is Strike.CLUSTER_SILENT:
            self._cluster.silent = on
        elif on:
            self._cluster.closed = True
        else:
            self._cluster.open()
        self._cluster.changed = True
