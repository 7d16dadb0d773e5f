"""The agent's side of the fork server, with a server that refuses, is lost, or is busy."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.elastic.harness import wait_for
from trainer.elastic.channel import Channel
from trainer.elastic.workers.nursery import ForkedProcess, Nursery, NurseryError


class Scripted(Nursery):
    """Its server is the test."""

    def __init__(self) -> None:
        super().__init__()
        self._channel, self.server = Channel.pair()

    def order(self) -> ForkedProcess:
        return self.start([sys.executable, "-c", "pass"], {}, local_rank=0, stdout=None, stderr=None)


@pytest.fixture
def nursery(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scripted]:
    # They would kill and reap the other tests' processes.
    monkeypatch.setattr("trainer.elastic.workers.nursery.end_descendants", lambda _: None)
    monkeypatch.setattr("trainer.elastic.workers.nursery.reap_orphans", lambda: None)
    made = Scripted()
    yield made
    made.server.close()
    made.close()


def test_a_refused_worker_has_ended_with_code_1(nursery: Scripted) -> None:
    refused, started = nursery.order(), nursery.order()
    nursery.server.send({"refused": refused.number, "why": "cannot fork a worker"})
    nursery.server.send({"started": started.number, "pid": os.getpid(), "because": "", "spare": False})
    with pytest.raises(NurseryError, match="cannot fork a worker"):
        nursery.listen(60)
    assert refused.poll() == 1
    refused.send_signal(signal.SIGTERM)
    assert started.pid == os.getpid()
    nursery.server.send({"ended": os.getpid(), "code": 0})
    assert started.wait(60) == 0


def test_a_worker_without_a_process_gets_no_signal(nursery: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    """For kill(2) the pid 0 is the agent's own process group."""
    process, sent = nursery.order(), []
    monkeypatch.setattr("os.kill", lambda pid, number: sent.append((pid, number)))
    monkeypatch.setattr(process, "poll", lambda: None)
    nursery.server.close()
    process.send_signal(signal.SIGTERM)
    assert sent == []


def test_a_server_without_workers_is_killed_during_an_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would end only after the import, which can take seconds."""
    (tmp_path / "slow.py").write_text(f"import time\nopen({str(tmp_path / 'begun')!r}, 'w').close()\ntime.sleep(600)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr("trainer.elastic.workers.nursery.adopt_orphans", lambda: None)
    monkeypatch.setattr("trainer.elastic.workers.nursery._CLOSE_S", 600.0)
    nursery = Nursery()
    nursery.prepare(["slow"])
    wait_for((tmp_path / "begun").exists, "import")
    nursery.close()
