"""The stacks of workers, saved before they are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.elastic.harness import ROOT, STEADY, TWO, Job, wait_for
from trainer.elastic.health.stack_frames import Frame, waits_for_peers
from trainer.elastic.health.stacks import save_stacks


def test_after_a_failure_a_worker_that_ignores_sigterm_is_killed_at_once_and_its_stacks_are_saved(
    job: Job, tmp_path: Path
) -> None:
    """The stop timeout applies only to workers that are asked to stop."""
    agent = job.policy(max_restarts=1, stop_timeout_s=3600).start(TWO, STEADY, str(tmp_path / "finish"), "--deaf")
    agent.await_steps(1)
    os.kill(agent.pids(1)[0], signal.SIGKILL)
    agent.pids(2)
    assert "steady.py" in (agent.folder / "g1" / "local-1" / "stacks.txt").read_text()
    saved = agent.events("stacks.saved")
    assert [event["evidence"]["ranks"] for event in saved] == [[1]]


@pytest.mark.long
def test_a_stop_waits_for_its_time_out_and_saves_the_stacks_of_workers_that_still_run(job: Job, tmp_path: Path) -> None:
    agent = job.policy(stop_timeout_s=1).start(TWO, STEADY, str(tmp_path / "finish"), "--deaf")
    agent.await_steps(1)
    began = time.monotonic()
    agent.process.send_signal(signal.SIGTERM)
    assert agent.wait(90) == 143
    assert time.monotonic() - began > 0.9
    for rank in range(2):
        assert "steady.py" in (agent.folder / "g1" / f"local-{rank}" / "stacks.txt").read_text()


def test_a_process_that_is_gone_has_no_stacks(tmp_path: Path) -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert save_stacks({process.pid: tmp_path}) == []


ANSWERS = """
import ctypes, sys, time
from trainer.elastic.health.stacks import offer_stacks
ctypes.CDLL(None).prctl(15, "обучение.py".encode()[:15], 0, 0, 0)
offer_stacks(sys.argv[1])
print("ready", flush=True)
time.sleep(600)
"""


def test_stacks_that_are_written_before_the_first_look_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel truncates the name of the process within a character."""
    command = [sys.executable, "-c", ANSWERS, str(tmp_path)]
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


@pytest.mark.parametrize("rest_s", [0.0, 0.2])
def test_a_process_that_had_no_turn_yet_is_waited_for(tmp_path: Path, rest_s: float) -> None:
    """On a busy machine that takes longer than an answer. Here the signal is blocked as long, and a little longer after
    it has reached the process."""
    late = f"""
import signal
from trainer.elastic.health.stacks import SIGNAL
signal.pthread_sigmask(signal.SIG_BLOCK, {{SIGNAL}})
{ANSWERS.removesuffix("time.sleep(600)" + chr(10))}
end = time.monotonic() + 1
while time.monotonic() < end: pass
if {rest_s}:
    signal.sigwait({{SIGNAL}})
    time.sleep({rest_s})
    signal.raise_signal(SIGNAL)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {{SIGNAL}})
time.sleep(600)
"""
    command = [sys.executable, "-c", late, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            assert save_stacks({process.pid: tmp_path}) == [process.pid]
        finally:
            process.kill()


def test_a_process_without_a_handler_gets_no_signal_and_a_pipe_for_its_stacks_does_not_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """py-spy reads its stacks instead."""
    (tmp_path / "py-spy").write_text("#!/bin/sh\necho stacks\n")
    (tmp_path / "py-spy").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    os.mkfifo(tmp_path / "stacks.txt")
    process = subprocess.Popen(["sleep", "600"])
    sent: list[tuple[int, int]] = []
    try:
        with monkeypatch.context() as patch:
            patch.setattr("os.kill", lambda *call: sent.append(call))
            assert save_stacks({process.pid: tmp_path}) == []
        assert sent == []
    finally:
        process.kill()
        process.wait()


def test_a_source_line_is_not_read_from_a_pipe(tmp_path: Path) -> None:
    """A script on /dev/stdin has such a source file."""
    os.mkfifo(tmp_path / "script")
    assert not waits_for_peers([Frame(str(tmp_path / "script"), 1, "main")])
