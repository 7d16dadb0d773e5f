"""Where workers stood before they were killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.elastic.harness import ROOT, SCRIPTS, Job, wait_for
from trainer.elastic.health.stacks import save_stacks
from trainer.elastic.health.standing import Frame, meets_peers

TWO, FAST = "--nproc-per-node=2", "--monitor-interval=0.05"


def test_a_worker_deaf_to_sigterm_is_killed_at_once_and_leaves_its_stacks(job: Job, tmp_path: Path) -> None:
    """After another's failure it has nothing left to finish; the stop time-out is for those that are stopped."""
    steady = str(SCRIPTS / "steady.py")
    agent = job.policy(max_restarts=1, stop_timeout_s=60).start(TWO, FAST, steady, str(tmp_path / "finish"), "--deaf")
    wait_for(lambda: {e["rank"] for e in agent.progress(1)} == {0, 1}, "step of both ranks")
    killed_at = time.monotonic()
    os.kill(agent.pids(1)[0], signal.SIGKILL)
    agent.pids(2)
    assert time.monotonic() - killed_at < 40
    assert "steady.py" in (agent.folder / "g1" / "local-1" / "stacks.txt").read_text()
    saved = agent.events("stacks.saved")
    assert [event["evidence"]["ranks"] for event in saved] == [[1]]


@pytest.mark.long
def test_a_stop_waits_its_time_out_and_saves_the_stacks_of_who_does_not_go(job: Job, tmp_path: Path) -> None:
    steady = str(SCRIPTS / "steady.py")
    agent = job.policy(stop_timeout_s=1).start(TWO, FAST, steady, str(tmp_path / "finish"), "--deaf")
    wait_for(lambda: {e["rank"] for e in agent.progress(1)} == {0, 1}, "step of both ranks")
    began = time.monotonic()
    agent.process.send_signal(signal.SIGTERM)
    assert agent.wait(90) == 143
    assert time.monotonic() - began > 0.9
    for rank in range(2):
        assert "steady.py" in (agent.folder / "g1" / f"local-{rank}" / "stacks.txt").read_text()


def test_a_process_that_does_not_listen_is_not_asked_and_lives_on(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        save_stacks({process.pid: tmp_path})
        time.sleep(0.2)
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def test_a_process_that_is_gone_has_no_stacks(tmp_path: Path) -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert save_stacks({process.pid: tmp_path}) == []


def test_an_answer_that_comes_at_once_is_not_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker may have written before the one who asked looks again."""
    program = "import sys, time; from trainer.elastic.health.stacks import offer_stacks; offer_stacks(sys.argv[1])"
    command = [sys.executable, "-c", f"{program}; print('ready', flush=True); time.sleep(600)", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)})
    kill, answer = os.kill, tmp_path / "stacks.txt"

    def kill_and_wait(pid: int, number: int) -> None:
        kill(pid, number)
        wait_for(lambda: answer.stat().st_size, "answer")

    monkeypatch.setattr("os.kill", kill_and_wait)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert save_stacks({process.pid: tmp_path}) == [process.pid]
    finally:
        monkeypatch.undo()
        process.kill()
        process.communicate()


def test_a_worker_whose_name_is_cut_within_a_character_is_asked_like_any_other(job: Job, tmp_path: Path) -> None:
    script = tmp_path / "обучение.py"  # the kernel keeps 15 bytes of it
    script.write_text((SCRIPTS / "steady.py").read_text())
    agent = job.policy(max_restarts=1, stop_timeout_s=60).start(TWO, FAST, str(script), str(tmp_path / "end"), "--deaf")
    wait_for(lambda: {e["rank"] for e in agent.progress(1)} == {0, 1}, "step of both ranks")
    os.kill(agent.pids(1)[0], signal.SIGKILL)
    agent.pids(2)
    assert [event["evidence"]["ranks"] for event in agent.events("stacks.saved")] == [[1]]


def test_a_pipe_in_place_of_the_stacks_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By py-spy, which is started for whoever does not answer by itself."""
    (tmp_path / "py-spy").write_text("#!/bin/sh\necho stacks\n")
    (tmp_path / "py-spy").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    os.mkfifo(tmp_path / "stacks.txt")
    process = subprocess.Popen(["sleep", "600"])
    try:
        assert save_stacks({process.pid: tmp_path}) == []
    finally:
        process.kill()
        process.wait()


def test_a_frame_of_a_pipe_is_not_read(tmp_path: Path) -> None:
    """As of a script that Python reads from /dev/stdin."""
    os.mkfifo(tmp_path / "script")
    assert not meets_peers([Frame(str(tmp_path / "script"), 1, "main")])
