"""The contract of backends on torchx's own Slurm scheduler, with a real Slurm that keeps accounts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.dev.slurm.cluster import ThrowawaySlurm
from tests.contract.backend_contract import BackendContract
from tests.contract.backends import BackendWorld
from tests.slurm.live.lab import PATIENCE_S, empty_queue
from tests.torchx_backend.worlds import open_world


@pytest.fixture(scope="module")
def booked() -> Iterator[ThrowawaySlurm]:
    pass


class TestTorchxSlurm(BackendContract):
    @pytest.fixture
    def world(self, booked: ThrowawaySlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BackendWorld]:
        monkeypatch.setenv("SLURM_CONF", booked.environment["SLURM_CONF"])
        with open_world(tmp_path, "slurm", patience_s=PATIENCE_S) as world:
            yield world
        empty_queue(booked)
