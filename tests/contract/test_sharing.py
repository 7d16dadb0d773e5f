"""Several services share clusters through the real store, while they start, end, pause, and lose sight of clusters.

At any time, a cluster has at most one holder, and tokens only grow. Soon after the last event the shares are even, and
then nothing moves.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import delete

from orchestrator.store.engine import Database
from orchestrator.store.tables import LeaseRow
from orchestrator.supervisor.lease_keeper import LeaseHolder, LeaseKeeper
from tests.contract.worlds import SqlWorld
from tests.examples import examples

CLUSTERS = ("a", "b", "c", "d")
TTL_S, TICK_S = 40.0, 10.0
BLIND_TICKS = 6  # of loop.py: after a minute, a cluster that does not answer is released
MOST_BLIND = 4  # pairs of a service and a cluster that does not answer it
SOON_TICKS = 40 + 20 * MOST_BLIND
services = st.integers(min_value=0, max_value=2)


class Service:
    """A service without threads and passes: each turn renews its leases, hands over, and takes what is free."""

    def __init__(self, world: SqlWorld, name: str, clock: Callable[[], float]) -> None:
        self.name = name
        self.ahead_s = 0.0  # of its steady clock
        self.paused = False
        self.blind: set[str] = set()
        self._unanswered = dict.fromkeys(CLUSTERS, 0)  # turns
        self.holder = LeaseHolder(name, ttl_s=TTL_S, monotonic=lambda: clock() + self.ahead_s)
        self.keepers = {cluster: LeaseKeeper(world.leases, cluster, self.holder) for cluster in CLUSTERS}

    def turn(self) -> None:
        for cluster, keeper in self.keepers.items():
            keeper.renew()
            keeper.hand_over()
            if not keeper.held:
                self._unanswered[cluster] = 0
                keeper.take()
            elif cluster in self.blind:
                self._unanswered[cluster] += 1
            if self._unanswered[cluster] >= BLIND_TICKS:
                self.holder.give_up(cluster)
                keeper.release()

    def held(self) -> set[str]:
        return {cluster for cluster, keeper in self.keepers.items() if keeper.held}


class SharingMachine(RuleBasedStateMachine):
    def __init__(self, database: Database) -> None:
        super().__init__()
        self.world = SqlWorld(database)
        with database.write() as session:
            session.execute(delete(LeaseRow))
        self.seconds = 0.0
        self.born = 0
        self.services: list[Service] = []
        self.tokens: dict[str, tuple[int, str]] = {}

    @initialize(count=st.integers(min_value=1, max_value=3))
    def some_services(self, count: int) -> None:
        for _ in range(count):
            self.start()

    @precondition(lambda self: len(self.services) < 3)
    @rule()
    def start(self) -> None:
        self.born += 1
        self.services.append(Service(self.world, f"service-{self.born}", lambda: self.seconds))

    @rule(ticks=st.integers(min_value=1, max_value=4))
    def time_passes(self, ticks: int) -> None:
        for _ in range(ticks):
            self.world.pass_time(TICK_S)
            self.seconds += TICK_S
            for service in self.services:
                if not service.paused:
                    service.turn()

    @rule(which=services, from_other_end=st.booleans())
    def one_takes_its_turn_early(self, which: int, from_other_end: bool) -> None:
        if from_other_end:
            self.services.reverse()
        for service in self.services[which : which + 1]:
            if not service.paused:
                service.turn()

    @rule(which=services, cleanly=st.booleans())
    def one_ends(self, which: int, cleanly: bool) -> None:
        for service in self.services[which : which + 1]:
            if cleanly:
                for keeper in service.keepers.values():
                    keeper.close()
            self.services.remove(service)

    @rule(which=services)
    def one_pauses_or_goes_on(self, which: int) -> None:
        for service in self.services[which : which + 1]:
            service.paused = not service.paused

    @rule(which=services, seconds=st.sampled_from([1.0, 30.0]))
    def a_clock_jumps(self, which: int, seconds: float) -> None:
        for service in self.services[which : which + 1]:
            service.ahead_s += seconds

    @rule(which=services, clusters=st.sets(st.sampled_from(CLUSTERS), min_size=1, max_size=3))
    def clusters_stop_answering_one(self, which: int, clusters: set[str]) -> None:
        for service in self.services[which : which + 1]:
            others = sum(len(each.blind) for each in self.services if each is not service)
            if others + len(service.blind | clusters) <= MOST_BLIND:
                service.blind |= clusters

    @invariant()
    def no_cluster_has_two_holders(self) -> None:
        held = [cluster for service in self.services for cluster in service.held()]
        assert len(held) == len(set(held)), {each.name: each.held() for each in self.services}

    @invariant()
    def tokens_only_grow(self) -> None:
        for each in self.world.leases.leases():
            token, holder = self.tokens.get(each.lease.cluster, (0, ""))
            assert each.lease.token > token or (each.lease.token, each.lease.holder) == (token, holder)
            self.tokens[each.lease.cluster] = (each.lease.token, each.lease.holder)

    def teardown(self) -> None:
        if not self.services:
            return
        for service in self.services:
            service.paused = False
        for cluster in CLUSTERS:  # each one answers somebody
            if all(cluster in service.blind for service in self.services):
                self.services[0].blind.discard(cluster)
        for _ in range(SOON_TICKS):  # at least once: the lease of one that was paused may be about to end
            self.time_passes(1)
            self.no_cluster_has_two_holders()
            self.tokens_only_grow()
            if self.is_even():
                break
        assert self.is_even(), {each.name: (each.held(), each.blind) for each in self.services}
        before = dict(self.tokens)
        self.time_passes(2 * BLIND_TICKS)
        self.tokens_only_grow()
        assert self.tokens == before, "something moves"
        assert {each.requester for each in self.world.leases.leases()} <= {None}

    def is_even(self) -> bool:
        """Whether each cluster has a supervisor that sees it, and who holds two fewer than another cannot help it."""
        shares = [(service.held(), service.holder.given_up()) for service in self.services]
        return (
            set().union(*(held for held, _ in shares)) == set(CLUSTERS)
            and all(service.held().isdisjoint(service.blind) for service in self.services)
            and all(len(many) - len(few) < 2 or many <= given_up for many, _ in shares for few, given_up in shares)
        )


@pytest.fixture(params=["sqlite", "postgresql"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_services_share_clusters_evenly_whatever_happens(database: Database, backend: str) -> None:
    runs = examples(10, 300) if backend == "sqlite" else examples(5, 50)
    limits = settings(max_examples=runs, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(lambda: SharingMachine(database), settings=limits)  # type: ignore[arg-type]
