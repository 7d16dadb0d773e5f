"""What must hold at every change that the supervisor writes, whatever the trace does. It looks, and changes nothing."""

from __future__ import annotations

from collections import Counter

from orchestrator.domain.job.attempt import TRANSITIONS as ATTEMPT_EDGES
from orchestrator.domain.job.attempt import Attempt
from orchestrator.domain.job.event import EventKind
from orchestrator.domain.job.job import TRANSITIONS as JOB_EDGES
from orchestrator.domain.job.job import Job
from orchestrator.ports.supervision import Change
from orchestrator.simulator.rehearsal.cluster import SimulatedCluster
from orchestrator.simulator.tables import Tables
from trainer.contract.failure import FailureKind

_MOST = 100  # sentences that are kept; the rest is counted


class Invariants:
    def __init__(self, tables: Tables, cluster: SimulatedCluster, *, slots: int) -> None:
        self.sentences: list[str] = []
        self.unsaid = 0
        self._tables = tables
        self._cluster = cluster
        self._slots = slots
        self._held = 0  # devices of live attempts
        self._attempts: Counter[str] = Counter()

    def check(self, change: Change) -> None:
        """Before it is stored."""
        before = self._tables.jobs[change.job.id]
        self._check_job(before, change)
        if change.attempt is not None:
            self._check_attempt(before, self._tables.attempts.get(change.attempt.key), change.attempt, change)

    def say(self, sentence: str) -> None:
        if len(self.sentences) < _MOST:
            self.sentences.append(sentence)
        else:
            self.unsaid += 1

    def _check_job(self, before: Job, change: Change) -> None:
        after = change.job
        if before.state is after.state:
            return
        if before.state.terminal and before.desired.retry_number <= before.retries_done:
            self.say(f"{before.id} is at rest and changes to {after.state}")
        if after.state not in JOB_EDGES[before.state]:
            self.say(f"{before.id} changes along no edge: {before.state} -> {after.state}")
        told = (event.evidence["state"] for event in change.events if event.kind == EventKind.JOB_STATE)
        if after.state.value not in told:
            self.say(f"{before.id} became {after.state} without an event")

    def _check_attempt(self, job: Job, before: Attempt | None, after: Attempt, change: Change) -> None:
        if before is None:
            self._check_new(job, after)
        elif before.state.terminal:
            self.say(f"{after.key} has ended {before.state} and changes")
        elif before.state is not after.state and after.state not in ATTEMPT_EDGES[before.state]:
            self.say(f"{after.key} changes along no edge: {before.state} -> {after.state}")
        if before is not None and before.state is after.state:
            return
        told = [event for event in change.events if event.kind == EventKind.ATTEMPT_STATE]
        if not any(event.evidence["state"] == after.state.value for event in told):
            self.say(f"{after.key} became {after.state} without an event")
        if after.state.terminal:
            self._check_end(job, after)

    def _check_new(self, job: Job, after: Attempt) -> None:
        number = after.key.number
        last = self._tables.attempt_of(job.id)
        if number != (0 if last is None else last.key.number) + 1:
            self.say(f"{after.key} is out of order")
        if last is not None and not last.state.terminal:
            self.say(f"{after.key} begins beside a live one")
        if job.desired.cancelled:
            self.say(f"{after.key} begins though the job is cancelled")
        faults = self._cluster.jobs[job.id].faults
        if number > faults.total() + 1:
            self.say(f"{after.key} begins after {faults.total()} faults: {dict(faults)}")
        self._held += _devices(job, after)
        if self._held > self._slots:
            self.say(f"{self._held} of {self._slots} slots are promised with {after.key}")

    def _check_end(self, job: Job, after: Attempt) -> None:
        self._held -= _devices(job, after)
        limit_s = job.spec.supervise.max_runtime_s
        if limit_s is not None and after.failure is not None and after.failure.kind is FailureKind.TIMEOUT:
            self._cluster.jobs[job.id].faults["overlong"] += 1  # its owner's limit takes the next attempt
        real = self._cluster.attempts.get(after.key)
        if real is not None and not real.over:
            self.say(f"{after.key} ended {after.state} while it is {real.stage}")


def _devices(job: Job, attempt: Attempt) -> int:
    per_node = job.spec.topology.workers_per_node
    return attempt.max_nodes * (per_node if isinstance(per_node, int) else 1)
