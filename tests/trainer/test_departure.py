"""A rank that has lost a peer hands its state over once: in its main thread, or in a second one if that is late."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import resource
import threading
import time
from collections.abc import Iterator

import pytest

from tests.elastic.harness import wait_for
from trainer.contract.env import parse_place
from trainer.elastic.workers.reentry import Reentry
from trainer.elastic.workers.survivors import Survivors
from trainer.snapshot.departure import Departure


class Rank:
    """A rank that has made a step, and its pipes to the agent."""

    def __init__(self, agent: Survivors) -> None:
        self.agent = agent
        self.reentry = Reentry(parse_place({**agent.environment, "LOCAL_RANK": "0"}))
        self.reentry.note_step(1, 0.01)
        self.handed_over_by: list[str] = []
        self.begun, self.goes_on = threading.Event(), threading.Event()
        self.goes_on.set()
        self.changing = threading.Lock()

    def departure(self, reentry: Reentry | None) -> Departure:
        return Departure(reentry, 1, self.hand_over, self.changing)

    def hand_over(self) -> None:
        self.begun.set()
        self.handed_over_by.append(threading.current_thread().name)
        assert self.goes_on.wait(60)

    def order(self) -> None:
        assert self.agent.order(0, 2, {})


@pytest.fixture
def rank() -> Iterator[Rank]:
    agent = Survivors(1)
    yield Rank(agent)
    agent.close()


def test_without_an_order_nothing_is_handed_over(rank: Rank) -> None:
    with rank.departure(rank.reentry):
        pass
    with rank.departure(None) as unused:
        unused.leave()
    assert rank.handed_over_by == []


def test_a_forked_child_does_not_delay_the_end_of_the_context(rank: Rank) -> None:
    """A data loader forks such children."""
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,), daemon=True)
    with rank.departure(rank.reentry):
        child.start()
    child.kill()
    child.join()
    assert rank.handed_over_by == []


def test_a_rank_with_thousands_of_open_files_hands_over(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    """select(2) takes descriptors below 1024 only."""
    monkeypatch.setattr(Reentry, "notices_within_s", 0.0)
    monkeypatch.setattr("os._exit", lambda _: None)
    monkeypatch.setattr("os.pipe2", lambda flags: tuple(fcntl.fcntl(end, fcntl.F_DUPFD, 2000) for end in os.pipe()))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 3000), hard))
    try:
        with rank.departure(rank.reentry):
            rank.order()
            assert rank.begun.wait(60)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert rank.handed_over_by == ["departure"]


def test_a_rank_that_notices_the_loss_hands_over_once(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reentry, "notices_within_s", 0.0)
    with rank.departure(rank.reentry) as own:
        own.leave()
        rank.order()
        wait_for(lambda: "departure" not in {each.name for each in threading.enumerate()}, "the end of the thread")
        assert not rank.changing.locked(), "the process may still change its state"
    assert rank.handed_over_by == ["MainThread"]


def test_an_update_of_a_late_rank_waits_for_the_handover(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside this test the process ends after the handover."""
    monkeypatch.setattr(Reentry, "notices_within_s", 0.0)
    monkeypatch.setattr("os._exit", lambda _: None)
    rank.goes_on.clear()
    with rank.departure(rank.reentry):
        rank.order()
        assert rank.begun.wait(60)
        assert not rank.changing.acquire(timeout=0.1), "no update during the handover"
        rank.goes_on.set()
    assert rank.handed_over_by == ["departure"]


def test_an_order_ends_the_collectives_of_a_rank(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks may wait for one that is silent. Then no connection is closed."""
    broken = threading.Event()
    monkeypatch.setattr("trainer.snapshot.departure.break_process_groups", broken.set)
    with rank.departure(rank.reentry) as own:
        assert not broken.wait(0.1)
        rank.order()
        assert broken.wait(60)
        own.leave()
    assert rank.handed_over_by == ["MainThread"]


def test_one_slow_step_does_not_delay_the_departure(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network that loses packets can delay a step by many seconds, before its node is left out."""
    broken = threading.Event()
    monkeypatch.setattr("trainer.snapshot.departure.break_process_groups", broken.set)
    for step_s in (0.01, 0.01, 3600.0):
        rank.reentry.note_step(1, step_s)
    with rank.departure(rank.reentry) as own:
        rank.order()
        assert broken.wait(60)
        own.leave()
    assert rank.handed_over_by == ["MainThread"]


def test_the_handover_of_a_late_rank_waits_for_an_update(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reentry, "notices_within_s", 0.0)
    monkeypatch.setattr("os._exit", lambda _: None)
    with rank.departure(rank.reentry):
        with rank.changing:
            rank.order()
            assert not rank.begun.wait(0.1)
        assert rank.begun.wait(60)
    assert rank.handed_over_by == ["departure"]
