"""Build the real supervisor and commands for a simulated cluster, with counters and checks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from datetime import UTC, datetime
from pathlib import Path

from orchestrator.commands.checks import Checks
from orchestrator.commands.job_commands import Commands
from orchestrator.configured_cluster import Cluster
from orchestrator.domain.errors import Refused, Unavailable
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.job.launch_plan import Site, build_plan
from orchestrator.domain.observation.node_record import Exclusion
from orchestrator.domain.policy.decide import POLICY
from orchestrator.domain.policy.decision import Decision
from orchestrator.domain.policy.situation import Situation
from orchestrator.domain.queueing.admission import Limits
from orchestrator.domain.queueing.lease import Lease
from orchestrator.ports.supervision import Change
from orchestrator.simulator.memory_store import MemoryStore
from orchestrator.simulator.memory_supervision import MemorySupervisorStore
from orchestrator.simulator.monitor import Monitor
from orchestrator.simulator.scenario import Scenario
from orchestrator.simulator.simulated_cluster import SimulatedCluster
from orchestrator.simulator.virtual_clock import VirtualClock
from orchestrator.supervisor.act import Actor
from orchestrator.supervisor.observe import Observer
from orchestrator.supervisor.reconcile import PassSettings, Reconciler

CLUSTER = "local"
_STOP_TIMEOUT_S, _SUBMIT_TIMEOUT_S = 30.0, 30.0
_LEASED_UNTIL = datetime.max.replace(tzinfo=UTC)
_SITE = Site(
    root=Path("/"),
    python="python",
    child="child.py",
    rendezvous_host="127.0.0.1",
    gpus_per_node=0,
    report_url=None,
    stop_timeout_s=10,
    log_limit_bytes=1,
)


class WatchedStore(MemorySupervisorStore):
    """A store that shows every change to the monitor."""

    def __init__(self, store: MemoryStore, clock: VirtualClock, monitor: Monitor) -> None:
        lease = Lease(cluster=CLUSTER, holder="simulation", token=1)
        store.tables.leases[CLUSTER] = (lease, _LEASED_UNTIL)
        super().__init__(store, clock, lease)
        self._tables = store.tables
        self._monitor = monitor

    def apply(self, change: Change) -> None:
        before, last = self._tables.jobs[change.job.id], self._tables.attempt_of(change.job.id)
        self._monitor.invariants.check(change)
        super().apply(change)
        self._monitor.follow(before, last, change)

    def note(self, reasons: Mapping[str, str], now: datetime) -> None:
        self._monitor.count_undecided(reasons.values())
        super().note(reasons, now)


class WatchedActor(Actor):
    """An actor that counts decisions. An unexpected exception, which the reconciler would only log, is a violation."""

    def __init__(self, store: WatchedStore, cluster: SimulatedCluster, monitor: Monitor) -> None:
        super().__init__(store, cluster, cluster, _SITE, ports=_ports(cluster))
        self._monitor = monitor

    def act(self, s: Situation, decision: Decision, exclusions: Sequence[Exclusion]) -> None:
        self._monitor.decisions[decision.rule] += 1
        try:
            super().act(s, decision, exclusions)
        except (Unavailable, Refused):
            raise
        except Exception as error:
            self._monitor.invariants.add(f"{s.job.id}: {decision.rule}: {error!r}")
            raise


class SimulatedJournals:
    """Implements ports.Journals without files."""

    def __init__(self, cluster: SimulatedCluster, store: MemoryStore, clock: VirtualClock) -> None:
        self._cluster = cluster
        self._store = store
        self._clock = clock

    def collect(self, keys: Mapping[AttemptKey, int], must_read: Set[AttemptKey]) -> Mapping[AttemptKey, str]:
        self._store.answering()  # raises StoreUnavailable before anything is read
        found = [attempt for key in keys if (attempt := self._cluster.attempts.get(key)) is not None]
        batches = [batch for attempt in found for batch in attempt.read_log()]
        if batches:
            self._store.ingest(batches, arrived_at=self._clock.now())
        return {}


def build_supervisor(
    scenario: Scenario, clock: VirtualClock, cluster: SimulatedCluster, store: MemoryStore, monitor: Monitor
) -> Reconciler:
    """Build the supervisor. Raises Refused if the scenario leaves out a rule that does not exist."""
    known = {rule.__name__ for rule in POLICY}
    for name in scenario.without:
        if name not in known:
            raise Refused(f"--without {name}: there is no such rule; the policy has {', '.join(sorted(known))}")
    watched = WatchedStore(store, clock, monitor)
    journals = SimulatedJournals(cluster, store, clock)
    # No report is lost in a pause between two passes, however long.
    observer = Observer(CLUSTER, watched, cluster, journals, clock, longest_pause_s=math.inf)
    pass_settings = PassSettings(
        limits=Limits(gpus_per_node=scenario.gpus_per_node),
        stop_timeout_s=_STOP_TIMEOUT_S,
        submit_timeout_s=_SUBMIT_TIMEOUT_S,
        policy=tuple(rule for rule in POLICY if rule.__name__ not in scenario.without),
    )
    return Reconciler(watched, observer, WatchedActor(watched, cluster, monitor), clock, pass_settings)


def build_commands(store: MemoryStore, cluster: SimulatedCluster, clock: VirtualClock) -> Commands:
    known = Cluster(
        name=CLUSTER,
        kind="local",
        backend=cluster,
        job_root=_SITE.root,
        plan=lambda job, attempt: build_plan(job, attempt, _SITE),
        ports=_ports(cluster),
        gpus=cluster.gpus_per_node,
    )
    return Commands(store, store, Checks(jobs=store, clusters={CLUSTER: known}), clock, lambda: None)


def _ports(cluster: SimulatedCluster) -> range:
    """Return more ports than live attempts. They need not exist."""
    return range(20000, 20064 + 2 * len(cluster.pool.population))
