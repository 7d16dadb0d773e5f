"""What the port promises of every backend, tested on the fake and on each real cluster."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from orchestrator.domain.errors import LaunchRefused
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.job.launch_plan import LaunchPlan
from orchestrator.domain.observation.observation import Liveness, Presence, Sighting
from tests.contract.backends import BackendWorld


def look(world: BackendWorld, plan: LaunchPlan) -> Sighting:
    return world.backend.observe({plan.key: plan.max_nodes})[plan.key]


def until(world: BackendWorld, plan: LaunchPlan, holds: Callable[[Sighting], bool]) -> Sighting:
    deadline = time.monotonic() + world.patience_s
    while True:
        world.go_on()
        seen = look(world, plan)
        if holds(seen):
            return seen
        assert time.monotonic() < deadline, seen


def runs(world: BackendWorld, plan: LaunchPlan) -> Callable[[Sighting], bool]:
    return lambda seen: seen.presence is Presence.RUNNING and world.trainings(plan) > 0


def over(seen: Sighting) -> bool:
    return seen.presence is Presence.GONE and not seen.leftovers


class BackendContract:
    """Inherit it and add a fixture `world`."""

    def test_rendering_is_deterministic_and_starts_nothing(self, world: BackendWorld) -> None:
        plan = world.plan("shown")
        assert world.backend.render(plan) == world.backend.render(plan)
        assert look(world, plan).presence is Presence.ABSENT

    def test_observe_answers_for_each_attempt(self, world: BackendWorld) -> None:
        keys = [AttemptKey("never-was", number) for number in (1, 2, 3)]
        seen = world.backend.observe(dict.fromkeys(keys, 1))
        assert {key: seen[key].presence for key in keys} == dict.fromkeys(keys, Presence.ABSENT)
        assert all(seen[key].evidence for key in keys)
        assert world.backend.observe({}) == {}

    def test_an_attempt_is_observed_until_its_end(self, world: BackendWorld) -> None:
        plan = world.plan("short", seconds=2)
        assert world.backend.submit(plan)
        seen = until(world, plan, runs(world, plan))
        assert [one.replica for one in seen.replicas if one.liveness is Liveness.ALIVE] == [0]
        ended = until(world, plan, over)
        assert {one.liveness for one in ended.replicas} == {Liveness.DEAD}
        assert look(world, plan).presence is Presence.GONE

    def test_cancel_ends_an_attempt_and_is_idempotent(self, world: BackendWorld) -> None:
        plan = world.plan("polite")
        world.backend.submit(plan)
        until(world, plan, runs(world, plan))
        world.backend.cancel(plan.key, force=False)
        until(world, plan, over)
        world.backend.cancel(plan.key, force=False)
        world.backend.cancel(plan.key, force=True)
        assert over(look(world, plan))

    def test_cancel_by_force_ends_workers_that_ignore_signals(self, world: BackendWorld) -> None:
        plan = world.plan("deaf", deaf=True)
        world.backend.submit(plan)
        until(world, plan, runs(world, plan))
        world.backend.cancel(plan.key, force=True)
        until(world, plan, over)

    def test_cancelling_an_unknown_attempt_is_no_error(self, world: BackendWorld) -> None:
        plan = world.plan("nothing")
        world.backend.cancel(plan.key, force=False)
        world.backend.cancel(plan.key, force=True)
        assert look(world, plan).presence is Presence.ABSENT

    def test_a_repeated_submission_starts_one_attempt(self, world: BackendWorld) -> None:
        plan = world.plan("twice", seconds=4)
        world.backend.submit(plan)
        world.backend.submit(plan)
        until(world, plan, runs(world, plan))
        until(world, plan, over)
        assert world.trainings(plan) == 1

    def test_an_attempt_that_can_never_start_is_refused(self, world: BackendWorld) -> None:
        plan = world.impossible("impossible")
        with pytest.raises(LaunchRefused, match="folder"):
            world.backend.submit(plan)
        assert look(world, plan).presence is Presence.ABSENT

    def test_slots_are_positive_or_unknown(self, world: BackendWorld) -> None:
        slots = world.backend.slots()
        assert slots is None or slots > 0
