"""Check and count what the supervisor does, and account for the jobs' device time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from orchestrator.domain.accounting.goodput import Bin
from orchestrator.domain.job.attempt import Attempt
from orchestrator.domain.job.job import Job, JobState
from orchestrator.ports.supervision import Change
from orchestrator.simulator.invariants import Invariants
from orchestrator.simulator.memory_tables import Tables
from orchestrator.simulator.simulated_cluster import SimulatedCluster
from orchestrator.simulator.simulated_job import devices_of
from orchestrator.simulator.virtual_clock import VirtualClock

_UNDECIDED = "undecided"  # counted like a rule if no rule matched


class Monitor:
    def __init__(self, clock: VirtualClock, cluster: SimulatedCluster, tables: Tables) -> None:
        self.invariants = Invariants(tables, cluster)
        self.decisions: Counter[str] = Counter()  # by rule
        self.restarts: Counter[str] = Counter()  # attempts followed by another one, by kind of their failure
        self._clock = clock
        self._cluster = cluster

    def follow(self, before: Job, last: Attempt | None, change: Change) -> None:
        """Count a stored change. `before` and `last` are the job and its newest attempt from before the change."""
        attempt = change.attempt
        if attempt is not None and last is not None and attempt.key != last.key:
            self.restarts["wished" if last.failure is None else last.failure.kind.value] += 1
        if before.state is not change.job.state:
            self._account_for(change.job, before.state)

    def count_undecided(self, reasons: Collection[str]) -> None:
        undecided = sum(reason.startswith("cannot continue now: the policy") for reason in reasons)
        if undecided:
            self.decisions[_UNDECIDED] += undecided

    def _account_for(self, job: Job, before: JobState) -> None:
        """Account for a job that is not training, by its state in the store."""
        now_us, real = self._clock.now_us, self._cluster.jobs[job.id]
        if job.state is JobState.QUEUED and before.terminal:
            real.device_time.reopen(now_us)
        elif job.state.terminal:
            real.device_time.close(now_us)
        elif job.state is JobState.QUEUED:
            real.device_time.enter(now_us, Bin.QUEUE)
        elif job.state is JobState.SUSPENDED:
            real.device_time.enter(now_us, Bin.IDLE)
        elif job.state is JobState.STARTING:
            real.resize(now_us, devices_of(job.spec))
            if before is JobState.QUEUED:
                real.device_time.enter(now_us, Bin.START_UP)
