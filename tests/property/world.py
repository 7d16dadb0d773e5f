"""The simulated world of the state machine: a service that can be struck, and a ledger that checks what it writes."""

from __future__ import annotations

import logging
import shutil
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from unittest.mock import patch

import structlog

from orchestrator import rundir
from orchestrator.clusters import Cluster
from orchestrator.commands import Commands
from orchestrator.domain.admission import demand
from orchestrator.domain.attempt import TRANSITIONS as ATTEMPT_EDGES
from orchestrator.domain.attempt import Attempt, AttemptKey, AttemptState
from orchestrator.domain.budget import budget_of
from orchestrator.domain.errors import BackendUnavailable, Refused, StoreUnavailable, Unavailable
from orchestrator.domain.event import EventKind
from orchestrator.domain.job import TRANSITIONS as JOB_EDGES
from orchestrator.domain.job import Job, JobState
from orchestrator.domain.launch import Site, build_plan
from orchestrator.intake import Intake
from orchestrator.ports import Change
from orchestrator.simulator.clock import VirtualClock
from orchestrator.simulator.cluster import FakeCluster
from orchestrator.simulator.faults import Faults, ServiceCrash
from orchestrator.simulator.memory_store import MemoryStore
from orchestrator.supervisor import reconcile
from orchestrator.supervisor.act import Actor
from orchestrator.supervisor.observe import Observer
from orchestrator.supervisor.reconcile import Reconciler
from trainer.contract import layout
from trainer.contract.exit_record import Outcome
from trainer.contract.fence import Term

SLOTS = 4
STOP_TIMEOUT_S = 15.0
PORTS = range(20000, 20006)
_MEMORY = Path("/dev/shm")
_MOST_PASSES = 40  # without a pause: a few decisions for each job


@dataclass
class Ledger:
    """Sees every change before it is stored, and says what is wrong with it."""

    store: MemoryStore
    cluster: FakeCluster
    wrong: list[str] = field(default_factory=list)
    failed: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))  # since the last retry
    owed: set[str] = field(default_factory=set)  # jobs whose retry has begun and has no attempt yet

    def check(self, change: Change) -> None:
        job = self.store.tables.jobs[change.job.id]
        self._check_job(job, change)
        if change.attempt is not None:
            self._check_attempt(job, self.store.tables.attempts.get(change.attempt.key), change.attempt, change)

    def _check_job(self, before: Job, change: Change) -> None:
        after = change.job
        if after.retries_done > before.retries_done:
            self.owed.add(before.id)
            self.failed[before.id].clear()
        if after.state is JobState.FAILED and before.id in self.owed:
            self._say(f"{before.id} gives up before the attempt that its owner asked for")
        if before.state is after.state and before.reason == after.reason:
            return
        retrying = before.desired.retry_number > before.retries_done
        if before.state.terminal and not retrying:
            self._say(f"{before.id} is at rest and changes to {after.state}")
        if before.state is after.state:
            return
        if after.state not in JOB_EDGES[before.state]:
            self._say(f"{before.id} changes along no edge: {before.state} -> {after.state}")
        told = [e for e in change.events if e.kind == EventKind.JOB_STATE and e.evidence["state"] == after.state.value]
        if not told:
            self._say(f"{before.id} became {after.state} without an event")

    def _check_attempt(self, job: Job, before: Attempt | None, after: Attempt, change: Change) -> None:
        if before is None:
            self._check_new(job, after)
        elif before.state is not after.state and after.state not in ATTEMPT_EDGES[before.state]:
            self._say(f"{after.key} changes along no edge: {before.state} -> {after.state}")
        elif before.stopping_since is not None and after.stopping_since is None:
            self._say(f"{after.key} was being stopped and is not any more")
        if before is not None and before.state is after.state:
            return
        told = [e for e in change.events if e.kind == EventKind.ATTEMPT_STATE and e.attempt == after.key.number]
        if not any(event.evidence["state"] == after.state.value for event in told):
            self._say(f"{after.key} became {after.state} without an event")
        if after.state.terminal:
            self._check_end(job, after)

    def _check_new(self, job: Job, after: Attempt) -> None:
        self.owed.discard(job.id)
        earlier = self.store.attempts_of(job.id)
        if [attempt.key.number for attempt in earlier] != list(range(1, after.key.number)):
            self._say(f"{after.key} follows {[attempt.key.number for attempt in earlier]}")
        if any(not attempt.state.terminal for attempt in earlier):
            self._say(f"{after.key} begins beside a live one")
        if job.desired.cancelled:
            self._say(f"{after.key} begins though the job is cancelled")
        for budget, count in self.failed[job.id].items():
            limit = getattr(job.spec.supervise.budgets, budget)
            if limit is not None and count > limit:
                self._say(f"{after.key} begins after {count} {budget} failures of {limit}")

    def _check_end(self, job: Job, after: Attempt) -> None:
        budget = None if after.failure is None else budget_of(after.failure)
        if budget is not None:
            self.failed[job.id][budget] += 1
        real = self.cluster.attempts.get(after.key)
        if real is None:
            return
        if real.runs:
            self._say(f"{after.key} ended {after.state} while it still runs")
        records = [agent.exit_record for agent in real.agents if agent.exit_record is not None]
        dead = [agent for agent in real.agents if not agent.running and agent.exit_record is None]
        if real.agents and not records and not dead:
            self._say(f"{after.key} ended {after.state} though all its agents are well")
        outcomes = [record.outcome for record in records]
        if outcomes.count(Outcome.SUCCEEDED) == real.plan.max_nodes and after.state is not AttemptState.SUCCEEDED:
            self._say(f"{after.key} succeeded and ended {after.state}")
        if after.state is AttemptState.SUCCEEDED and outcomes.count(Outcome.SUCCEEDED) < real.plan.min_nodes:
            self._say(f"{after.key} ended {after.state} with the records {outcomes}")

    def _say(self, what: str) -> None:
        self.wrong.append(what)


