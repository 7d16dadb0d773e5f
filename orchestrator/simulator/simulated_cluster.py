"""The simulated cluster, which places attempts on nodes, reports them, and has failures.

It records in `breaches` what the service must never do: submit a second attempt beside a live one, or without a fence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import partial

from orchestrator.domain.errors import BackendUnavailable
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.job.launch_plan import LaunchPlan
from orchestrator.domain.job.native_request import NativeRequest
from orchestrator.domain.observation.observation import Presence, Sighting
from orchestrator.simulator.node_pool import NodePool
from orchestrator.simulator.simulated_attempt import SimulatedAttempt, Stage
from orchestrator.simulator.simulated_job import SimulatedJob
from orchestrator.simulator.virtual_clock import SECOND, VirtualClock
from trainer.contract.failure import Failure, FailureKind
from trainer.contract.launch import DesiredDocument, DesiredState

_VANISHES_US = 60 * SECOND


class SubmissionFault(StrEnum):
    """A fault of a job's next submission."""

    LOST = "lost"  # there is no answer, and nothing starts
    VANISHES = "vanishes"  # the cluster accepts it and forgets it a minute later
    NEVER_FORMS = "never-forms"


class SimulatedCluster:
    """Implements Backend, StrictBackend and RunDirectories. `changed` is set when a pass would see a difference."""

    def __init__(self, clock: VirtualClock, pool: NodePool, *, gpus_per_node: int) -> None:
        self.jobs: dict[str, SimulatedJob] = {}
        self.attempts: dict[AttemptKey, SimulatedAttempt] = {}
        self.breaches: list[str] = []
        self.submission_faults: dict[str, SubmissionFault] = {}  # by job
        self.silent = False  # whether it does not answer
        self.changed = False
        self.pool = pool
        self.gpus_per_node = gpus_per_node
        self._clock = clock
        self._newest: dict[str, SimulatedAttempt] = {}
        self._fences: dict[str, int] = {}
        self._withdrawn: set[AttemptKey] = set()
        self._on_node: dict[str, SimulatedAttempt] = {}
        self._waiting: list[SimulatedAttempt] = []
        self._closed = False

    # ports.Backend

    def render(self, plan: LaunchPlan) -> NativeRequest:
        return NativeRequest(kind="simulated", text=plan.app.name)

    def submit(self, plan: LaunchPlan) -> str:
        self._require_answer()
        self._check(plan)
        fault = self.submission_faults.pop(plan.key.job_id, None)
        if fault is SubmissionFault.LOST:
            raise BackendUnavailable(f"no answer to the submission of {plan.key}")
        job = self.jobs[plan.key.job_id]
        attempt = SimulatedAttempt(plan, job, self._clock, changed=self._note_change, release=self._take_back)
        self.attempts[plan.key] = self._newest[plan.key.job_id] = attempt
        if plan.max_nodes * plan.workers_per_node < job.devices:
            job.faults["began small"] += 1  # growing justifies another attempt
        if fault is SubmissionFault.VANISHES:
            self._clock.after(_VANISHES_US, attempt.vanish)
        else:
            attempt.never_forms = fault is SubmissionFault.NEVER_FORMS
            job.faults["never formed"] += attempt.never_forms
            self._waiting.append(attempt)
            self._place_waiting()
        self._note_change()
        return str(plan.key)

    def observe(self, launched: Mapping[AttemptKey, int]) -> Mapping[AttemptKey, Sighting]:
        self._require_answer()
        return {key: self._sight(key) for key in launched}

    def cancel(self, key: AttemptKey, *, force: bool) -> None:
        self._require_answer()
        attempt = self.attempts.get(key)
        if attempt is None:
            return
        if force and self._fences.get(key.job_id, 0) <= key.number:
            self.breaches.append(f"{key} is killed without a fence")
        attempt.kill() if force else attempt.stop()

    def avoid_only(self, plan: LaunchPlan) -> None:
        self._require_answer()
        attempt = self.attempts.get(plan.key)
        if attempt is not None and attempt.stage is Stage.WAITING:
            attempt.plan = replace(attempt.plan, excluded_nodes=plan.excluded_nodes)
            self._place_waiting()

    def slots(self) -> int:
        self._require_answer()
        return self.pool.up * self.gpus_per_node

    # ports.RunDirectories

    def fence(self, job_id: str, attempt: int) -> None:
        self._fences[job_id] = max(attempt, self._fences.get(job_id, 0))

    def write_desired(self, job_id: str, attempt: int, desired: DesiredDocument) -> None:
        found = self.attempts.get(AttemptKey(job_id, attempt))
        if found is None:
            return
        if desired.state is DesiredState.STOP:
            found.stop()
        elif desired.snapshot:
            found.snapshot()

    def withdraw(self, job_id: str, attempt: int) -> bool:
        found = self.attempts.get(AttemptKey(job_id, attempt))
        if found is not None and found.began:
            return False
        self._withdrawn.add(AttemptKey(job_id, attempt))
        return True

    # Its failures

    def attempt_of(self, job_id: str) -> SimulatedAttempt | None:
        """Return the job's newest attempt."""
        return self._newest.get(job_id)

    def running(self) -> list[SimulatedAttempt]:
        """Return the running attempts in the order of their jobs, so that runs are reproducible."""
        return [attempt for job_id in self.jobs if (attempt := self._newest.get(job_id)) and attempt.runs]

    def fail_nodes(self, names: Sequence[str], *, repair_us: int | None) -> None:
        """Let nodes fail together. They are repaired after `repair_us`, or never if it is None."""
        hit: dict[SimulatedAttempt, list[int]] = {}
        for name in names:
            if not self.pool.is_up(name):
                continue
            attempt = self._on_node.get(name)
            if attempt is not None:
                hit.setdefault(attempt, []).append(attempt.nodes.index(name))
            self.pool.fail(name)
            if repair_us is not None:
                self._clock.after(repair_us, partial(self._repair, name))
        for attempt, replicas in hit.items():
            lost = ", ".join(attempt.nodes[replica] for replica in replicas)
            attempt.lose(replicas, f"node {lost} is down")
        self._place_waiting()
        self._note_change()

    def fail_worker(self, name: str) -> None:
        """Let a worker on this node be killed, if there is one. The node stays."""
        attempt = self._on_node.get(name)
        if attempt is None or not self.pool.is_up(name):
            return
        rank = attempt.nodes.index(name) * attempt.plan.workers_per_node
        message = f"worker {rank} was killed by SIGKILL"
        attempt.fail_worker(Failure(kind=FailureKind.UNKNOWN, message=message, rank=rank, signal="SIGKILL"))
        self._note_change()

    def set_closed(self, closed: bool) -> None:
        """Close or open the cluster. A closed one starts nothing, because other users have its nodes."""
        self._closed = closed
        self._place_waiting()

    def _repair(self, name: str) -> None:
        self.pool.repair(name)
        self._place_waiting()
        self._note_change()

    def _place_waiting(self) -> None:
        still: list[SimulatedAttempt] = []
        waiting, self._waiting = self._waiting, []
        for attempt in waiting:
            if attempt.over:
                continue
            nodes = None if self._closed else self.pool.take(attempt.plan.max_nodes, attempt.plan.excluded_nodes)
            if nodes is None:
                still.append(attempt)
                continue
            for name in nodes:
                self._on_node[name] = attempt
            attempt.place(nodes)
        self._waiting = still + self._waiting

    def _take_back(self, names: Sequence[str]) -> None:
        for name in names:
            self._on_node.pop(name, None)
        self.pool.give_back(names)
        if self._waiting:
            self._place_waiting()

    def _sight(self, key: AttemptKey) -> Sighting:
        attempt = self.attempts.get(key)
        if attempt is None:
            return Sighting(key=key, presence=Presence.ABSENT, evidence="it was never submitted")
        if attempt.stage is not Stage.WAITING:
            return attempt.sight()
        free = None if self._closed else tuple(self.pool.free)
        return replace(attempt.sight(), avoids_strictly=True, spare_nodes=free)

    def _check(self, plan: LaunchPlan) -> None:
        key = plan.key
        if self._fences.get(key.job_id, 0) < key.number:
            self.breaches.append(f"{key} is submitted without a fence")
        if key in self._withdrawn:
            self.breaches.append(f"{key} is submitted though it was withdrawn")
        before = self._newest.get(key.job_id)
        if before is not None and not before.over:
            self.breaches.append(f"{key} is submitted while {before.plan.key} is {before.stage}")

    def _require_answer(self) -> None:
        if self.silent:
            raise BackendUnavailable("the cluster does not answer")

    def _note_change(self) -> None:
        self.changed = True
