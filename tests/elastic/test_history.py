"""An agent's history decides whether a restart is allowed and whether it pauses first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.elastic.harness import build_record
from trainer.contract.failure import Failure, FailureKind
from trainer.contract.launch import LaunchPolicy
from trainer.elastic.records.history import History, Processes, Running
from trainer.elastic.rendezvous.formation import Formation

KILLED = Failure(kind=FailureKind.UNKNOWN, message="killed by SIGKILL", signal="SIGKILL")
RAISED = Failure(kind=FailureKind.APPLICATION, message="KeyError: 'lr'")
PEER = Failure(kind=FailureKind.APPLICATION, message="RuntimeError: Connection closed by peer [127.0.0.1]:33423")
NOBODY = Processes(pids={}, fresh={}, survivors=[], spares=[])


@pytest.mark.parametrize(("failure", "at_once"), [(KILLED, True), (PEER, True), (RAISED, False)])
def test_only_a_failure_of_the_program_itself_delays_the_next_start(failure: Failure, at_once: bool) -> None:
    history = History(None, max_restarts=100, min_nodes=1)
    for generation in range(1, 5):
        assert history.judge(failure, Running(generation=generation, ranks=[0], nodes=1), step=None)
        assert history.end(change="", step=None).lasted is at_once


def test_time_with_progress_refunds_the_restarts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One restart is allowed. It is refunded after a minute with progress."""
    record = build_record(tmp_path)
    policy = LaunchPolicy(max_restarts=1, stop_timeout_s=1.0, log_limit_bytes=1, refund_after_s=60.0)
    history = History(replace(record, policy=policy), max_restarts=1, min_nodes=1)
    now_s = 0.0
    monkeypatch.setattr("trainer.elastic.records.history.time.monotonic", lambda: now_s)
    formation, restarts = Formation(nodes=1, world_size=1), []
    for generation, step in enumerate([5, 9, 13, 13], start=1):
        history.start(formation, NOBODY, generation=generation, costs={})
        now_s += 1.0 if generation == 4 else 61.0
        history.notice()
        ran = Running(generation=generation, ranks=[0], nodes=1)
        restarts.append(history.judge(KILLED, ran, step=step))
    assert restarts == [True, True, True, False]
    assert "all 1 restarts in place are used up" in history.verdict


def test_a_change_of_the_group_is_judged_independently_of_earlier_failures() -> None:
    history = History(None, max_restarts=100, min_nodes=1)
    history.judge(KILLED, Running(generation=1, ranks=[0], nodes=1), step=None)
    assert not history.end(change="the group lost host-b", step=None).lasted
    assert history.end(change="the group lost host-b", step=3).lasted
    assert not history.end(change="the group lost host-b", step=3).lasted
