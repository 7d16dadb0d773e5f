"""What an agent makes of its generations: which of them lets the next one start at once."""

from __future__ import annotations

import pytest

from trainer.contract.failure import Failure, FailureKind
from trainer.elastic.records.history import History, Running

KILLED = Failure(kind=FailureKind.UNKNOWN, message="killed by SIGKILL", signal="SIGKILL")
RAISED = Failure(kind=FailureKind.APPLICATION, message="KeyError: 'lr'")
PEER = Failure(kind=FailureKind.APPLICATION, message="RuntimeError: Connection closed by peer [127.0.0.1]:33423")


@pytest.mark.parametrize(("failure", "at_once"), [(KILLED, True), (PEER, True), (RAISED, False)])
def test_only_what_the_program_did_itself_makes_the_next_start_wait(failure: Failure, at_once: bool) -> None:
    history = History(None, max_restarts=100, min_nodes=1)
    for generation in range(1, 5):
        assert history.judge(failure, Running(generation=generation, ranks=[0], nodes=1), step=None)
        assert history.end(change="", step=None).lasted is at_once


def test_a_change_of_the_group_is_judged_by_itself_whatever_failed_before() -> None:
    history = History(None, max_restarts=100, min_nodes=1)
    history.judge(KILLED, Running(generation=1, ranks=[0], nodes=1), step=None)
    assert not history.end(change="the group lost host-b", step=None).lasted
    assert history.end(change="the group lost host-b", step=3).lasted
    assert not history.end(change="the group lost host-b", step=3).lasted
