"""An hour without the service or the scheduler: the real policy with simulated agents on a virtual clock.

The job has default settings. The decisions do not depend on the kind of cluster.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from orchestrator.domain.job.job import JobState
from tests.faults.cells import Cell, check
from tests.property import promises
from tests.property.world import World

HOUR_S = 3600.0


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    job = world.add_job(topology={"nodes": "2"})
    world.watch(100)
    assert world.job(job.id).state is JobState.RUNNING
    yield world
    promises.check(world)
    world.close()


def describe(world: World) -> Cell:
    (job,) = world.jobs()
    attempts = list(world.store.tables.attempts.values())
    failures = [f"{each.failure.kind}: {each.failure.message}" for each in attempts if each.failure is not None]
    went_on = len(attempts) == 1 and job.state is JobState.RUNNING and world.real(job.id).working
    return Cell(
        said="; ".join(failures) or "nothing failed",
        done="nothing" if went_on else f"the job is {job.state} after {len(attempts)} attempts",
        costs="; ".join(f"{budget} {count}" for budget, count in job.spent.items()) or "nothing",
    )


def test_the_job_trains_while_the_scheduler_is_unreachable(world: World) -> None:
    (job,) = world.jobs()
    before = world.real(job.id).step
    world.cluster.silent = True
    world.watch(HOUR_S)
    assert world.real(job.id).step > before
    world.cluster.silent = False
    world.watch(100)
    check("kubernetes", "the scheduler is away for an hour", describe(world))


@pytest.mark.parametrize("cluster", ["local", "kubernetes"])
def test_the_job_trains_while_the_service_is_down(world: World, cluster: str) -> None:
    """A new process of the service starts afterwards. It knows only what is stored."""
    (job,) = world.jobs()
    before = world.real(job.id).step
    for service in world.services:
        service.asleep = True
    world.live_on(HOUR_S)
    assert world.real(job.id).step > before
    for service in world.services:
        service.restart()
    world.watch(100)
    check(cluster, "the service is away for an hour", describe(world))
