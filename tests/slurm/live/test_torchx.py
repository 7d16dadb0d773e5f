"""The contract of backends on torchx's own Slurm scheduler, with a real Slurm that keeps accounts."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.dev.service import ThrowawayService
from deploy.dev.slurm.cluster import NoSlurm, ThrowawaySlurm
from deploy.dev.slurm.conf import Shape
from orchestrator.client import Client
from tests.contract.backend_contract import BackendContract
from tests.contract.backends import BackendWorld
from tests.jobs import until
from tests.slurm.live.lab import PATIENCE_S, empty_queue, training
from tests.torchx_backend.worlds import open_world

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def booked() -> Iterator[ThrowawaySlurm]:
    """Torchx reads the states of jobs from Slurm's accounting."""
    try:
        with ThrowawaySlurm(Shape(nodes=2, accounting=True)) as running:
            yield running
    except NoSlurm as error:
        pytest.skip(str(error))


class TestTorchxSlurm(BackendContract):
    @pytest.fixture
    def world(self, booked: ThrowawaySlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BackendWorld]:
        monkeypatch.setenv("SLURM_CONF", booked.environment["SLURM_CONF"])
        with open_world(tmp_path, "slurm", patience_s=PATIENCE_S) as world:
            yield world
        empty_queue(booked)


def test_a_training_on_two_nodes_goes_on_after_a_lost_node(booked: ThrowawaySlurm, tmp_path: Path) -> None:
    """Slurm cancels the app. The next attempt waits until the node is back."""
    config = tmp_path / "orchestrator.toml"
    settings = f'scheduler = "slurm"\npython = "{sys.executable}"\npoll_s = 0.3\nsettle_s = 1\nstop_timeout_s = 5\n'
    config.write_text(f'[clusters.slurm]\nbackend = "torchx"\n{settings}')
    given = {"ORCHESTRATOR_CONFIG": str(config), "SLURM_CONF": booked.environment["SLURM_CONF"]}
    with ThrowawayService(tmp_path / "runs", given, log_folder=tmp_path) as service, Client(service.url) as client:
        job = client.submit(training(trainer={"steps": 400})).id
        until(client, job, lambda seen: (seen.step or 0) >= 30 or seen.ended, timeout_s=PATIENCE_S)
        booked.kill_node("n2")
        booked.run("scontrol", "update", "nodename=n2", "state=down", "reason=power")
        until(client, job, lambda seen: seen.attempts == 2 or seen.ended, timeout_s=PATIENCE_S)
        booked.start_node("n2")
        booked.await_idle()
        done = until(client, job, lambda seen: seen.ended, timeout_s=2 * PATIENCE_S)
        told = "\n".join(event.sentence for event in client.events(job))
        assert (done.state, done.step) == ("SUCCEEDED", 400), told
        assert max(each.step for each in client.snapshots(job)) == 400
    empty_queue(booked)
