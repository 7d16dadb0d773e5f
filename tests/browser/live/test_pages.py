"""All pages: both themes, a phone, keyboard only, hostile texts, and an outage of the service."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect
from sqlalchemy import text

from deploy.dev.service import ThrowawayService
from orchestrator.client import Client
from orchestrator.ports.journals import JournalBatch
from orchestrator.store.engine import Database
from orchestrator.store.journal_store import SqlJournalStore
from tests.browser.live.screen import WAIT_MS, Screen
from tests.builders import make_batch
from tests.jobs import ended, python_job, running, until
from trainer.contract.clock import render_time
from trainer.contract.progress import Phase, Progress

HOSTILE = "<img src=x onerror=window.hit=1><script>window.hit=1</script>\"'`${window.hit=1}"
SLEEP = "import time; time.sleep(900)"
PAGES = (
    "/",
    "/clusters",
    "/fleet",
    "/submit",
    "/jobs/{running}?rank=0",
    "/jobs/{failed}",
    "/jobs/{running}/launch",
    "/jobs/absent",
    "/?q=nothing-has-this-name",
    "/?label=odd",
)


@pytest.fixture(scope="module")
def jobs(service: ThrowawayService) -> Iterator[dict[str, str]]:
    with Client(service.url) as client:
        failing = python_job(f"print({HOSTILE!r}); raise ValueError({HOSTILE!r})", name="failed", labels={"a": HOSTILE})
        failing["supervise"]["budgets"] = {"application": 0}
        sleeping = python_job(f"print({HOSTILE!r}, flush=True); {SLEEP}", name="running", workers=2)
        found = {"running": client.submit(sleeping).id, "failed": client.submit(failing).id}
        until(client, found["failed"], ended)
        until(client, found["running"], running)
        yield found
        client.cancel(found["running"])


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("path", PAGES)
def test_axe_finds_nothing(path: str, theme: Any, screen: Screen, jobs: dict[str, str]) -> None:
    screen.page.emulate_media(color_scheme=theme)
    screen.open(path.format(**jobs))
    screen.shows("main h1, main h2")
    assert screen.complaints() == []
    screen.keep(f"{_name(path)}-{theme}")


def _name(path: str) -> str:
    """The name of a screenshot: "jobs-running" for "/jobs/{running}?rank=0"."""
    return re.sub(r"[^a-z]+", "-", path.partition("?rank")[0]).strip("-") or "jobs"


@pytest.mark.parametrize("path", PAGES)
def test_a_phone_needs_no_horizontal_scrolling(path: str, screen: Screen, jobs: dict[str, str]) -> None:
    screen.page.set_viewport_size({"width": 390, "height": 844})
    screen.open(path.format(**jobs))
    screen.shows("main h1, main h2")
    assert screen.page.evaluate("document.documentElement.scrollWidth") <= 390
    screen.keep(f"{_name(path)}-phone")


def test_a_page_weighs_less_than_200_kb(screen: Screen, jobs: dict[str, str]) -> None:
    screen.page.goto(f"{screen.url}/jobs/{jobs['running']}", wait_until="load")
    screen.page.wait_for_function("performance.getEntriesByType('resource').length >= 7", timeout=WAIT_MS)
    sizes = screen.page.evaluate(
        "['navigation', 'resource'].flatMap(kind => performance.getEntriesByType(kind)).map(one => one.encodedBodySize)"
    )
    assert 20_000 < sum(sizes) < 200_000


def test_hostile_texts_are_shown_as_text(screen: Screen, jobs: dict[str, str], client: Client) -> None:
    screen.open(f"/jobs/{jobs['failed']}")
    screen.sees(".failure", HOSTILE[:20])
    screen.sees("#log", HOSTILE[:20])
    screen.find("#log-tools [name=grep]").fill(HOSTILE)
    screen.sees("#log-state", "line")
    for path in (f"/?q={HOSTILE}", f"/?label={HOSTILE}", "/"):
        screen.open(path)
        screen.shows("#sieve")
    screen.open(f"/fleet?project={HOSTILE[:60]}")
    screen.shows("main h1")
    screen.open("/submit")
    for name in ("name", "project", "model", "data", "workdir", "nodes", "labels"):
        screen.find(f"[name={name}]").fill(HOSTILE)
    screen.sees("#plan", "cannot be submitted")
    screen.find("#yaml").fill(json.dumps({"name": HOSTILE, "run": {"command": [HOSTILE]}}))
    screen.sees("#plan", "/name")
    screen.find("#go").click()
    screen.sees("#plan", "cannot be submitted")
    screen.open(f"/jobs/{jobs['running']}")
    screen.find("#ask-retry > summary").click()
    screen.find("#ask-retry [name=patch]").fill(json.dumps({"name": HOSTILE}))
    screen.page.get_by_role("button", name="Start attempt").click()
    screen.sees("#notice .bad", "cannot change in a retry")
    screen.find("#ask-chaos > summary").click()
    screen.find("#ask-chaos [name=node]").fill(HOSTILE)
    screen.page.get_by_role("button", name="Inject fault").click()
    screen.sees("#notice .bad", "onerror")
    assert screen.page.evaluate("window.hit") is None


def test_the_list_is_usable_by_keyboard(screen: Screen, jobs: dict[str, str]) -> None:
    screen.open("/")
    press = screen.page.keyboard.press
    press("j")
    expect(screen.find("a.row").nth(0)).to_be_focused()
    press("j")
    expect(screen.find("a.row").nth(1)).to_be_focused()
    press("k")
    press("Enter")
    screen.sees("h1", "failed")
    screen.page.go_back()
    press("/")
    expect(screen.find("#search")).to_be_focused()
    screen.page.keyboard.type("running")
    press("Enter")
    screen.page.wait_for_url("**q=running**")
    expect(screen.find("a.row")).to_have_count(1)
    screen.find("#keys").press("Enter")
    screen.find("h1").click()
    press("/")
    expect(screen.find("#search")).not_to_be_focused()
    screen.find("#keys").press("Enter")


def test_a_job_is_cancelled_by_keyboard(screen: Screen, client: Client) -> None:
    job_id = client.submit(python_job(SLEEP, name="by-keys")).id
    until(client, job_id, running)
    screen.open(f"/jobs/{job_id}")
    press = screen.page.keyboard.press
    for _ in range(40):
        press("Tab")
        if screen.page.evaluate("document.activeElement.matches('#ask-cancel > summary')"):
            break
    press("Enter")
    press("Tab")
    press("Enter")
    screen.sees("#notice", "is being cancelled")
    until(client, job_id, ended)
    screen.sees("h1 .chip", "Cancelled")


def test_chosen_jobs_are_cancelled_together(screen: Screen, client: Client) -> None:
    ids = [client.submit(python_job(SLEEP, name="bulk", labels={"bulk": "yes"})).id for _ in range(3)]
    screen.open("/?label=bulk%3Dyes")
    for job_id in ids[:2]:
        screen.find(f"#job-{job_id} input[name=job]").check()
    screen.find("#ask-cancel-chosen > summary").click()
    screen.page.get_by_role("button", name="Cancel them").click()
    screen.sees("#notice", "2 jobs are being cancelled")
    for job_id in ids[:2]:
        screen.sees(f"#job-{job_id} .chip", "Cancelled")
    assert not client.job(ids[2]).cancelling
    client.cancel(ids[2])


def test_a_click_on_a_column_sorts_and_another_reverses_the_order(screen: Screen, jobs: dict[str, str]) -> None:
    screen.open("/")
    for way in ("ascending", "descending"):
        screen.find("th a", has_text="Job").click()
        expect(screen.find("th", has_text="Job")).to_have_attribute("aria-sort", way, timeout=WAIT_MS)
    expect(screen.find("#sieve [name=order]")).to_have_value("-name")
    names = screen.find("a.row").all_inner_texts()
    assert names == sorted(names, reverse=True)


def test_all_jobs_of_a_page_are_selected_at_once(screen: Screen, jobs: dict[str, str]) -> None:
    screen.open("/?state=RUNNING")
    boxes = screen.find("input[name=job]")
    expect(screen.find("#ask-cancel-chosen")).not_to_be_visible()
    screen.find("[data-all]").check()
    assert boxes.count() >= 1
    assert all(box.is_checked() for box in boxes.all())
    expect(screen.find("#ask-cancel-chosen")).to_be_visible()
    with screen.page.expect_response(lambda answer: answer.request.headers.get("x-fragment") == "main"):
        pass  # a poll keeps the selection
    assert all(box.is_checked() for box in boxes.all())
    screen.find("[data-all]").uncheck()
    assert not any(box.is_checked() for box in boxes.all())


@pytest.mark.parametrize(("motion", "moves"), [("no-preference", True), ("reduce", False)])
def test_nothing_moves_where_motion_is_not_requested(
    screen: Screen, jobs: dict[str, str], motion: Any, moves: bool
) -> None:
    screen.page.emulate_media(reduced_motion=motion)
    screen.open("/")
    screen.shows("a.row")
    duration = screen.page.evaluate("getComputedStyle(document.querySelector('.button')).transitionDuration")
    assert (float(duration.split(",")[0].rstrip("s")) > 0) == moves


def test_a_refused_request_shows_its_reason_on_the_page(screen: Screen, jobs: dict[str, str], client: Client) -> None:
    job_id = client.submit(python_job(SLEEP, name="refusing")).id
    screen.open(f"/jobs/{job_id}")
    screen.find("#ask-scale > summary").click()
    screen.find("#ask-scale [name=nodes]").fill("5:2")
    screen.page.get_by_role("button", name="Scale job").click()
    screen.sees("#notice .bad", "the range ends before it begins")
    screen.sees("h1", "refusing")
    client.cancel(job_id)


def test_a_grid_shows_a_thousand_workers(screen: Screen, service: ThrowawayService, client: Client) -> None:
    job_id = client.submit(python_job(SLEEP, name="thousand")).id
    until(client, job_id, running)
    database = Database(f"sqlite:///{service.root / 'orchestrator.db'}")
    moment = client.job(job_id).updated_at
    with database.write() as session:
        session.execute(text("UPDATE attempts SET nodes = '1:125' WHERE job_id = :id"), {"id": job_id})
    SqlJournalStore(database).ingest([_told(job_id, replica, moment) for replica in range(125)], arrived_at=moment)
    database.dispose()
    screen.open(f"/jobs/{job_id}")
    expect(screen.find("#grid a.w")).to_have_count(1000, timeout=WAIT_MS)
    screen.sees("#workers", "999 in step")
    screen.sees("#workers", "rank 777 far behind, 40 steps")
    assert screen.find("#grid a.lag-far").inner_text() == "777"
    expect(screen.find("#grid a.lag-far")).to_have_attribute("title", "far behind, step 60, 61 GB, 93% busy")
    assert "▲" in screen.page.evaluate("getComputedStyle(document.querySelector('a.lag-far'), '::before').content")
    screen.find("#grid a.lag-far").click()
    screen.sees("#rank", "Rank 777: far behind")
    assert screen.complaints() == []
    client.cancel(job_id)


def _told(job_id: str, replica: int, moment: Any) -> JournalBatch:
    """Eight workers of a replica at step 100; rank 777 stands at 60."""
    lines = [
        Progress(
            at=render_time(moment),
            rank=replica * 8 + local,
            local_rank=local,
            world_size=1000,
            generation=1,
            pid=1000 + local,
            phase=Phase.STEP,
            step=60 if replica * 8 + local == 777 else 100,
            memory_bytes=61_000_000_000,
            utilisation=0.93,
            metrics={"step_s": 900.0} if replica + local == 0 else {},  # steps so slow that no worker counts as silent
        )
        for local in range(8)
    ]
    return make_batch(job_id, replica=replica, incarnation=9, progress=list(enumerate(lines, 1)))


def test_a_page_survives_a_restart_of_the_service(
    screen: Screen, service: ThrowawayService, jobs: dict[str, str], client: Client
) -> None:
    screen.open(f"/jobs/{jobs['running']}")
    screen.sees("h1", "running")
    service.kill()
    screen.sees("#offline", "The service is not reachable")
    screen.sees("h1", "running")
    screen.act("suspend", "Suspend job")
    screen.sees("#notice .bad", "nothing was changed")
    service.start()
    expect(screen.find("#offline")).to_be_hidden(timeout=WAIT_MS)
    assert not client.job(jobs["running"]).suspended
    client.cancel(jobs["running"])
    screen.sees("h1 .chip", "Cancelled")
