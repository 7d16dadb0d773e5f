"""Following logs, poll by poll and over a real socket."""

from __future__ import annotations

import errno
import itertools
import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import uvicorn

from orchestrator.api.app import create_app
from orchestrator.domain.errors import StoreUnavailable
from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.job import JobState
from orchestrator.logs.feed import Feeds
from orchestrator.logs.reader import LogRequest
from tests.api.conftest import World
from tests.api.running import RUNNING, run


@pytest.fixture
def job_id(world: World) -> str:
    return run(world)


class Ear:
    """A single listener. Each poll reads the log again."""

    def __init__(self, world: World, job_id: str, request: LogRequest) -> None:
        feeds = Feeds(world.services.logs, monotonic=itertools.count().__next__)
        self._listener = feeds.listen(job_id, request)

    def poll(self) -> list[str]:
        return self._listener.look().decode().split("\n")[:-1]

    @property
    def ended(self) -> bool:
        return self._listener.ended


def follow(world: World, job_id: str, **request: object) -> Ear:
    return Ear(world, job_id, LogRequest(**request))  # type: ignore[arg-type]


def polls(follower: Ear, count: int = 5) -> list[str]:
    """Enough polls that one of them looks for new files."""
    return [line for _ in range(count) for line in follower.poll()]


def append(path: os.PathLike[str], text: str) -> None:
    with open(path, "a", encoding="utf-8") as file:  # noqa: PTH123
        file.write(text)


def test_the_last_lines_come_first_and_new_ones_follow(world: World, job_id: str) -> None:
    log = world.write_log(job_id, "a\nb\nc\n")
    follower = follow(world, job_id, tail=2)
    assert follower.poll() == ["b", "c"]
    assert polls(follower) == []
    append(log, "d\ne")
    assert polls(follower) == ["d"]
    append(log, "nd\n")
    assert polls(follower) == ["end"]


def test_following_may_begin_before_the_job_starts(world: World) -> None:
    job_id = world.submit()
    follower = follow(world, job_id)
    assert polls(follower) == []
    world.advance(job_id, *RUNNING)
    world.start(job_id, state=AttemptState.RUNNING)
    world.write_log(job_id, "".join(f"{number}\n" for number in range(500)))
    assert len(polls(follower)) == 500


def test_new_generations_and_attempts_are_followed(world: World, job_id: str) -> None:
    log = world.write_log(job_id, "first\n")
    follower = follow(world, job_id)
    assert follower.poll() == ["first"]
    world.write_log(job_id, "again\n", "1/g2/local-0/log")
    assert polls(follower) == ["[a1 g2 r0/0] again"]
    append(log, "late words of the old generation\n")
    world.start(job_id, 2, state=AttemptState.RUNNING)
    world.write_log(job_id, "anew\n", attempt=2)
    assert polls(follower) == ["[a1 g1 r0/0] late words of the old generation", "[a2 g1 r0/0] anew"]


def test_the_last_lines_of_an_attempt_come_before_the_next_one(world: World, job_id: str) -> None:
    log = world.write_log(job_id, "first\n")
    follower = follow(world, job_id)
    follower.poll()
    append(log, "torn")
    world.start(job_id, 2, state=AttemptState.RUNNING)
    world.write_log(job_id, "anew\n", attempt=2)
    assert polls(follower, 9) == ["torn", "anew"]


def test_a_truncated_log_is_followed_from_its_start(world: World, job_id: str) -> None:
    log = world.write_log(job_id, "one\ntwo\n")
    follower = follow(world, job_id)
    follower.poll()
    os.truncate(log, 0)
    append(log, "x\n")
    assert polls(follower) == ["[the log was cut here; older lines are in log.1]", "x"]


def test_following_survives_a_file_that_disappears_and_returns(world: World, job_id: str) -> None:
    log = world.write_log(job_id, "one\n")
    follower = follow(world, job_id)
    follower.poll()
    log.rename(log.with_name("away"))
    assert polls(follower) == []
    log.write_text("back\n")
    assert polls(follower)[-1] == "back"


def test_following_ends_with_the_job_and_its_last_lines(world: World, job_id: str) -> None:
    log = world.write_log(job_id, "one\n")
    follower = follow(world, job_id)
    follower.poll()
    append(log, "two\nlast words without an end")
    world.advance(job_id, JobState.SUCCEEDED)
    assert polls(follower) == ["two", "last words without an end"]
    assert follower.ended


def test_following_an_ended_job_gives_its_last_lines_and_ends(world: World, job_id: str) -> None:
    world.write_log(job_id, "one\ntwo")
    world.advance(job_id, JobState.FAILED)
    follower = follow(world, job_id)
    assert follower.poll() == ["one", "two"]
    assert follower.ended


def test_following_an_older_attempt_ends_at_once(world: World, job_id: str) -> None:
    world.write_log(job_id, "old\n")
    world.start(job_id, 2, state=AttemptState.RUNNING)
    follower = follow(world, job_id, attempt=1)
    assert follower.poll() == ["old"]
    assert follower.ended


def test_a_job_that_ended_before_it_began_ends_the_stream(world: World) -> None:
    job_id = world.submit()
    world.advance(job_id, JobState.CANCELLED)
    follower = follow(world, job_id)
    assert follower.poll() == []
    assert follower.ended


