"""The service's own supervisor on a simulated cluster: what it is wired to, and what is counted on the way."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from orchestrator.domain.errors import Refused, Unavailable
from orchestrator.domain.job.job import JobState
from orchestrator.domain.job.launch_plan import Site
from orchestrator.domain.observation.node_record import Exclusion
from orchestrator.domain.policy.decide import POLICY
from orchestrator.domain.policy.decision import Decision
from orchestrator.domain.policy.situation import Situation
from orchestrator.domain.queueing.admission import Limits
from orchestrator.domain.queueing.lease import Lease
from orchestrator.ports.supervision import Change
from orchestrator.simulator.memory_store import MemoryStore
from orchestrator.simulator.memory_supervision import MemoryLeaseStore, MemorySupervisorStore
from orchestrator.simulator.rehearsal.agenda import Agenda
from orchestrator.simulator.rehearsal.cluster import SimulatedCluster, SimulatedJournals
from orchestrator.simulator.rehearsal.invariants import Invariants
from orchestrator.simulator.rehearsal.scenario import Scenario
from orchestrator.supervisor.act import Actor
from orchestrator.supervisor.observe import Observer
from orchestrator.supervisor.reconcile import Reconciler, Terms

CLUSTER = "local"
_STOP_TIMEOUT_S, _SUBMIT_TIMEOUT_S = 30.0, 30.0
_LEASE_S = 100 * 365 * 86400.0
_UNDECIDED = "undecided"  # counted among the rules: a job for which no rule had an opinion

SITE = Site(
    root=Path("/"),
    python="python",
    child="child.py",
    rendezvous_host="127.0.0.1",
    gpus_per_node=0,
    report_url=None,
    stop_timeout_s=10,
    log_limit_bytes=1,
)


def ports_of(scenario: Scenario) -> range:
    """More than there can be live attempts; no machine has so many, and none is needed."""
    return range(20000, 20064 + 2 * scenario.node_count)


class Tally:
    """What a rehearsal counts."""

    def __init__(self) -> None:
        self.decisions: Counter[str] = Counter()  # by rule
        self.restarts: Counter[str] = Counter()  # attempts that another one followed, by class of their failure
        self.attempts = 0


class WatchedStore(MemorySupervisorStore):
    """Every change is checked before it is stored, and told afterwards."""

    def __init__(
        self,
        store: MemoryStore,
        agenda: Agenda,
        lease: Lease,
        invariants: Invariants,
        tally: Tally,
        on_state: Callable[[str, JobState, JobState], None],
    ) -> None:
        super().__init__(store, agenda, lease)
        self._tables = store.tables
        self._invariants = invariants
        self._tally = tally
        self._on_state = on_state

    def apply(self, change: Change) -> None:
        before, last = self._tables.jobs[change.job.id].state, self._tables.attempt_of(change.job.id)
        self._invariants.check(change)
        super().apply(change)
        attempt, after = change.attempt, change.job.state
        if attempt is not None and last is not None and attempt.key != last.key:
            self._tally.restarts["wished" if last.failure is None else last.failure.kind.value] += 1
        if before is not after:
            self._on_state(change.job.id, before, after)

    def note(self, reasons: Mapping[str, str], now: datetime) -> None:
        undecided = sum(reason.startswith("cannot go on now: the policy") for reason in reasons.values())
        if undecided:
            self._tally.decisions[_UNDECIDED] += undecided
        super().note(reasons, now)


class WatchedActor(Actor):
    """Counts decisions; a defect, which the reconciler's edge holds back, is a broken invariant here."""

    def __init__(
        self, store: WatchedStore, cluster: SimulatedCluster, ports: range, invariants: Invariants, tally: Tally
    ) -> None:
        super().__init__(store, cluster, cluster, SITE, ports=ports)
        self._invariants = invariants
        self._tally = tally

    def act(self, s: Situation, decision: Decision, exclusions: Sequence[Exclusion]) -> None:
        self._tally.decisions[decision.rule] += 1
        try:
            super().act(s, decision, exclusions)
        except (Unavailable, Refused):
            raise
        except Exception as error:
            self._invariants.say(f"{s.job.id}: {decision.rule}: {error!r}")
            raise


def build_supervisor(
    scenario: Scenario,
    agenda: Agenda,
    cluster: SimulatedCluster,
    store: MemoryStore,
    invariants: Invariants,
    tally: Tally,
    on_state: Callable[[str, JobState, JobState], None],
) -> Reconciler:
    """Raises Refused for a rule to be left out that the policy does not have."""
    known = {rule.__name__ for rule in POLICY}
    for name in scenario.without:
        if name not in known:
            raise Refused(f"--without {name}: there is no such rule; the policy has {', '.join(sorted(known))}")
    lease = MemoryLeaseStore(store, agenda).acquire(CLUSTER, "rehearsal", ttl_s=_LEASE_S)
    if lease is None:
        raise AssertionError("nobody else could hold the lease")
    watched = WatchedStore(store, agenda, lease, invariants, tally, on_state)
    # No pause is too long here: nothing is told that is not heard.
    journals = SimulatedJournals(cluster, store, agenda)
    observer = Observer(CLUSTER, watched, cluster, journals, agenda, longest_pause_s=math.inf)
    terms = Terms(
        limits=Limits(gpus_per_node=scenario.gpus_per_node),
        stop_timeout_s=_STOP_TIMEOUT_S,
        submit_timeout_s=_SUBMIT_TIMEOUT_S,
        policy=tuple(rule for rule in POLICY if rule.__name__ not in scenario.without),
    )
    actor = WatchedActor(watched, cluster, ports_of(scenario), invariants, tally)
    return Reconciler(watched, observer, actor, agenda, terms)
