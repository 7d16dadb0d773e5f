"""A service process in the simulated world. Each of its effects can fail."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Protocol

from orchestrator import rundir
from orchestrator.domain.errors import BackendUnavailable, LeaseLost, Refused, StoreUnavailable, Unavailable
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.job.launch_plan import LaunchPlan, Site
from orchestrator.domain.policy.decide import decide
from orchestrator.domain.policy.decision import Wait
from orchestrator.domain.queueing.lease import Lease
from orchestrator.intake.intake import Intake
from orchestrator.intake.watches import Watches
from orchestrator.jobfolder.folder import JobFolder
from orchestrator.ports.journals import JournalBatch
from orchestrator.ports.supervision import Change
from orchestrator.simulator.memory_store import MemoryStore
from orchestrator.simulator.memory_supervision import MemorySupervisorStore
from orchestrator.simulator.virtual_clock import VirtualClock
from orchestrator.supervisor.act import Actor
from orchestrator.supervisor.lease_keeper import LeaseHolder, LeaseKeeper
from orchestrator.supervisor.observe import Facts, Observer
from orchestrator.supervisor.reconcile import PassSettings, Reconciler
from tests.fakes.cluster import FakeCluster
from tests.fakes.memory_leases import MemoryLeaseStore
from tests.fakes.skewed_clock import SkewedClock
from tests.property.ledger import NODE_COOLDOWN_S, Ledger
from tests.property.service_faults import Faults, ServiceCrash
from trainer.contract import layout
from trainer.contract.fence import Term

PORTS = range(20000, 20008)
WARY = True  # whether the jobs that sleep are looked at after each pass
MOST_PASSES = 60  # passes without a pause, enough for a few decisions on each job


class ServiceWorld(Protocol):
    """The parts of the world that a service needs."""

    root: Path
    clock: VirtualClock
    store: MemoryStore
    cluster: FakeCluster
    ledger: Ledger
    site: Site
    pass_settings: PassSettings
    lease_s: float
    decided: deque[str]

    def sleep(self, service: Service) -> None: ...


class Service:
    """A SupervisorLoop without threads: `turn` runs passes, and `keep` renews the lease."""

    def __init__(self, name: str, world: ServiceWorld) -> None:
        self.name = name
        self.clock = SkewedClock(world.clock)
        self.faults = Faults(lambda: world.sleep(self))
        self.asleep = False
        self._world = world
        self._lives = 0
        self.restart()

    def restart(self) -> None:
        """Start a new process, which knows nothing of the old one. The old lease stays until it expires."""
        world = self._world
        self._lives += 1
        self.faults.schedule(None)
        self.asleep = False
        leases = _FaultyLeases(MemoryLeaseStore(world.store, world.clock), self.faults)
        holder = LeaseHolder(f"{self.name}-{self._lives}", ttl_s=world.lease_s, monotonic=world.clock.monotonic)
        self.keeper = LeaseKeeper(leases, "local", holder)
        self._reconciler: Reconciler | None = None
        journals = _FaultyJournals(world.store, self.faults)
        watches = Watches(monotonic=world.clock.monotonic)
        self.intake = Intake(journals, world.store, self.clock, partial(JobFolder, world.root), watches=watches)

    def retire(self) -> None:
        """Shut down cleanly and start again."""
        with suppress(ServiceCrash):
            self.keeper.close()
        self.restart()

    def keep(self) -> None:
        """Renew the lease, as the keeper's thread does."""
        if not self.asleep and self.keeper.held:
            try:
                self.keeper.renew()
            except StoreUnavailable:
                return

    def turn(self) -> None:
        """Run passes until there is a pause."""
        if self.asleep:
            return
        try:
            self._passes()
        except LeaseLost:
            self.keeper.lose()
            self._reconciler = None
        except Unavailable:
            return
        except ServiceCrash:
            self.restart()

    def _passes(self) -> None:
        for _ in range(MOST_PASSES):
            if not self.keeper.held:
                lease = self.keeper.take()
                self._reconciler = None if lease is None else self._supervision(lease)
            if self._reconciler is None:
                return
            self._world.ledger.begin_pass()
            look_again_at = self._reconciler.reconcile()
            if look_again_at is None or look_again_at > self.clock.now() + timedelta(seconds=0.1):
                return
            self._world.clock.advance(0.01)
        raise AssertionError(f"the policy does not settle: {[*self._world.decided]}")

    def _supervision(self, lease: Lease) -> Reconciler:
        world = self._world
        store = _FaultyStore(world, MemorySupervisorStore(world.store, world.clock, lease), self.faults)
        backend = _FaultyCluster(world, self.faults)
        folders = _FaultyFolders(world.root, self.faults)
        observer = Observer(
            "local",
            store,
            backend,
            self.intake,
            self.clock,
            node_cooldown_s=NODE_COOLDOWN_S,
            monotonic=world.clock.monotonic,
        )
        actor = Actor(store, backend, folders, world.site, ports=PORTS, require_lease=self.keeper.require)
        return _WaryReconciler(store, observer, actor, self.clock, world.pass_settings)


