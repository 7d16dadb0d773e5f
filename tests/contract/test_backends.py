"""The suite of backends on the fake and on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.backends.local.backend import LocalBackend
from orchestrator.domain.observation.observation import Presence
from tests.builders import with_command
from tests.contract.backend_contract import BackendContract, look, until
from tests.contract.backends import BackendWorld, FakeWorld, RealWorld, local_world


class TestFake(BackendContract):
    @pytest.fixture
    def world(self, tmp_path: Path) -> BackendWorld:
        return FakeWorld(tmp_path)


class TestLocal(BackendContract):
    @pytest.fixture
    def world(self, tmp_path: Path) -> Iterator[BackendWorld]:
        world = local_world(tmp_path)
        yield world
        for folder in tmp_path.iterdir():
            if (folder / "started").exists():
                world.backend.cancel(world.plan(folder.name).key, force=True)
        assert isinstance(world.backend, LocalBackend)
        for child in world.backend._children:  # a killed process must be collected by its parent
            child.process.wait(timeout=300)

    def test_a_child_process_without_a_mark_is_observed_until_it_is_collected(self, world: RealWorld) -> None:
        """A process that is ending loses its memory, and with it the mark, before it becomes a zombie."""
        plan = with_command(world.plan("bare"), "/usr/bin/env", "-i", "sleep", "1")
        world.backend.submit(plan)
        assert look(world, plan).presence is Presence.RUNNING
        until(world, plan, lambda seen: seen.presence is Presence.ABSENT)
        assert isinstance(world.backend, LocalBackend)
        assert world.backend._children == []
