"""Silence is no evidence: outages and pauses, each in the same world of three healthy jobs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.job import JobState
from tests.fakes.cluster import LATE_S, Fate
from tests.property import promises
from tests.property.owners import Owners
from tests.property.service_faults import Fault, FaultKind
from tests.property.world import LOOK_S, SUBMIT_TIMEOUT_S, World
from trainer.contract.exit_record import Outcome
from trainer.contract.failure import Failure, FailureKind

HOUR_S = 3600.0
SUPERVISE = {"heartbeat_timeout_s": 60, "startup_timeout_s": 100, "grow_back_after_s": 50}


@pytest.fixture
def world() -> Iterator[World]:
    """Three healthy jobs in training: one of one node, an elastic one at its full size, another of one node."""
    world = World()
    for nodes in ("1", "1:2", "1"):
        world.add_job(topology={"nodes": nodes}, supervise=SUPERVISE)
    world.watch(100)
    assert [job.state for job in world.jobs()] == [JobState.RUNNING] * 3
    yield world
    promises.check(world)
    world.close()


def attempts(world: World) -> list[tuple[str, AttemptState]]:
    return [(str(key), attempt.state) for key, attempt in world.store.tables.attempts.items()]


def assert_nothing_happened(world: World) -> None:
    world.watch(200)
    assert attempts(world) == [(f"job-{number}-a1", AttemptState.RUNNING) for number in (1, 2, 3)]
    assert all(real.working and not real.stop_requests for real in world.cluster.attempts.values())


def test_an_hour_without_the_scheduler_costs_nothing(world: World) -> None:
    world.cluster.silent = True
    world.watch(HOUR_S)
    world.cluster.silent = False
    assert_nothing_happened(world)


def test_an_hour_without_the_store_costs_nothing(world: World) -> None:
    world.store.available = False
    world.watch(HOUR_S)
    world.store.available = True
    assert_nothing_happened(world)


def test_an_hour_without_the_run_directories_costs_nothing(world: World) -> None:
    world.unreadable |= {job.id for job in world.jobs()}
    world.watch(HOUR_S)
    world.unreadable.clear()
    assert_nothing_happened(world)


def test_an_hour_in_which_every_service_is_paused_costs_nothing(world: World) -> None:
    """There are no passes, no renewals and no reports, as when the network is down."""
    for service in world.services:
        service.asleep = True
    world.advance(HOUR_S)
    for service in world.services:
        service.asleep = False
    world.look()
    world.look()
    assert_nothing_happened(world)


@pytest.mark.parametrize("skew_s", [HOUR_S, -HOUR_S])
def test_a_clock_that_is_set_while_the_cluster_is_asked_costs_nothing(world: World, skew_s: float) -> None:
    def set_clocks() -> None:
        for service in world.services:
            service.clock.skew_s = skew_s

    for real in world.cluster.attempts.values():
        real.be_quiet(30)
    world.cluster.before_look = set_clocks
    world.watch(20)
    assert_nothing_happened(world)


def test_an_hour_in_which_all_attempts_are_unknown_costs_nothing(world: World) -> None:
    world.cluster.unknown |= set(world.cluster.attempts)
    world.watch(HOUR_S)
    world.cluster.unknown.clear()
    assert_nothing_happened(world)


def test_an_hour_in_which_one_replica_is_hidden_costs_nothing(world: World) -> None:
    world.cluster.hidden |= {(key, 0) for key in world.cluster.attempts}
    world.watch(HOUR_S)
    world.cluster.hidden.clear()
    assert_nothing_happened(world)


def test_twenty_five_status_timeouts_in_a_row_change_nothing(world: World) -> None:
    world.cluster.silent = True
    for _ in range(25):
        world.look()
        world.cluster.work()
        world.advance(1)
    world.cluster.silent = False
    assert_nothing_happened(world)


def test_a_slow_snapshot_costs_nothing(world: World) -> None:
    """The limit of a phase without observations is ten minutes."""
    for real in world.cluster.attempts.values():
        real.be_quiet(30)
    world.watch(25)
    assert_nothing_happened(world)


@pytest.mark.parametrize("forgotten", [True, False])
def test_an_end_while_the_service_was_down_is_adopted(world: World, forgotten: bool) -> None:
    failure = Failure(kind=FailureKind.LAUNCH, message="python: can't open file '/train.py'")
    for service in world.services:
        service.asleep = True
    world.real("job-1").succeed()
    for agent in world.real("job-2").working:
        agent.exit(Outcome.FAILED, failure)
    world.advance(2 * HOUR_S)
    world.harm["job-2"] += 1
    world.cluster.forgets = forgotten
    for service in world.services:
        service.restart()
    world.watch(LOOK_S)
    assert world.job("job-1").state is JobState.SUCCEEDED
    assert world.job("job-2").state is JobState.FAILED
    assert failure.message in world.job("job-2").reason
    assert len(world.store.tables.attempts) == 3


@pytest.mark.parametrize("asked", ["cancel", "suspend", None])
def test_no_second_submission_while_the_first_may_be_under_way(asked: str | None) -> None:
    world = World()
    job = world.add_job(topology={"nodes": "1"}, supervise=SUPERVISE)
    world.cluster.fate = Fate.LATE
    world.look()
    if asked == "cancel":
        Owners(world).cancel(job)
    elif asked == "suspend":
        Owners(world).suspend(job)
    real = world.real(job.id)
    while world.clock.monotonic() < min(LATE_S, SUBMIT_TIMEOUT_S) - 5:
        world.advance(5)
        world.look()
        assert (len(real.delayed), len(real.agents)) == (1, 0)
        assert [attempt.state for attempt in world.live()] == [AttemptState.INTENDED]
    world.watch(LATE_S + LOOK_S)
    assert real.starts == 1
    assert len({agent.token for agent in real.agents}) == 1
    assert len(world.store.attempts_of(job.id)) == 1
    promises.check(world)
    world.close()


def test_a_service_that_was_paused_in_its_submission_does_not_start_an_ended_attempt() -> None:
    world = World(lease_s=15)
    world.look()
    job = world.add_job(topology={"nodes": "1"}, supervise=SUPERVISE)
    world.pause_s, world.meanwhile = 300, lambda: Owners(world).cancel(job)
    # Its effects are: reserve a port, fence, write the attempt, submit.
    world.services[0].faults.schedule(Fault(countdown=4, after=False, kind=FaultKind.PAUSE))
    world.watch(400)
    assert world.services[0].faults.injected == ["pause before submit"]
    assert world.job(job.id).state is JobState.CANCELLED
    assert (len(world.real(job.id).agents), world.real(job.id).starts) == (1, 0)
    promises.check(world)
    world.close()


def test_a_late_snapshot_of_nodes_that_are_cut_off_does_not_count() -> None:
    world = World()
    job = world.add_job(topology={"nodes": "1"}, supervise={**SUPERVISE, "backoff_s": [0, 0]})
    world.watch(50)
    lost = world.real(job.id)
    while lost.checked is None or not lost.saved:  # until a snapshot has passed its check
        world.cluster.work()
    saved, late = lost.saved, lost.checked
    lost.cut_off = True
    world.harm[job.id] += 1
    lost.be_quiet(70)
    world.watch(60)
    heir = world.real(job.id, 2)
    assert (heir.training, lost.saved) == (True, saved)
    world.watch(400)
    assert late in heir.lineage.names(), "it was renamed"
    assert late not in heir.lineage.order()
    world.real(job.id, 2).restart_in_place()
    world.watch(50)
    promises.check(world)  # the next generation restored the heir's own
    world.close()
