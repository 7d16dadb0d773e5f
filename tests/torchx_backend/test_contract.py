"""The suite of backends on torchx's local scheduler, and on one that somebody else's plugin brings."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.backends.torchx.backend import TorchxBackend
from orchestrator.domain.errors import BackendUnavailable, LaunchRefused
from orchestrator.domain.observation.observation import Liveness, Presence
from tests.contract.backend_contract import BackendContract, look, over, runs, until
from tests.contract.backends import BackendWorld, RealWorld
from tests.torchx_backend.worlds import PLUGIN, open_world


@pytest.mark.long
class TestLocalCwd(BackendContract):
    @pytest.fixture
    def world(self, tmp_path: Path) -> Iterator[BackendWorld]:
        with open_world(tmp_path, "local_cwd") as world:
            yield world


class TestPlugin(BackendContract):
    @pytest.fixture
    def queue(self, tmp_path: Path) -> Path:
        """The plugin's folder. A file in it changes how the plugin behaves."""
        folder = tmp_path / "queue"
        folder.mkdir()
        return folder

    @pytest.fixture
    def world(self, tmp_path: Path, queue: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RealWorld]:
        monkeypatch.setenv("PYTHONPATH", str(PLUGIN), prepend=":")
        with open_world(tmp_path / "runs", "queue_of_files", folder=str(queue)) as world:
            yield world
            (queue / "forgets").unlink(missing_ok=True)
            for job in (tmp_path / "runs").iterdir():
                if (job / "started").exists():
                    world.backend.cancel(world.plan(job.name).key, force=True)

    def test_an_app_that_waits_is_pending_and_then_runs(self, world: RealWorld, queue: Path) -> None:
        (queue / "holds").touch()
        plan = world.plan("waits", seconds=2)
        world.backend.submit(plan)
        seen = look(world, plan)
        assert (seen.presence, "as the queue says" in seen.evidence) == (Presence.PENDING, True), seen
        (queue / "holds").unlink()
        until(world, plan, runs(world, plan))
        until(world, plan, over)

    def test_an_app_whose_answer_was_lost_is_found_by_its_claim_and_a_second_one_is_harmless(
        self, world: RealWorld, queue: Path
    ) -> None:
        plan = world.plan("unheard", seconds=6)
        (queue / "dumb").touch()
        with pytest.raises(BackendUnavailable, match="the queue does not answer"):
            world.backend.submit(plan)
        until(world, plan, lambda seen: seen.presence is not Presence.ABSENT)
        assert look(world, plan).presence is Presence.RUNNING
        (queue / "dumb").unlink()
        world.backend.submit(plan)
        until(world, plan, over)
        assert world.trainings(plan) == 1

    def test_an_app_that_torchx_forgets_runs_until_its_nodes_are_silent(self, world: RealWorld, queue: Path) -> None:
        plan = world.plan("forgotten")
        world.backend.submit(plan)
        until(world, plan, runs(world, plan))
        (queue / "forgets").touch()
        assert look(world, plan).presence is Presence.RUNNING
        for pid in queue.rglob("*.pid"):
            os.killpg(int(pid.read_text()), signal.SIGKILL)
        ended = until(world, plan, over)
        assert {one.liveness for one in ended.replicas} == {Liveness.DEAD}

    def test_wrong_options_of_the_scheduler_are_refused(self, world: RealWorld, tmp_path: Path) -> None:
        with open_world(tmp_path / "other", "queue_of_files") as wrong:
            plan = wrong.plan("wrong")
            with pytest.raises(LaunchRefused, match="folder"):
                wrong.backend.submit(plan)
            assert look(wrong, plan).presence is Presence.ABSENT

    def test_two_replicas_form_one_group(self, world: RealWorld) -> None:
        plan = world.plan("pair", seconds=2, nodes="2")
        world.backend.submit(plan)
        until(world, plan, lambda seen: world.trainings(plan) == 2)
        ended = until(world, plan, over)
        assert [one.replica for one in ended.replicas] == [0, 1]

    def test_one_wrong_answer_ends_no_app_that_waits(self, world: RealWorld, queue: Path) -> None:
        (queue / "holds").touch()
        plan = world.plan("confused", seconds=2)
        world.backend.submit(plan)
        (queue / "garbles").touch()
        assert look(world, plan).presence is Presence.UNKNOWN
        (queue / "garbles").unlink()
        assert look(world, plan).presence is Presence.PENDING
        (queue / "holds").unlink()
        until(world, plan, runs(world, plan))
        until(world, plan, over)

    def test_an_app_that_waits_and_is_forgotten_is_cancelled_before_it_counts_as_absent(
        self, world: RealWorld, queue: Path
    ) -> None:
        (queue / "holds").touch()
        plan = world.plan("mislaid", seconds=2)
        world.backend.submit(plan)
        assert look(world, plan).presence is Presence.PENDING
        (queue / "forgets").touch()
        assert look(world, plan).presence is Presence.UNKNOWN
        until(world, plan, lambda seen: seen.presence is Presence.ABSENT)

    def test_the_requests_of_the_runner_cannot_be_read_by_its_jobs(self, world: RealWorld, queue: Path) -> None:
        """torchx's local scheduler lets its jobs inherit the standard input."""
        plan = world.plan("curious")
        world.backend.submit(plan)
        until(world, plan, runs(world, plan))
        assert isinstance(world.backend, TorchxBackend)
        runner = world.backend._client._runner
        assert runner is not None
        inputs = [
            str(Path(f"/proc/{pid}/fd/0").readlink()) for pid in (runner.process.pid, *children(runner.process.pid))
        ]
        assert set(inputs) == {os.devnull}


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
