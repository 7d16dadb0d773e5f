"""The simulated cluster: it places attempts on nodes, tells what it sees, and takes what a trace strikes it with.

What no cluster may ever be asked for (a second attempt beside a living one, one without a fence, one on more devices
than there are) is written down in `breaches`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import partial

from orchestrator.domain.errors import BackendUnavailable
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.job.launch_plan import LaunchPlan, NativeRequest
from orchestrator.domain.observation.observation import Presence, Sighting
from orchestrator.ports.journals import JournalStore
from orchestrator.simulator.rehearsal.agenda import SECOND, Agenda
from orchestrator.simulator.rehearsal.attempt import SimulatedAttempt, Stage
from orchestrator.simulator.rehearsal.job import SimulatedJob
from orchestrator.simulator.rehearsal.nodes import NodePool
from trainer.contract.launch import DesiredDocument, DesiredState

_VANISHES_US = 60 * SECOND


class Fate(StrEnum):
    """What becomes of a job's next submission, where it does not simply start."""

    LOST = "lost"  # no answer, and nothing started
    VANISHES = "vanishes"  # taken, and a minute later nobody has heard of it
    NEVER_FORMS = "never-forms"


class SimulatedCluster:
    """Implements Backend, StrictBackend and RunDirectories. `changed`: a pass would see another thing than the last."""

    def __init__(self, agenda: Agenda, pool: NodePool, *, gpus_per_node: int) -> None:
        self.jobs: dict[str, SimulatedJob] = {}
        self.attempts: dict[AttemptKey, SimulatedAttempt] = {}
        self.breaches: list[str] = []
        self.fates: dict[str, Fate] = {}  # by job
        self.silent = False  # it answers nothing
        self.closed = False  # it starts nothing: its nodes serve others
        self.changed = False
        self.pool = pool
        self._agenda = agenda
        self._gpus_per_node = gpus_per_node
        self._newest: dict[str, SimulatedAttempt] = {}
        self._fences: dict[str, int] = {}
        self._withdrawn: set[AttemptKey] = set()
        self._on_node: dict[str, SimulatedAttempt] = {}
        self._waiting: list[SimulatedAttempt] = []

    # ports.Backend

    def render(self, plan: LaunchPlan) -> NativeRequest:
        return NativeRequest(kind="simulated", text=plan.name)

    def submit(self, plan: LaunchPlan) -> str:
        self._require_answer()
        self._check(plan)
        fate = self.fates.pop(plan.key.job_id, None)
        if fate is Fate.LOST:
            raise BackendUnavailable(f"no answer to the submission of {plan.key}")
        job = self.jobs[plan.key.job_id]
        # One command stands for all: thousands of them would be kept for each of hundreds of attempts.
        plan = replace(plan, commands=plan.commands[:1], environments=plan.environments[:1])
        attempt = SimulatedAttempt(plan, job, self._agenda, changed=self._note_change, release=self._take_back)
        self.attempts[plan.key] = self._newest[plan.key.job_id] = attempt
        if plan.max_nodes * plan.workers_per_node < job.devices:
            job.faults["began small"] += 1  # it may grow, which takes another attempt
        if fate is Fate.VANISHES:
            self._agenda.after(_VANISHES_US, attempt.vanish)
        else:
            attempt.never_forms = fate is Fate.NEVER_FORMS
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
            self.breaches.append(f"{key} is ended by force without a fence")
        attempt.kill() if force else attempt.stop()

    def avoid_only(self, plan: LaunchPlan) -> None:
        self._require_answer()
        attempt = self.attempts.get(plan.key)
        if attempt is not None and attempt.stage is Stage.WAITING:
            attempt.plan = replace(attempt.plan, excluded_nodes=plan.excluded_nodes)
            self._place_waiting()

    def slots(self) -> int | None:
        self._require_answer()
        return self.pool.up * self._gpus_per_node

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

    # What strikes it

    def attempt_of(self, job_id: str) -> SimulatedAttempt | None:
        """The job's newest one, dead or alive."""
        return self._newest.get(job_id)

    def running(self) -> list[SimulatedAttempt]:
        """In the order of their jobs, so that a trace strikes the same ones each time."""
        return [attempt for job_id in self.jobs if (attempt := self._newest.get(job_id)) and attempt.runs]

    def fail_nodes(self, names: Sequence[str], *, repair_us: int | None) -> None:
        """The machines go down together; with `repair_us`, back they come. One that is down already stays so."""
        struck: dict[SimulatedAttempt, list[int]] = {}
        for name in names:
            if not self.pool.is_up(name):
                continue
            attempt = self._on_node.get(name)
            if attempt is not None:
                struck.setdefault(attempt, []).append(attempt.nodes.index(name))
            self.pool.fail(name)
            if repair_us is not None:
                self._agenda.after(repair_us, partial(self._repair, name))
        for attempt, replicas in struck.items():
            word = ", ".join(attempt.nodes[replica] for replica in replicas)
            attempt.lose(replicas, f"node {word} is down")
        self._place_waiting()
        self._note_change()

    def open(self) -> None:
        self.closed = False
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
            nodes = None if self.closed else self.pool.take(attempt.plan.max_nodes, attempt.plan.excluded_nodes)
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
        free = None if self.closed else tuple(self.pool.free)
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


class SimulatedJournals:
    """Implements ports.Journals: hands what the agents told to the store, without any file in between."""

    def __init__(self, cluster: SimulatedCluster, store: JournalStore, agenda: Agenda) -> None:
        self._cluster = cluster
        self._store = store
        self._agenda = agenda

    def collect(self, keys: Collection[AttemptKey]) -> Mapping[AttemptKey, str]:
        self._store.offsets(())  # raises StoreUnavailable before anything is taken from the books
        found = [attempt for key in keys if (attempt := self._cluster.attempts.get(key)) is not None]
        news = [batch for attempt in found for batch in attempt.news()]
        if news:
            self._store.ingest(news, arrived_at=self._agenda.now())
        return {}