def test_grep_and_prefixes_hold_while_following(world: World, job_id: str) -> None:
    log = world.write_log(job_id, "keep 1\ndrop\n")
    world.write_log(job_id, "keep 2\n", "1/g1/local-1/log")
    follower = follow(world, job_id, grep="keep")
    assert follower.poll() == ["[a1 g1 r0/0] keep 1", "[a1 g1 r0/1] keep 2"]
    append(log, "drop\nkeep 3\n")
    assert polls(follower) == ["[a1 g1 r0/0] keep 3"]


def test_a_long_line_is_followed_in_bounded_pieces(world: World, job_id: str) -> None:
    log = world.write_log(job_id, "")
    follower = follow(world, job_id)
    follower.poll()
    append(log, "x" * 5_000_000 + "\n")
    (line,) = polls(follower, 12)
    assert line.endswith("[cut: 4934464 more bytes]")


def test_an_outage_of_the_store_loses_no_lines(world: World, job_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log = world.write_log(job_id, "one\n")
    follower = follow(world, job_id)
    assert polls(follower, 4) == ["one"]

    def away(*_: object) -> None:
        raise StoreUnavailable("the database does not answer")

    append(log, "two\n")
    with monkeypatch.context() as outage:
        outage.setattr(type(world.services.logs), "select", away)
        assert follower.poll() == ["two"]
        with pytest.raises(StoreUnavailable):
            follower.poll()
    append(log, "three\n")
    assert polls(follower) == ["three"]


def test_an_error_in_one_file_does_not_affect_others(
    world: World, job_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    healthy, sick = world.write_log(job_id, "a\n"), world.write_log(job_id, "b\n", "1/g1/local-1/log")
    follower = follow(world, job_id)
    assert len(follower.poll()) == 2
    fstat = os.fstat

    def fail(descriptor: int) -> os.stat_result:
        found = fstat(descriptor)
        if found.st_ino == sick.stat().st_ino:
            raise OSError(errno.ESTALE, "Stale file handle")
        return found

    append(healthy, "c\n")
    append(sick, "d\n")
    with monkeypatch.context() as broken:
        broken.setattr(os, "fstat", fail)
        assert polls(follower) == ["[a1 g1 r0/0] c"]
    assert polls(follower) == ["[a1 g1 r0/1] d"]


def test_stale_file_attributes_do_not_hide_lines_for_long(
    world: World, job_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS may return old attributes of a file for a minute."""
    log = world.write_log(job_id, "one\n")
    follower = follow(world, job_id)
    assert polls(follower) == ["one"]
    old, lstat = log.lstat(), Path.lstat
    monkeypatch.setattr(Path, "lstat", lambda path: old if path == log else lstat(path))
    append(log, "two\n")
    assert polls(follower) == ["two"]
    append(log, "last\n")
    world.advance(job_id, JobState.SUCCEEDED)
    assert polls(follower) == ["last"]
    assert follower.ended


def test_grep_reads_past_long_parts_without_a_match(world: World, job_id: str) -> None:
    log = world.write_log(job_id, "keep 1\n")
    follower = follow(world, job_id, grep="keep")
    assert follower.poll() == ["keep 1"]
    append(log, 8000 * ("drop" * 250 + "\n") + "keep 2\n")
    world.advance(job_id, JobState.SUCCEEDED)
    assert polls(follower, 9) == ["keep 2"]


@pytest.fixture
def closing() -> threading.Event:
    return threading.Event()


@pytest.fixture
def address(world: World, closing: threading.Event) -> Iterator[str]:
    """The application behind uvicorn, on a free port."""
    listener = socket.create_server(("127.0.0.1", 0))
    app = create_app(replace(world.services, closing=closing.is_set))
    config = uvicorn.Config(app, log_level="error", lifespan="off", timeout_graceful_shutdown=5)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    closing.set()
    server.should_exit = True
    thread.join(timeout=300)
    assert not thread.is_alive()
    listener.close()


def test_lines_arrive_while_the_job_runs_and_the_stream_ends_with_it(world: World, job_id: str, address: str) -> None:
    log = world.write_log(job_id, "one\n")
    with httpx.stream("GET", f"{address}/api/v1/jobs/{job_id}/logs?follow=true", timeout=300) as answer:
        lines = answer.iter_lines()
        assert next(lines) == "one"
        append(log, "two\n")
        assert next(lines) == "two"
        world.advance(job_id, JobState.SUCCEEDED)
        append(log, "three\n")
        assert list(lines) == ["three"]


def test_a_service_that_closes_ends_its_streams(
    world: World, job_id: str, address: str, closing: threading.Event
) -> None:
    world.write_log(job_id, "one\n")
    with httpx.stream("GET", f"{address}/api/v1/jobs/{job_id}/logs?follow=true", timeout=300) as answer:
        lines = answer.iter_lines()
        next(lines)
        closing.set()
        assert list(lines) == []  # if the stream did not end, httpx would raise ReadTimeout


def test_a_long_body_gets_its_answer_over_a_real_socket(address: str) -> None:
    headers = {"Content-Type": "application/json"}
    for content in (b"x" * 5_000_000, iter([b"x" * 100_000] * 50)):
        answer = httpx.post(f"{address}/api/v1/jobs", content=content, headers=headers, timeout=300)
        assert answer.status_code == 413
        assert answer.json()["status"] == 413
