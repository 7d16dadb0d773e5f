"""The suite of clusters on the simulator's fake and on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.backends.local.backend import LocalBackend
from tests.contract.backend_contract import BackendContract
from tests.contract.backends import BackendWorld, FakeWorld, local_world


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
            if (folder / "told").exists():
                world.backend.cancel(world.plan(folder.name).key, force=True)
        assert isinstance(world.backend, LocalBackend)
        for child in world.backend._children:  # a killed process is collected by whoever started it
            child.wait(timeout=60)
