"""The contract of backends on a real Slurm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.dev.slurm.cluster import ThrowawaySlurm
from tests.contract.backend_contract import BackendContract
from tests.contract.backends import BackendWorld
from tests.slurm.live.lab import slurm_world


class TestSlurm(BackendContract):
    @pytest.fixture
    def world(self, slurm: ThrowawaySlurm, tmp_path: Path) -> Iterator[BackendWorld]:
        with slurm_world(slurm, tmp_path) as world:
            yield world
