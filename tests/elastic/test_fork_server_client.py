"""The agent's side of the fork server, with a server that refuses, is lost, or is busy."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.elastic.harness import wait_for
from trainer.elastic.channel import Channel
from trainer.elastic.workers.ending import kill_workers
from trainer.elastic.workers.fork_server import ForkServer
from trainer.elastic.workers.fork_server_client import ForkedProcess, ForkServerClient, ForkServerError


class Scripted(ForkServerClient):
    """A client whose server is the test."""

    def __init__(self) -> None:
        channel, self.server = Channel.pair()
        super().__init__(channel, server_pid=os.getpid(), base={})

    def order(self) -> ForkedProcess:
        return self.start([sys.executable, "-c", "pass"], {}, local_rank=0, stdout=None, stderr=None)


@pytest.fixture
def fork_server() -> Iterator[Scripted]:
    made = Scripted()
    yield made
    made.server.close()
    made.close()


def test_a_refused_worker_has_ended_with_code_1(fork_server: Scripted) -> None:
    refused, started = fork_server.order(), fork_server.order()
    fork_server.server.send({"refused": refused.number, "why": "cannot fork a worker"})
    fork_server.server.send({"started": started.number, "pid": os.getpid(), "because": "", "spare": False})
    with pytest.raises(ForkServerError, match="cannot fork a worker"):
        fork_server.listen(60)
    assert refused.poll() == 1
    refused.send_signal(signal.SIGTERM)
    assert started.pid == os.getpid()
    fork_server.server.send({"ended": os.getpid(), "code": 0})
    assert started.wait(300) == 0


@pytest.mark.parametrize(
    "send", [lambda process: process.send_signal(signal.SIGTERM), lambda process: kill_workers([process])]
)
def test_a_worker_without_a_process_gets_no_signal(
    fork_server: Scripted, monkeypatch: pytest.MonkeyPatch, send: Callable[[ForkedProcess], None]
) -> None:
    """For kill(2) the pid 0 is the agent's own process group."""
    process, sent = fork_server.order(), []
    monkeypatch.setattr("trainer.elastic.workers.fork_server_client._ROUSE_EVERY_S", 0.01)
    monkeypatch.setattr("os.kill", lambda pid, number: sent.append(pid))
    monkeypatch.setattr("os.killpg", lambda pid, number: sent.append(pid))
    monkeypatch.setattr(fork_server, "rouse", fork_server.server.close)  # it is lost while its answer is awaited
    send(process)
    assert sent == []
    assert process.returncode == -signal.SIGKILL


def test_workers_of_a_lost_server_count_as_killed(fork_server: Scripted) -> None:
    process = fork_server.order()
    fork_server.server.close()
    fork_server.listen(60)
    assert process.poll() == -signal.SIGKILL
    with pytest.raises(ForkServerError, match="the fork server is gone"):
        fork_server.order()


def test_a_server_that_imports_does_not_delay_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is only asked to end finishes the import first. Its folder for warm-ups must not stay either."""
    left = tmp_path / ".elasticrun-scratch-left"
    left.mkdir()
    (tmp_path / "slow.py").write_text(f"import time\nopen({str(tmp_path / 'begun')!r}, 'w').close()\ntime.sleep(600)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("trainer.elastic.workers.fork_server.adopt_orphans", lambda: None)
    with Path(os.devnull).open("w") as results:
        server = ForkServer([], results.fileno())
        server.order_agent({})  # it ends at once, because the order is incomplete
        while not any("agent_ended" in message for message in server.receive() or ()):
            pass
        server.prepare(["slow"])
        wait_for((tmp_path / "begun").exists, "import")
        began_s = time.monotonic()
        server.close()
    assert time.monotonic() - began_s < 5
    assert not left.exists()
