"""Bring a world to rest: once faults have stopped, every job must end."""

from __future__ import annotations

from orchestrator.domain.job.job import JobState
from tests.property import promises
from tests.property.owners import Owners
from tests.property.world import SLOTS, World


def come_to_rest(world: World, owners: Owners) -> None:
    """Let all jobs end. Faults must have stopped."""
    for _ in range(4):
        world.watch(25)
        promises.check(world)
    promises.check_settled(world)
    for job in world.jobs():
        owners.resume(job)
    for round_ in range(150):
        if world.at_rest():
            break
        # A clock that was an hour ahead delays every verdict by that hour.
        world.watch(25 if round_ < 100 else 250)
        promises.check(world)
        promises.check_settled(world)
        if round_ % 8 == 7:
            _cancel_what_can_never_start(world, owners)
        for attempt in list(world.cluster.attempts.values()):
            world.cluster.leave_queue(attempt)
            if attempt.step >= 3 and not (attempt.stalled or attempt.missed or attempt.cut_off):
                attempt.succeed()
    world.look()
    promises.check(world)
    promises.check_rest(world)


def _cancel_what_can_never_start(world: World, owners: Owners) -> None:
    for job in world.jobs():
        quota = world.limits.quotas.get(job.spec.project)
        most = SLOTS if quota is None or quota.max_devices is None else quota.max_devices
        awaited = [world.job(name).state for name in job.spec.after]
        if job.spec.topology.min_nodes > most or any(s.terminal and s is not JobState.SUCCEEDED for s in awaited):
            owners.cancel(job)
