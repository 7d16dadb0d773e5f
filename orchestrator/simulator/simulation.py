"""The event loop of the simulation. Read this first.

The clock jumps to the next event. That is a failure of the trace, the end of a start-up, of a snapshot or of the
training, an owner's request, or the next pass that the supervisor wants. After each change, passes of the supervisor
run until they settle. Training between two events is a closed form (`training_run`), which costs no time.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from orchestrator.domain.accounting.goodput import Bin
from orchestrator.domain.errors import BackendUnavailable, StoreUnavailable
from orchestrator.domain.job.event import Event, EventKind
from orchestrator.domain.job.job import Desired, Job, JobState
from orchestrator.simulator.failure_traces import build_trace
from orchestrator.simulator.incidents import Incidents
from orchestrator.simulator.memory_store import MemoryStore
from orchestrator.simulator.monitor import Monitor
from orchestrator.simulator.node_pool import NodePool
from orchestrator.simulator.scenario import Scenario
from orchestrator.simulator.scripted_actions import ScriptedActions
from orchestrator.simulator.simulated_cluster import SimulatedCluster
from orchestrator.simulator.simulated_job import SimulatedJob
from orchestrator.simulator.supervision_setup import CLUSTER, build_commands, build_supervisor
from orchestrator.simulator.virtual_clock import SECOND, VirtualClock, us
from orchestrator.simulator.workload import SCRIPTED, build_jobs

_MAX_PASSES_AT_ONCE = 1000  # passes without a pause, after which the policy counts as unsettled
_AT_ONCE_US = SECOND // 10
_UNSETTLED_PAUSE_US = 60 * SECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a simulation. Bins and `total` are in device-microseconds."""

    scenario: Scenario
    lasted_us: int
    bins: Counter[Bin]
    total: int
    decisions: Counter[str]
    restarts: Counter[str]
    restarts_in_place: int
    sources: Counter[str]  # restarts that trained again, by the source of the state
    attempts: int
    states: Counter[JobState]
    faults: Counter[str]
    incidents: int
    passes: int
    events: int
    violations: list[str]


class Simulation:
    """Raises Refused for an impossible scenario."""

    def __init__(self, scenario: Scenario) -> None:
        scenario.check()
        self._scenario = scenario
        self._clock = VirtualClock()
        self._store = MemoryStore()
        pool = NodePool(scenario.node_count, scenario.spares)
        self._cluster = SimulatedCluster(self._clock, pool, gpus_per_node=scenario.gpus_per_node)
        self._monitor = Monitor(self._clock, self._cluster, self._store.tables)
        self._supervisor = build_supervisor(scenario, self._clock, self._cluster, self._store, self._monitor)
        trace = build_trace(
            scenario.trace, mtbf_us=us(scenario.mtbf_h * 3600), seed=scenario.seed, worker_share=scenario.workers_share
        )
        self._incidents = Incidents(trace, self._clock, self._cluster, self._store, scenario.repair_us)
        commands = build_commands(self._store, self._cluster, self._clock)
        self._actions = ScriptedActions(self._clock, self._cluster, commands)
        self._passes = 0
        self._passes_at_once = 0
        self._last_pass_us = -us(scenario.pass_pause_s)
        self._look_again_us: int | None = None

    def run(self) -> Result:
        """Run to the last day, or until every job has ended and no action is left."""
        for job in build_jobs(self._scenario):
            self._submit(job)
        if self._scenario.trace == "mixed":
            for template in SCRIPTED:
                for action in template.actions:
                    self._actions.schedule(template.name, action)
        self._incidents.schedule_next()
        while self._step():
            pass
        return self._close()

    def _submit(self, simulated: SimulatedJob) -> None:
        self._cluster.jobs[simulated.id] = simulated
        now = self._clock.now()
        job = Job(
            id=simulated.id,
            spec=simulated.spec,
            state=JobState.QUEUED,
            reason=f"waits for its turn on cluster {CLUSTER}",
            desired=Desired(),
            created_at=now,
            updated_at=now,
        )
        event = Event(at=now, kind=EventKind.JOB_SUBMITTED, sentence=f"submitted to cluster {CLUSTER}")
        self._store.add(job, idempotency_key=None, digest="", event=event)
        self._cluster.changed = True

    def _step(self) -> bool:
        """Jump to the next event or pass. Returns False at the end."""
        pass_us, event_us = self._pass_due_us(), self._clock.next_us
        due_us = min((at_us for at_us in (pass_us, event_us) if at_us is not None), default=None)
        if due_us is None or due_us >= self._scenario.days_us:
            self._clock.advance_to(self._scenario.days_us)
            return False
        self._clock.advance_to(due_us)
        if event_us is not None and event_us <= due_us:
            self._clock.run_due()
        else:
            self._pass()
        return bool(self._store.tables.at_work or self._actions.left)

    def _pass_due_us(self) -> int | None:
        wanted_us = self._clock.now_us if self._cluster.changed else self._look_again_us
        if wanted_us is None:
            return None
        return max(wanted_us, self._clock.now_us, self._last_pass_us + us(self._scenario.pass_pause_s))

    def _pass(self) -> None:
        now_us = self._clock.now_us
        at_once = now_us - self._last_pass_us <= _AT_ONCE_US
        self._passes_at_once = self._passes_at_once + 1 if at_once else 0
        self._last_pass_us, self._cluster.changed = now_us, False
        self._passes += 1
        try:
            look_again_at = self._supervisor.reconcile()
        except (StoreUnavailable, BackendUnavailable):
            look_again_at = None  # the end of the outage is an event
        self._look_again_us = None if look_again_at is None else self._clock.us_at(look_again_at)
        if self._passes_at_once > _MAX_PASSES_AT_ONCE:
            self._monitor.invariants.add("the policy does not settle")
            self._passes_at_once, self._cluster.changed = 0, False
            self._look_again_us = now_us + _UNSETTLED_PAUSE_US

    def _close(self) -> Result:
        jobs = list(self._cluster.jobs.values())
        for job in jobs:
            self._close_job(job)
        tables, monitor = self._store.tables, self._monitor
        return Result(
            scenario=self._scenario,
            lasted_us=self._clock.now_us,
            bins=sum((job.device_time.bins for job in jobs), Counter()),
            total=sum(job.device_time.total for job in jobs),
            decisions=monitor.decisions,
            restarts=monitor.restarts,
            restarts_in_place=sum(job.restarts_in_place for job in jobs),
            sources=sum((job.sources for job in jobs), Counter()),
            attempts=len(tables.attempts),
            states=Counter(job.state for job in tables.jobs.values()),
            faults=sum((job.faults for job in jobs), Counter()),
            incidents=self._incidents.count,
            passes=self._passes,
            events=len(tables.events),
            violations=self._violations(),
        )

    def _close_job(self, job: SimulatedJob) -> None:
        time, attempt = job.device_time, self._cluster.attempt_of(job.id)
        if not time.closed:
            if attempt is not None:
                attempt.close()
            time.close(self._clock.now_us)
        if time.bins.total() != time.total:
            self._monitor.invariants.add(f"{job.id}: its bins add up to {time.bins.total()}, not {time.total}")

    def _violations(self) -> list[str]:
        invariants = self._monitor.invariants
        more = [f"and {invariants.uncollected} more"] if invariants.uncollected else []
        return [*invariants.violations, *self._cluster.breaches, *more]