class World:
    """One cluster, its service, and what was done to them."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="simulated-", dir=_MEMORY if _MEMORY.is_dir() else None))
        self.clock = VirtualClock()
        self.store = MemoryStore()
        self.cluster = FakeCluster(self.clock, slots=SLOTS)
        self.faults = Faults()
        self.ledger = Ledger(self.store, self.cluster)
        self.harm: Counter[str] = Counter()  # by job: what may cost it an attempt
        self.retries: Counter[str] = Counter()
        self._site = Site(
            root=self.root,
            python="python",
            child="child.py",
            rendezvous_host="127.0.0.1",
            gpus_per_node=1,
            report_url=None,
            stop_timeout_s=10,
            log_limit_bytes=1000,
        )
        self._patches = ExitStack()
        self._patches.callback(structlog.configure, **structlog.get_config())
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
        self._patches.enter_context(patch.object(reconcile, "log", _Ears(self.ledger)))
        for name in ("fence", "write_desired"):
            struck = self.faults.wrap(getattr(rundir, name), OSError)
            self._patches.enter_context(patch.object(rundir, name, struck))
        self.commands = Commands(self.store, {"local": self._cluster()}, self.clock, lambda: None)
        self.restart_service()

    def close(self) -> None:
        self._patches.close()
        shutil.rmtree(self.root)

    def restart_service(self) -> None:
        """A new process: whatever the old one knew is forgotten."""
        store, backend = (
            _StruckStore(self.store, self.ledger, self.faults),
            _StruckCluster(self.cluster, self.faults, self.root),
        )
        intake = Intake(self.store, self.store, self.clock, lambda job_id: self.root / job_id)
        observer = Observer("local", store, backend, intake)
        actor = Actor(store, backend, self._site, ports=PORTS)
        self._reconciler = Reconciler(
            store, observer, actor, self.clock, gpus_per_node=1, stop_timeout_s=STOP_TIMEOUT_S
        )

    def run_pass(self) -> None:
        """As the loop does: pass after pass until there is a pause."""
        try:
            for _ in range(_MOST_PASSES):
                look_again_at = self._reconciler.reconcile()
                if look_again_at is None or look_again_at > self.clock.now() + timedelta(seconds=0.1):
                    return
        except StoreUnavailable:
            return
        except ServiceCrash:
            self.restart_service()
            return
        raise AssertionError("the policy goes in circles")

    def jobs(self) -> list[Job]:
        return list(self.store.tables.jobs.values())

    def live(self) -> list[Attempt]:
        return [attempt for attempt in self.store.tables.attempts.values() if not attempt.state.terminal]

    def at_rest(self) -> bool:
        wished = any(job.desired.retry_number > job.retries_done for job in self.jobs())
        return all(job.state.terminal for job in self.jobs()) and not wished and not self.live()

    def check(self) -> None:
        """What must hold after every step."""
        assert not self.ledger.wrong, self.ledger.wrong
        assert not self.cluster.breaches, self.cluster.breaches
        for attempt in self.cluster.attempts.values():
            assert attempt.starts <= 1, f"{attempt.plan.key} trains twice"
            assert attempt.polite_words <= 1, f"{attempt.plan.key} was asked politely {attempt.polite_words} times"
        held = sum(demand(job, 1) for job in self.jobs() if job.state.holds_slots)
        assert held <= SLOTS, f"{held} of {SLOTS} slots are promised"
        live = self.live()
        assert len({attempt.port for attempt in live}) == len(live), "two live attempts share a port"
        assert len({attempt.key.job_id for attempt in live}) == len(live), "a job has two live attempts"
        for attempt in live:
            assert attempt.key in self.store.tables.ports, f"{attempt.key} holds no port"
        for job in self.jobs():
            self._check_counts(job)

    def _check_counts(self, job: Job) -> None:
        attempts = self.store.attempts_of(job.id)
        partial = sum(each.partial for key, each in self.cluster.attempts.items() if key.job_id == job.id)
        allowed = self.harm[job.id] + partial + self.retries[job.id] + 1
        assert len(attempts) <= allowed, f"{job.id} had {len(attempts)} attempts for {allowed - 1} faults and retries"

    def check_rest(self) -> None:
        """What must hold when all is quiet and every job has had its time."""
        for job in self.jobs():
            assert job.state.terminal, f"{job.id} is still {job.state}: {job.reason}"
            assert job.desired.cancelled or job.retries_done == job.desired.retry_number, f"{job.id} awaits its retry"
        assert not self.live()
        running = [str(key) for key, attempt in self.cluster.attempts.items() if attempt.runs]
        assert not running, f"{running} still run"
        # A port that was reserved for an attempt which was then never written down waits for the job's next one.
        held = [str(key) for key in self.store.tables.ports if key in self.store.tables.attempts]
        assert not held, f"ports are held by {held}"

    def _cluster(self) -> Cluster:
        return Cluster(
            name="local",
            kind="local",
            backend=self.cluster,
            job_root=self.root,
            plan=lambda job, attempt: build_plan(job, attempt, self._site),
            ports=PORTS,
            gpus=0,
        )


class _StruckStore:
    """ports.SupervisorStore whose writes can be struck."""

    def __init__(self, store: MemoryStore, ledger: Ledger, faults: Faults) -> None:
        def apply(change: Change) -> None:
            if store.available:
                ledger.check(change)
            store.apply(change)

        self.supervised = store.supervised
        self.apply = faults.wrap(apply, StoreUnavailable)
        self.note: Callable[[str, str, datetime], None] = faults.wrap(store.note, StoreUnavailable)
        self.reserve_port = faults.wrap(store.reserve_port, StoreUnavailable)


class _StruckCluster:
    """ports.Backend whose effects can be struck."""

    def __init__(self, cluster: FakeCluster, faults: Faults, root: Path) -> None:
        self.render, self.observe, self.slots = cluster.render, cluster.observe, cluster.slots
        self.submit = faults.wrap(cluster.submit, BackendUnavailable)

        def cancel(key: AttemptKey, *, force: bool) -> None:
            fence = layout.fence_dir(root / key.job_id) / Term(key.number + 1, 0).file_name
            unlucky = bool(faults.struck) and faults.struck[-1].endswith("fence")
            if force and not fence.exists() and not unlucky:
                cluster.breaches.append(f"{key} is ended by force without a fence")
            cluster.cancel(key, force=force)

        self.cancel = faults.wrap(cancel, BackendUnavailable)


class _Ears:
    """Listens to the reconciler's log: an error of ours, which the loop's edge holds back, is a broken promise."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def warning(self, event: str, **_: object) -> None:
        error = sys.exception()
        if not isinstance(error, (Unavailable, Refused, OSError)):
            self._ledger.wrong.append(f"{event}: {error!r}")
