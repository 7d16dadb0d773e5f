"""Every hint that a job changed can be lost. The regular checks still find everything in their time."""

from __future__ import annotations

import random
from collections.abc import Iterator, Set

import pytest

from orchestrator.domain.job.job import JobState
from orchestrator.domain.observation.checks import CHECK_S
from orchestrator.simulator.memory_supervision import MemorySupervisorStore
from orchestrator.supervisor.observe import Observer
from tests.property import promises, services
from tests.property.owners import Owners
from tests.property.world import LOOK_S, World

SUPERVISE = {"heartbeat_timeout_s": 60, "startup_timeout_s": 100}


@pytest.fixture(params=range(3))
def world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A world that loses each hint with a probability of one half, or all of them."""
    rng = random.Random(request.param)
    lost = lambda: request.param == 0 or rng.random() < 0.5  # noqa: E731
    changed, compare = MemorySupervisorStore.changed, Observer._compare

    def forgetful(store: MemorySupervisorStore, since: int | None) -> tuple[Set[str], int]:
        found, newest = changed(store, since)
        return {job_id for job_id in found if not lost()}, newest

    def compare_some(observer: Observer, sightings: dict[object, object]) -> None:
        if lost():
            observer._sightings = sightings  # type: ignore[assignment]
        else:
            compare(observer, sightings)  # type: ignore[arg-type]

    monkeypatch.setattr(MemorySupervisorStore, "changed", forgetful)
    monkeypatch.setattr(Observer, "_compare", compare_some)
    monkeypatch.setattr(services, "WARY", False)
    world = World()
    yield world
    promises.check(world)
    world.close()


def test_without_any_hint_all_jobs_still_end(world: World) -> None:
    jobs = [world.add_job(topology={"nodes": nodes}, supervise=SUPERVISE) for nodes in ("1", "2", "1:2", "2")]
    owners = Owners(world)
    bound_s = 2 * (CHECK_S + LOOK_S)  # one check to notice the job, another one for its queue
    world.watch(2 * bound_s)
    assert JobState.RUNNING in {job.state for job in world.jobs()}
    jobs.append(world.add_job(topology={"nodes": "1"}, supervise=SUPERVISE))
    owners.suspend(world.job(jobs[0].id))
    world.watch(bound_s)
    assert world.job(jobs[0].id).state is JobState.SUSPENDED
    owners.resume(world.job(jobs[0].id))
    for _ in range(12):
        world.watch(bound_s)
        for attempt in list(world.cluster.attempts.values()):
            if attempt.step >= 3:
                attempt.succeed()
    assert [job.state for job in world.jobs()] == [JobState.SUCCEEDED] * len(jobs)
