"""The rehearsal: from event to event. Read this first.

The clock jumps to the next thing that happens: a failure of the trace, the end of a start-up, of a stall or of the
training, a request, or the moment at which the last pass wanted to look again. Where anything changed, a pass follows,
and passes follow each other until they settle. Training in between costs nothing: it is a closed form (`training`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial

from orchestrator.commands.checks import Checks
from orchestrator.commands.job_commands import Commands
from orchestrator.configured_cluster import Cluster
from orchestrator.domain.errors import BackendUnavailable, Refused, StoreUnavailable
from orchestrator.domain.job.event import Event, EventKind
from orchestrator.domain.job.job import Desired, Job, JobState
from orchestrator.domain.job.launch_plan import build_plan
from orchestrator.simulator.memory_store import MemoryStore
from orchestrator.simulator.rehearsal.agenda import Agenda, since_beginning_us, us
from orchestrator.simulator.rehearsal.cluster import SimulatedCluster
from orchestrator.simulator.rehearsal.deeds import Deeds
from orchestrator.simulator.rehearsal.goodput import Bin, Ledger
from orchestrator.simulator.rehearsal.invariants import Invariants
from orchestrator.simulator.rehearsal.job import SimulatedJob, Timing
from orchestrator.simulator.rehearsal.nodes import NodePool
from orchestrator.simulator.rehearsal.scenario import (
    CAST_NODES,
    HEARTBEAT_S,
    Entry,
    Scenario,
    build_cast,
    build_entries,
)
from orchestrator.simulator.rehearsal.strikes import Strikes
from orchestrator.simulator.rehearsal.supervision import CLUSTER, SITE, Tally, build_supervisor, ports_of
from orchestrator.simulator.rehearsal.traces import build_trace
from orchestrator.simulator.rehearsal.training import Cadence

_CIRCLES = 1000  # passes at one moment, or each wanted at once by the one before: the policy does not settle
_AT_ONCE_US = 100_000
_CIRCLE_PAUSE_US = 60_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What came of a rehearsal. Bins and `whole` in device-microseconds."""

    scenario: Scenario
    lasted_us: int
    bins: Counter[Bin]
    whole: int
    tally: Tally
    in_place: int
    states: Counter[JobState]
    faults: Counter[str]
    incidents: int
    passes: int
    events: int
    violations: list[str]


