"""elasticrun outside a job, started in unusual surroundings or with scripts that stop its processes."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.elastic.harness import ELASTICRUN, ROOT, wait_for
from trainer.elastic.rendezvous.failed import RendezvousFailed
from trainer.elastic.workers.workers import _require_reachable

pytestmark = pytest.mark.timeout(300)

_FAILS = "open('runs', 'a').write('x'); raise RuntimeError('boom')"
_STOPS_ITS_PARENT = """\
import os, signal, time
if os.environ["RANK"] == "0":
    os.kill(os.getppid(), signal.SIGSTOP)
    time.sleep(1)
"""
_STOPS_ITS_PARENT_AND_STAYS = _STOPS_ITS_PARENT + "open('stopped', 'w').close()\ntime.sleep(600)\n"


def start(folder: Path, code: str, *flags: str, before: Sequence[str] = (), **options: Any) -> subprocess.Popen[str]:
    (folder / "script.py").write_text(code)
    return subprocess.Popen(
        [*before, *ELASTICRUN, *flags, "script.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


@pytest.mark.parametrize("closed", ["1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_a_script_that_fails_runs_once_whatever_stream_is_closed(tmp_path: Path, closed: str) -> None:
    """Its name in the file table must not go to another file, and the agent must not die of a missing sys.stdout."""
    done = start(tmp_path, _FAILS, "--max-restarts=0", before=("sh", "-c", f'exec "$@" {closed}', "sh"))
    _, printed = done.communicate(timeout=200)
    assert (done.returncode, (tmp_path / "runs").read_text()) == (1, "x"), printed


def test_more_descriptors_than_select_can_name_are_no_problem(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2048:
        pytest.skip("this user may not open so many files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    ends = [socket.socketpair() for _ in range(600)]
    try:
        numbers = [end.fileno() for pair in ends for end in pair]
        assert max(numbers) > 1024
        done = start(tmp_path, "print('ran')", pass_fds=numbers, stdout=subprocess.PIPE)
        printed, complaint = done.communicate(timeout=200)
    finally:
        for pair in ends:
            for end in pair:
                end.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (done.returncode, printed) == (0, "ran\n"), complaint


def test_workers_that_end_while_the_fork_server_is_stopped_have_ended(tmp_path: Path) -> None:
    done = start(tmp_path, _STOPS_ITS_PARENT, "--nproc-per-node=2")
    _, printed = done.communicate(timeout=200)
    assert done.returncode == 0, printed


def test_a_stop_of_a_group_whose_fork_server_is_stopped_does_not_wait_for_its_time_out(tmp_path: Path) -> None:
    agent = start(tmp_path, _STOPS_ITS_PARENT_AND_STAYS, "--nproc-per-node=2")
    wait_for((tmp_path / "stopped").exists, "the stop of the fork server")
    agent.send_signal(signal.SIGTERM)
    _, printed = agent.communicate(timeout=25)  # its workers have 30 s
    assert agent.returncode == 143, printed


def test_an_address_that_does_not_answer_ends_the_launch_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(address: tuple[str, int], timeout: float) -> socket.socket:
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", refuse)
    with pytest.raises(RendezvousFailed, match=r"does not reach its own address 203\.0\.113\.1: timed out"):
        _require_reachable("203.0.113.1")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a network namespace")
def test_two_workers_without_loopback_fail_soon(tmp_path: Path) -> None:
    done = start(tmp_path, "pass", "--nproc-per-node=2", "--max-restarts=0", before=("unshare", "-n"))
    _, printed = done.communicate(timeout=100)
    assert done.returncode == 1, printed
    assert "does not reach its own address" in printed
