"""The cost of an open page: 304 while nothing changed, and one built page for many browsers."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from orchestrator.dashboard.page_cache import Parts, Recent
from orchestrator.dashboard.pages import RELEASE
from orchestrator.domain.job.job import JobState
from tests.api.conftest import World
from tests.builders import at, make_batch, make_journal_event, make_progress
from tests.dashboard.looks import make_trained_job

FRAGMENT = {"X-Fragment": "main"}


def tag_of(world: World, path: str) -> str:
    answer = world.client.get(path, headers=FRAGMENT)
    assert answer.headers["x-release"] == RELEASE
    return answer.headers["etag"]


def status_of(world: World, path: str, tag: str) -> int:
    answer = world.client.get(path, headers={**FRAGMENT, "If-None-Match": tag})
    assert answer.status_code != 304 or not answer.content
    return answer.status_code


@pytest.mark.parametrize("path", ["/", "/clusters", "/jobs/{}", "/jobs/{}?rank=0"])
def test_an_unchanged_page_is_304(world: World, path: str) -> None:
    job_id = make_trained_job(world)
    world.advance(job_id, JobState.FAILED)  # the page of a running job changes as its silence grows
    path = path.format(job_id)
    tag = tag_of(world, path)
    assert status_of(world, path, tag) == 304
    world.clock.moment = at(3)  # the page's script updates relative times
    assert status_of(world, path, tag) == 304


def test_a_change_of_a_job_is_sent(world: World) -> None:
    job_id = world.submit()
    path = f"/jobs/{job_id}"

    def moved() -> bool:
        nonlocal tag
        before, tag = tag, tag_of(world, path)
        return status_of(world, path, before) == 200

    tag = tag_of(world, path)
    world.client.post(f"{path}/suspend")
    assert moved(), "a request"
    world.client.post(f"{path}/resume")
    world.advance(job_id, JobState.STARTING, JobState.RUNNING)
    assert moved(), "a state"
    world.start(job_id)
    world.journals.ingest([make_batch(job_id, progress=[(10, make_progress(1))])], arrived_at=world.clock.now())
    assert moved(), "a step"
    world.journals.ingest([make_batch(job_id, events=[(10, make_journal_event())])], arrived_at=world.clock.now())
    assert moved(), "an event"
    assert not moved()
    world.clock.moment = at(60)
    assert moved(), "its silence"


def test_an_open_page_shows_a_new_event_at_once(world: World) -> None:
    job_id = make_trained_job(world)
    path, poll = f"/jobs/{job_id}", {**FRAGMENT, "If-None-Match": "*"}
    assert "worker.failed" not in world.client.get(path, headers=poll).text
    failure = make_journal_event("worker.failed", sentence="rank 1 was killed")
    world.journals.ingest([make_batch(job_id, events=[(20, failure)])], arrived_at=world.clock.now())
    assert "rank 1 was killed" in world.client.get(path, headers=poll).text


def test_an_open_page_is_not_sent_its_log_again(world: World) -> None:
    job_id = make_trained_job(world, "a line of the log")
    assert "a line of the log\n</pre>" in world.client.get(f"/jobs/{job_id}").text
    assert "a line of the log\n</pre>" not in world.client.get(f"/jobs/{job_id}", headers=FRAGMENT).text


def test_the_shown_log_of_a_rank_is_sent_when_it_grows(world: World) -> None:
    job_id = make_trained_job(world)
    path = f"/jobs/{job_id}?rank=0"
    tag = tag_of(world, path)
    world.write_log(job_id, "one more line\n")
    assert status_of(world, path, tag) == 200


def test_a_whole_page_is_always_sent(world: World) -> None:
    tag = tag_of(world, "/")
    assert world.client.get("/", headers={"If-None-Match": tag}).status_code == 200


def test_concurrent_requests_share_one_build() -> None:
    recent, built, together = Recent(), [], threading.Barrier(8)

    def build() -> str:
        built.append(1)
        return "page"

    def ask(_: int) -> str:
        together.wait(timeout=300)
        return recent.get("/", build)

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(ask, range(8))) == {"page"}
    assert len(built) == 1


def test_a_built_page_is_cached_for_a_second() -> None:
    now = 100.0
    recent, count = Recent(keep_s=1, clock=lambda: now), iter(range(10))
    assert [recent.get("/", lambda: str(next(count))) for _ in range(2)] == ["0", "0"]
    assert recent.get("/other", lambda: "another") == "another"
    now = 101.5
    assert recent.get("/", lambda: str(next(count))) == "1"


def test_a_build_that_fails_leaves_nothing_behind() -> None:
    recent = Recent()
    with pytest.raises(ZeroDivisionError):
        recent.get("/", lambda: str(1 // 0))
    assert recent.get("/", lambda: "fixed") == "fixed"


def test_many_addresses_are_not_kept_for_ever() -> None:
    recent = Recent()
    for number in range(2000):
        recent.get(f"/?q={number}", lambda: "page")
    assert len(recent._kept) <= 501


class Standing:
    """A clock, and a part that counts its builds."""

    def __init__(self) -> None:
        self.now = 0.0
        self.built = 0
        self.parts: Parts[int] = Parts(keep_s=10, clock=lambda: self.now)

    def build(self) -> int:
        self.built += 1
        return self.built

    def get(self, version: str = "v1") -> int:
        return self.parts.get("job", version, self.build)


def test_a_part_is_built_once_for_each_version() -> None:
    world = Standing()
    assert [world.get(), world.get(), world.get("v2"), world.get("v2")] == [1, 1, 2, 2]


def test_an_old_part_is_returned_and_rebuilt_in_the_background() -> None:
    world = Standing()
    world.get()
    world.now = 11
    assert world.get() == 1
    world.parts.close()
    assert world.get() == 2


def test_a_very_old_part_is_rebuilt_before_it_is_returned() -> None:
    world = Standing()
    world.get()
    world.now = 100
    assert world.get() == 2


def test_a_part_whose_rebuild_fails_stays_and_is_tried_again() -> None:
    world = Standing()
    world.get()
    world.now = 11
    world.parts._renew_soon("job", "v1", lambda: 1 // 0)
    assert world.get() == 1
    world.parts.close()
    assert not world.parts._building


def test_parts_are_not_kept_for_ever() -> None:
    parts: Parts[int] = Parts(keep_s=10)
    for number in range(500):
        parts.get(str(number), "v1", lambda: 1)
    assert len(parts._kept) <= 200