class _WaryReconciler(Reconciler):
    """After each pass, it also looks at the jobs that sleep: none may have anything to do, or anything new to say."""

    def _admit(self, facts: Facts) -> None:
        super()._admit(facts)
        self._facts = facts

    def reconcile(self) -> datetime | None:
        look_again_at = super().reconcile()
        asleep = set(self._observer.roster.asleep) if WARY else set()
        for each in self._store.supervised("local", asleep):
            situation = self._situation(each, self._facts)
            assert situation is not None, f"{each.job.id} sleeps, but it was not observed"
            decision = decide(situation, self._settings.policy)
            assert isinstance(decision.action, Wait), f"{each.job.id} sleeps, but {decision}"
            assert decision.sentence == each.job.reason, f"{each.job.id} sleeps, but its reason is {decision.sentence}"
        return look_again_at


class _FaultyLeases:
    """ports.LeaseStore."""

    def __init__(self, leases: MemoryLeaseStore, faults: Faults) -> None:
        self.renew, self.hand_over, self.leases = leases.renew, leases.hand_over, leases.leases
        self.acquire = faults.wrap(leases.acquire, StoreUnavailable)
        self.release = faults.wrap(leases.release, StoreUnavailable)


class _FaultyStore:
    """A supervisor's store whose writes can fail. The ledger checks each accepted write."""

    def __init__(self, world: ServiceWorld, store: MemorySupervisorStore, faults: Faults) -> None:
        tables, ledger = world.store.tables, world.ledger

        def apply(change: Change) -> None:
            attempt = None if change.attempt is None else tables.attempts.get(change.attempt.key)
            job = tables.jobs[change.job.id]
            store.apply(change)
            ledger.check(job, attempt, change)

        self.changed, self.at_work, self.supervised, self.states = (
            store.changed,
            store.at_work,
            store.supervised,
            store.states,
        )
        self.journaled, self.members, self.node_failures = store.journaled, store.members, store.node_failures
        self.apply = faults.wrap(apply, StoreUnavailable)
        self.note: Callable[[str, str, datetime], None] = faults.wrap(store.note, StoreUnavailable)
        self.reserve_port = faults.wrap(store.reserve_port, StoreUnavailable)


class _FaultyJournals:
    """ports.JournalStore."""

    def __init__(self, store: MemoryStore, faults: Faults) -> None:
        def ingest(batches: Sequence[JournalBatch], *, arrived_at: datetime) -> Mapping[int, str]:
            return store.ingest(batches, arrived_at=arrived_at)

        self.offsets = store.offsets
        self.ingest = faults.wrap(ingest, StoreUnavailable)


class _FaultyFolders:
    """ports.RunDirectories."""

    def __init__(self, root: Path, faults: Faults) -> None:
        folders = rundir.LocalRunDirectories(root)
        self.fence = faults.wrap(folders.fence, OSError)
        self.write_desired = faults.wrap(folders.write_desired, OSError)
        self.withdraw = faults.wrap(folders.withdraw, OSError)


class _FaultyCluster:
    """ports.Backend whose effects can fail."""

    def __init__(self, world: ServiceWorld, faults: Faults) -> None:
        cluster = world.cluster
        self.render, self.observe, self.slots = cluster.render, cluster.observe, cluster.slots

        def submit(plan: LaunchPlan) -> str:
            attempt = world.store.tables.attempts[plan.key]
            if plan.excluded_nodes != attempt.excluded_nodes:
                cluster.breaches.append(f"{plan.key} is submitted without {attempt.excluded_nodes} excluded")
            return cluster.submit(plan)

        def cancel(key: AttemptKey, *, force: bool) -> None:
            fence = layout.fence_dir(world.root / key.job_id) / Term(key.number + 1, 0).file_name
            unlucky = bool(faults.injected) and faults.injected[-1].endswith("fence")
            if force and not fence.exists() and not unlucky:
                cluster.breaches.append(f"{key} is ended by force without a fence")
            cluster.cancel(key, force=force)

        self.submit = faults.wrap(submit, BackendUnavailable)
        self.cancel = faults.wrap(cancel, BackendUnavailable)


class FailingLogger:
    """A logger that reports unexpected exceptions to the ledger. The loop only logs them."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def warning(self, event: str, **_: object) -> None:
        error = sys.exception()
        if not isinstance(error, (Unavailable, Refused, OSError)):
            self._ledger.wrong.append(f"{event}: {error!r}")

    exception = warning
