"""Invariants of every change that the supervisor writes, whatever fails."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.domain.job.attempt import TRANSITIONS as ATTEMPT_EDGES
from orchestrator.domain.job.attempt import Attempt
from orchestrator.domain.job.event import EventKind
from orchestrator.domain.job.job import TRANSITIONS as JOB_EDGES
from orchestrator.domain.job.job import Job
from orchestrator.ports.supervision import Change
from orchestrator.simulator.memory_tables import Tables
from orchestrator.simulator.simulated_cluster import SimulatedCluster
from trainer.contract.failure import FailureKind

_MAX_VIOLATIONS = 100  # further violations are only counted


def find_wrong_transitions(job: Job, attempt: Attempt | None, change: Change) -> Iterator[str]:
    """Find state changes that are not in the tables or have no event. `job` and `attempt` are the old ones."""
    after = change.job
    if after.state is not job.state:
        if after.state not in JOB_EDGES[job.state]:
            yield f"{job.id} makes an invalid transition: {job.state} -> {after.state}"
        states = [event.evidence["state"] for event in change.events if event.kind == EventKind.JOB_STATE]
        if after.state.value not in states:
            yield f"{job.id} became {after.state} without an event"
    if change.attempt is not None:
        yield from _find_wrong_attempt(attempt, change.attempt, change)


def _find_wrong_attempt(before: Attempt | None, after: Attempt, change: Change) -> Iterator[str]:
    if before is not None and before.state.terminal:
        yield f"{after.key} has ended {before.state} but changes"
    if before is not None and before.state is after.state:
        return
    if before is not None and after.state not in ATTEMPT_EDGES[before.state]:
        yield f"{after.key} makes an invalid transition: {before.state} -> {after.state}"
    mine = [event for event in change.events if event.attempt == after.key.number]
    states = [event.evidence["state"] for event in mine if event.kind == EventKind.ATTEMPT_STATE]
    if after.state.value not in states:
        yield f"{after.key} became {after.state} without an event"


def find_wrong_start(last: Attempt | None, new: Attempt) -> Iterator[str]:
    """Find what is wrong with the start of an attempt. `last` is the job's previous attempt."""
    if new.key.number != (0 if last is None else last.key.number) + 1:
        yield f"{new.key} is out of order"
    if last is not None and not last.state.terminal:
        yield f"{new.key} starts while the last attempt is live"


class Invariants:
    """Collects violations."""

    def __init__(self, tables: Tables, cluster: SimulatedCluster) -> None:
        self.violations: list[str] = []
        self.uncollected = 0
        self._tables = tables
        self._cluster = cluster
        self._slots = cluster.slots()
        self._promised = 0  # devices of live attempts

    def check(self, change: Change) -> None:
        """Check a change before it is stored."""
        job, after = self._tables.jobs[change.job.id], change.attempt
        before = None if after is None else self._tables.attempts.get(after.key)
        if job.at_rest and change.job.state is not job.state:
            self.add(f"{job.id} is at rest but changes to {change.job.state}")
        for violation in find_wrong_transitions(job, before, change):
            self.add(violation)
        if after is not None and before is None:
            self._check_start(job, after)
        if after is not None and after.state.terminal and (before is None or before.state is not after.state):
            self._check_end(job, after)

    def add(self, violation: str) -> None:
        if len(self.violations) < _MAX_VIOLATIONS:
            self.violations.append(violation)
        else:
            self.uncollected += 1

    def _check_start(self, job: Job, new: Attempt) -> None:
        for violation in find_wrong_start(self._tables.attempt_of(job.id), new):
            self.add(violation)
        if job.desired.cancelled:
            self.add(f"{new.key} starts though the job is cancelled")
        faults = self._cluster.jobs[job.id].faults
        if new.key.number > faults.total() + 1:
            self.add(f"{new.key} starts after only {faults.total()} faults: {dict(faults)}")
        self._promised += new.max_nodes * job.spec.topology.count_workers(1)
        if self._promised > self._slots:
            self.add(f"{self._promised} of {self._slots} slots are promised with {new.key}")

    def _check_end(self, job: Job, ended: Attempt) -> None:
        self._promised -= ended.max_nodes * job.spec.topology.count_workers(1)
        limit_s = job.spec.supervise.max_runtime_s
        if limit_s is not None and ended.failure is not None and ended.failure.kind is FailureKind.TIMEOUT:
            self._cluster.jobs[job.id].faults["overlong"] += 1  # max_runtime_s justifies another attempt
        real = self._cluster.attempts.get(ended.key)
        if real is not None and not real.over:
            self.add(f"{ended.key} ended {ended.state} while it is {real.stage}")