class Rehearsal:
    """Raises Refused for a scenario that cannot be."""

    def __init__(self, scenario: Scenario) -> None:
        scenario.check()
        self._scenario = scenario
        self._agenda = agenda = Agenda()
        self._store = MemoryStore()
        pool = NodePool(scenario.node_count, scenario.spares)
        self._cluster = SimulatedCluster(agenda, pool, gpus_per_node=scenario.gpus_per_node)
        slots = pool.up * scenario.gpus_per_node
        self._invariants = Invariants(self._store.tables, self._cluster, slots=slots)
        self._tally = Tally()
        self._reconciler = build_supervisor(
            scenario, agenda, self._cluster, self._store, self._invariants, self._tally, self._on_state
        )
        self._passes = 0
        self._last_pass_us = -us(scenario.pass_pause_s)
        self._look_again_us: int | None = None
        self._circles = 0
        trace = build_trace(scenario.trace, mtbf_us=us(scenario.mtbf_h * 3600), seed=scenario.seed)
        # Where spares are unlimited, another node stands in a failed one's place: it must not come back beside that.
        repair_us = None if scenario.spares is None else us(scenario.repair_h * 3600)
        self._strikes = Strikes(trace, agenda, self._cluster, self._store, repair_us)
        self._deeds = Deeds(agenda, self._cluster, self._commands())
        self._fill()

    def run(self) -> Account:
        """To the last day, or until every job has ended and nothing is requested any more."""
        while self._step():
            pass
        return self._close()

    def _fill(self) -> None:
        scenario, nodes = self._scenario, self._scenario.node_count
        entries: list[Entry] = []
        if scenario.trace == "mixed":
            nodes -= CAST_NODES
            if nodes < 1:
                least = (CAST_NODES + 1) * scenario.gpus_per_node
                raise Refused(f"--trace mixed plays with {CAST_NODES} nodes of its own: --gpus {least} is the least")
            entries, deeds = build_cast(scenario)
            for deed in deeds:
                self._deeds.plan(deed)
        for entry in [*build_entries(scenario, nodes), *entries]:
            self._agenda.at(entry.arrives_us, partial(self._submit, entry))
        self._strikes.go_on()

    def _submit(self, entry: Entry) -> None:
        scenario, agenda, now = self._scenario, self._agenda, self._agenda.now()
        cadence = Cadence(us(scenario.interval_s(entry.devices)), us(scenario.snapshot_stall_s))
        timing = Timing(
            restart_us=us(scenario.restart_s),
            in_place_us=us(scenario.restart_in_place_s),
            step_us=us(scenario.step_s),
            tell_us=us(HEARTBEAT_S / 4),
        )
        self._cluster.jobs[entry.id] = SimulatedJob(
            id=entry.id,
            devices=entry.devices,
            work=entry.work,
            cadence=cadence,
            timing=timing,
            ledger=Ledger(agenda.now_us, entry.devices),
            crash_at=entry.crash_at,
        )
        job = Job(
            id=entry.id,
            spec=entry.spec,
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
        """Jump to what comes next, an event or a pass. False at the end."""
        pass_us, event_us = self._pass_due_us(), self._agenda.next_us
        due = [at_us for at_us in (pass_us, event_us) if at_us is not None]
        if not due or min(due) >= self._scenario.days_us:
            self._agenda.jump(self._scenario.days_us)
            return False
        self._agenda.jump(min(due))
        if event_us is not None and event_us <= self._agenda.now_us:
            self._agenda.run_due()
        else:
            self._pass()
        return bool(self._store.tables.at_work or self._deeds.left)

    def _pass_due_us(self) -> int | None:
        if self._cluster.changed:
            wanted_us: int | None = self._agenda.now_us
        else:
            wanted_us = self._look_again_us
        if wanted_us is None:
            return None
        return max(wanted_us, self._agenda.now_us, self._last_pass_us + us(self._scenario.pass_pause_s))

    def _pass(self) -> None:
        now_us = self._agenda.now_us
        at_once = now_us - self._last_pass_us <= _AT_ONCE_US
        self._circles = self._circles + 1 if at_once else 0
        self._last_pass_us, self._cluster.changed = now_us, False
        self._passes += 1
        try:
            look_again_at = self._reconciler.reconcile()
        except (StoreUnavailable, BackendUnavailable):
            look_again_at = None  # what ends the silence is an event
        self._look_again_us = None if look_again_at is None else since_beginning_us(look_again_at)
        if self._circles > _CIRCLES:
            self._invariants.say("the policy goes in circles")
            self._circles, self._cluster.changed = 0, False
            self._look_again_us = now_us + _CIRCLE_PAUSE_US

    def _on_state(self, job_id: str, before: JobState, after: JobState) -> None:
        """Where a job that does not train spends its time, as the store has it."""
        now_us, ledger = self._agenda.now_us, self._cluster.jobs[job_id].ledger
        if after is JobState.QUEUED and before.terminal:
            ledger.reopen(now_us)
        elif after.terminal:
            ledger.close(now_us)
        elif after is JobState.QUEUED:
            ledger.enter(now_us, Bin.QUEUE)
        elif after is JobState.SUSPENDED:
            ledger.enter(now_us, Bin.IDLE)
        elif after is JobState.STARTING:
            self._resize(job_id)
            if before is JobState.QUEUED:
                ledger.enter(now_us, Bin.START_UP)

    def _resize(self, job_id: str) -> None:
        job, entry = self._cluster.jobs[job_id], self._store.tables.jobs[job_id]
        devices = entry.spec.topology.max_nodes * self._scenario.gpus_per_node
        if devices != job.devices:
            job.ledger.resize(self._agenda.now_us, devices)
            job.devices = devices

    def _close(self) -> Account:
        bins: Counter[Bin] = Counter()
        faults: Counter[str] = Counter()
        jobs, now_us = list(self._cluster.jobs.values()), self._agenda.now_us
        whole = in_place = 0
        for job in jobs:
            attempt = self._cluster.attempt_of(job.id)
            if not job.ledger.closed:
                if attempt is not None:
                    attempt.close()
                job.ledger.close(now_us)
            if job.ledger.bins.total() != job.ledger.whole:
                self._invariants.say(f"{job.id}: its bins hold {job.ledger.bins.total()} of {job.ledger.whole}")
            bins += job.ledger.bins
            faults += job.faults
            whole += job.ledger.whole
            in_place += job.in_place
        self._tally.attempts = len(self._store.tables.attempts)
        said, unsaid = [*self._invariants.sentences, *self._cluster.breaches], self._invariants.unsaid
        return Account(
            scenario=self._scenario,
            lasted_us=now_us,
            bins=bins,
            whole=whole,
            tally=self._tally,
            in_place=in_place,
            states=Counter(job.state for job in self._store.tables.jobs.values()),
            faults=faults,
            incidents=self._strikes.count,
            passes=self._passes,
            events=len(self._store.tables.events),
            violations=[*said, f"and {unsaid} more"] if unsaid else said,
        )

    def _commands(self) -> Commands:
        cluster = Cluster(
            name=CLUSTER,
            kind="local",
            backend=self._cluster,
            job_root=SITE.root,
            plan=lambda job, attempt: build_plan(job, attempt, SITE),
            ports=ports_of(self._scenario),
            gpus=self._scenario.gpus_per_node,
        )
        checks = Checks(jobs=self._store, clusters={CLUSTER: cluster})
        return Commands(self._store, self._store, checks, self._agenda, lambda: None)
