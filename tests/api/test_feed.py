"""One log with many listeners."""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.domain.errors import StoreUnavailable
from orchestrator.domain.job.job import JobState
from orchestrator.logs import feed as feed_module
from orchestrator.logs.feed import EVERY_S, Feeds, Listener
from orchestrator.logs.follow import Follower
from orchestrator.logs.reader import LogRequest
from tests.api.conftest import World
from tests.api.running import run
from tests.api.test_follow import append
from tests.examples import examples


@dataclass
class Hall:
    """Feeds with a clock that the test moves."""

    world: World
    feeds: Feeds
    now_s: list[float]

    def listen(self, job_id: str, **request: object) -> Listener:
        return self.feeds.listen(job_id, LogRequest(**request))  # type: ignore[arg-type]

    def later(self, seconds: float = EVERY_S) -> None:
        self.now_s[0] += seconds


@pytest.fixture
def hall(world: World) -> Hall:
    now_s = [100.0]
    return Hall(world, Feeds(world.services.logs, monotonic=lambda: now_s[0]), now_s)


@pytest.fixture
def job_id(world: World) -> str:
    return run(world)


def hear(listener: Listener) -> str:
    """Read as the stream does."""
    text = listener.recall()
    return (listener.look() if text is None else text).decode()


@pytest.fixture
def polls(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """One item for each read of a log."""
    made: list[None] = []
    poll = Follower.poll

    def counted(self: Follower) -> list[str]:
        made.append(None)
        return poll(self)

    monkeypatch.setattr(Follower, "poll", counted)
    return made


def test_a_log_is_read_once_for_all_who_follow_it(hall: Hall, job_id: str, polls: list[None]) -> None:
    log = hall.world.write_log(job_id, "a\nb\n")
    crowd = [hall.listen(job_id, tail=1 + number % 2) for number in range(100)]
    assert [hear(one) for one in crowd] == ["b\n", "a\nb\n"] * 50
    polls.clear()
    append(log, "c\n")
    assert {hear(one) for one in crowd} == {""}
    hall.later()
    assert {hear(one) for one in crowd} == {"c\n"}
    assert len(polls) == 1
    assert {hear(one) for one in crowd} == {""}
    assert len(polls) == 1


def test_different_requests_are_different_feeds(hall: Hall, job_id: str) -> None:
    hall.world.write_log(job_id, "keep 1\ndrop\n")
    assert hear(hall.listen(job_id)) == "keep 1\ndrop\n"
    assert hear(hall.listen(job_id, grep="keep")) == "keep 1\n"


@settings(max_examples=examples(15, 200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    acts=st.lists(
        st.one_of(
            st.sampled_from(["", "x", "word\n", "\n", "two\nlines\n", "torn\nwo"]),  # text that is appended
            st.integers(0, 3),  # a listener that reads, and starts with its first read
        ),
        max_size=25,
    )
)
def test_a_late_listener_gets_every_line_once(hall: Hall, acts: list[str | int]) -> None:
    job_id = run(hall.world)
    log = hall.world.write_log(job_id, "before\nunfin")
    listeners: dict[int, Listener] = {}
    heard: dict[int, str] = {}
    for act in acts:
        if isinstance(act, str):
            append(log, act)
            continue
        listener = listeners.setdefault(act, hall.listen(job_id, tail=1000))
        heard[act] = heard.get(act, "") + hear(listener)
        hall.later(EVERY_S / 2)
    hall.world.advance(job_id, JobState.SUCCEEDED)
    for number, listener in listeners.items():
        while not listener.ended:
            heard[number] += hear(listener)
            hall.later()
    written = log.read_text()
    whole = written if written.endswith("\n") else written + "\n"
    assert heard == dict.fromkeys(listeners, whole)


def test_a_slow_listener_is_told_that_lines_are_missing(
    hall: Hall, job_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "_KEPT_BYTES", 10)
    log = hall.world.write_log(job_id, "")
    quick, slow = hall.listen(job_id), hall.listen(job_id)
    assert hear(quick) + hear(slow) == ""
    for number in range(5):
        append(log, f"line {number}\n")
        hall.later()
        assert hear(quick) == f"line {number}\n"
    assert hear(slow) == "[lines are missing here: the log grew faster than you read it]\nline 4\n"
    assert hear(slow) == ""


def test_a_feed_ends_with_its_last_listener(hall: Hall, job_id: str) -> None:
    hall.world.write_log(job_id, "a\n")
    listener = hall.listen(job_id)
    hear(listener)
    assert len(hall.feeds._feeds) == 1
    del listener
    assert len(hall.feeds._feeds) == 0


def test_a_listener_after_a_retry_follows_the_new_attempt(hall: Hall, job_id: str) -> None:
    hall.world.write_log(job_id, "first\n")
    over = hall.listen(job_id)
    hall.world.advance(job_id, JobState.FAILED)
    assert hear(over) == "first\n"
    assert over.ended
    hall.world.client.post(f"/api/v1/jobs/{job_id}/retry")
    again = hall.listen(job_id)
    hear(again)
    assert not again.ended


def test_following_an_unknown_log_ends_at_once(hall: Hall, job_id: str) -> None:
    hall.world.write_log(job_id, "a\n")
    for listener in [hall.listen(job_id, rank=7), hall.listen(job_id, rank=7)]:
        assert hear(listener) == ""
        assert listener.ended


def test_lines_that_all_listeners_have_received_are_dropped(hall: Hall, job_id: str) -> None:
    log = hall.world.write_log(job_id, "")
    one, other = hall.listen(job_id), hall.listen(job_id)
    hear(one)
    hear(other)
    (feed,) = hall.feeds._feeds.values()
    for number in range(5):
        append(log, f"{number}\n")
        hall.later()
        hear(one)
        assert len(feed.sent.pieces) == 1 + number, "the other listener has read none of them"
    assert hear(other) == "0\n1\n2\n3\n4\n"
    append(log, "5\n")
    hall.later()
    assert hear(one) == hear(other) == "5\n"
    assert len(feed.sent.pieces) == 1


def test_a_listener_after_a_rotation_gets_each_line_once(hall: Hall, job_id: str) -> None:
    log = hall.world.write_log(job_id, "old 1\nold 2\nold 3\n")
    first = hall.listen(job_id)
    hear(first)
    log.rename(log.with_name("log.1"))
    log.write_text("new 1\nnew 2\n")
    second = hall.listen(job_id, tail=2)
    assert hear(second) == "new 1\nnew 2\n"
    hall.later()
    assert hear(second) == ""
    assert hear(first).endswith("new 1\nnew 2\n")


def test_one_listener_notices_an_outage_for_all(hall: Hall, job_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hall.world.write_log(job_id, "a\n")
    crowd = [hall.listen(job_id) for _ in range(10)]
    assert {hear(one) for one in crowd} == {"a\n"}
    asked: list[None] = []

    def away(*_: object) -> None:
        asked.append(None)
        raise StoreUnavailable("the database does not answer")

    monkeypatch.setattr(Follower, "poll", away)
    hall.later()
    with pytest.raises(StoreUnavailable):
        hear(crowd[0])
    assert {hear(one) for one in crowd} == {""}
    assert len(asked) == 1


@pytest.mark.long
def test_concurrent_listeners_get_every_line_once(world: World, job_id: str) -> None:
    """Real threads, with a clock that makes every poll due."""
    log = world.write_log(job_id, "")
    feeds = Feeds(world.services.logs, monotonic=itertools.count().__next__)
    over = threading.Event()
    heard: list[str] = []

    def listen() -> None:
        listener, text = feeds.listen(job_id, LogRequest(tail=10_000)), ""
        while not (over.is_set() and listener.ended):
            text += hear(listener)
        heard.append(text)

    threads = [threading.Thread(target=listen) for _ in range(6)]
    for number in range(300):
        append(log, f"line {number}\n" * (1 + number % 3))
        if number % 50 == 0:
            threads[number // 50].start()
    world.advance(job_id, JobState.SUCCEEDED)
    over.set()
    for thread in threads:
        thread.join(timeout=300)
    assert heard == [log.read_text()] * 6


def test_many_long_logs_are_read_in_bounded_pieces(hall: Hall, job_id: str) -> None:
    logs: list[Path] = [hall.world.write_log(job_id, "", f"1/g1/local-{number}/log") for number in range(40)]
    listener = hall.listen(job_id)
    hear(listener)
    for log in logs:
        append(log, "x" * 999 + "\n" + 999 * ("y" * 999 + "\n"))
    bites = []
    hall.later()
    while text := hear(listener):
        bites.append(len(text))
    assert sum(bites) == 40 * 1000 * (1000 + len("[a1 g1 r0/12] ")) - 10 * 1000
    assert max(bites) < 20_000_000
