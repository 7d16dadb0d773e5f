"""A training job on its page: progress, a killed worker, recovery, logs, another attempt."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from deploy.dev.service import ThrowawayService
from orchestrator.client import Client
from tests.browser.live.screen import WAIT_MS, Screen
from tests.jobs import python_job, until


@pytest.fixture(scope="module")
def trained(service: ThrowawayService) -> Iterator[str]:
    """A job of the bundled trainer that runs during all tests of this file."""
    with Client(service.url) as client:
        spec = {
            "name": "looked-at",
            "run": {"trainer": {"model": "gpt", "data": "stdlib", "steps": 50000, "global_batch": 8}},
            "topology": {"workers_per_node": 2},
            "snapshot": {"interval": "20", "keep": 300},  # none is deleted during the tests
        }
        job_id = client.submit(spec).id
        until(client, job_id, lambda job: job.newest_snapshot is not None, timeout_s=170)
        yield job_id
        client.cancel(job_id)


def test_progress_moves_on_an_open_page(trained: str, screen: Screen) -> None:
    screen.open(f"/jobs/{trained}")
    first = screen.step()
    screen.waits_for_step(first + 3)
    screen.sees(".figures", "50,000")
    screen.sees("#chart-list figcaption", "loss")
    expect(screen.find("#chart-list figure")).to_have_count(4, timeout=WAIT_MS)


def test_a_worker_killed_from_the_page_and_its_recovery_appear(trained: str, screen: Screen, client: Client) -> None:
    screen.open(f"/jobs/{trained}")
    generation = client.job(trained).generation or 0
    screen.find("#ask-chaos > summary").click()
    screen.find("#ask-chaos [name=fault]").select_option("kill")
    screen.find("#ask-chaos [name=rank]").fill("1")
    screen.page.get_by_role("button", name="Inject fault").click()
    screen.sees("#notice", "gets one fault")
    screen.sees("#main", f"workers restarted in place as generation {generation + 1}")
    screen.shows(".pin-failure")
    screen.shows(".pin-recovery")
    until(client, trained, lambda job: job.generation == generation + 1 and (job.step or 0) > 0)
    screen.waits_for_step(screen.step() + 2)
    screen.find("#why-details > summary").click()
    screen.sees(".verdict", "killed on purpose by")
    screen.sees("#why", "requested the fault kill")
    screen.sees(".parts", "Recovering")
    assert float(screen.find(".bin-recovering").first.get_attribute("width").rstrip("%")) > 0  # type: ignore[union-attr]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_on_a_training_job_and_a_phone_shows_it(trained: str, theme: Any, screen: Screen) -> None:
    screen.page.emulate_media(color_scheme=theme)
    screen.open(f"/jobs/{trained}?rank=0")
    screen.sees("#chart-list figcaption", "loss")
    screen.shows(".u-legend")
    assert screen.complaints() == []
    screen.keep(f"job-training-{theme}")
    screen.page.set_viewport_size({"width": 390, "height": 844})
    screen.page.wait_for_function("() => document.querySelector('.uplot').clientWidth < 390")
    assert screen.page.evaluate("() => document.documentElement.scrollWidth") <= 390
    screen.keep(f"job-training-phone-{theme}")


def test_logs_are_followed_searched_and_downloaded(trained: str, screen: Screen) -> None:
    screen.open(f"/jobs/{trained}")
    screen.sees("#log-state", "Following")
    screen.sees("#log", "loss")
    length = len(screen.find("#log").inner_text())
    screen.page.wait_for_function("n => document.getElementById('log').textContent.length > n", arg=length + 100)
    screen.find("#log-tools [name=follow]").uncheck()
    screen.find("#log-tools [name=grep]").fill("committed snapshot")
    screen.sees("#log-state", "with “committed snapshot”")
    lines = screen.find("#log").inner_text().strip().splitlines()
    assert lines
    assert all("committed snapshot" in line for line in lines)
    screen.find("#log-tools [name=rank]").fill("1")
    screen.sees("#log-state", "No lines with “committed snapshot”")
    screen.find("#log-tools [name=grep]").fill("")
    screen.find("#log-tools [name=rank]").fill("99")
    screen.sees("#log-state", "has no log of rank 99")
    screen.find("#log-tools [name=rank]").fill("0")
    expect(screen.find("#log-download")).to_have_attribute("href", re.compile("rank=0"))
    with screen.page.expect_download() as waiting:
        screen.find("#log-download").click()
    assert "loss" in waiting.value.path().read_text()


def test_a_slow_answer_with_log_lines_does_not_replace_a_newer_one(trained: str, screen: Screen) -> None:
    screen.open(f"/jobs/{trained}")
    screen.sees("#log", "loss")
    screen.page.route(lambda url: "/logs?" in url and "grep=" not in url, lambda _: None)  # no answer
    with screen.page.expect_request(lambda request: "/logs?" in request.url):
        screen.find("#log-tools [name=follow]").uncheck()
    with screen.page.expect_event("requestfailed", lambda request: "/logs?" in request.url):
        screen.find("#log-tools [name=grep]").fill("committed snapshot")
    screen.sees("#log-state", "with “committed snapshot”")
    assert all("committed snapshot" in line for line in screen.find("#log").inner_text().strip().splitlines())


def test_a_rank_shows_its_log_and_its_address_can_be_shared(trained: str, screen: Screen) -> None:
    screen.open(f"/jobs/{trained}")
    screen.find("a.rank", has_text="1").first.click()
    screen.sees("#rank", "Rank 1")
    assert "rank=1" in screen.page.url
    screen.page.reload()
    screen.sees("#rank", "local rank 1")
    screen.find("#rank a.more").click()
    screen.lacks("#rank")
    assert screen.page.url.endswith(trained)


def test_open_details_and_typed_text_survive_polling(trained: str, screen: Screen) -> None:
    screen.open(f"/jobs/{trained}")
    screen.find(".events details summary").first.click()
    opened = screen.find(".events details[open]").first.get_attribute("id")
    screen.find("#ask-scale > summary").click()
    screen.find("#ask-scale [name=nodes]").fill("3")
    screen.waits_for_step(screen.step() + 3)
    expect(screen.find("#ask-scale [name=nodes]")).to_have_value("3")
    expect(screen.find("#ask-scale [name=nodes]")).to_be_focused()
    assert screen.find(f"#{opened}[open]").count() == 1
    screen.page.keyboard.press("Escape")
    expect(screen.find("#ask-scale [name=nodes]")).to_be_hidden()


def test_charts_are_zoomed_by_buttons_and_by_dragging(trained: str, screen: Screen, client: Client) -> None:
    screen.open(f"/jobs/{trained}")
    screen.sees("#chart-list figcaption", "loss")
    screen.find(".u-over").first.scroll_into_view_if_needed()
    box = screen.find(".u-over").first.bounding_box()
    assert box is not None
    with screen.page.expect_request(re.compile(r"/charts\?.*until_step=")):
        screen.page.mouse.move(box["x"] + box["width"] * 0.2, box["y"] + 40)
        screen.page.mouse.down()
        screen.page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 60, steps=5)
        screen.page.mouse.up()
    with screen.page.expect_request(re.compile(r"/charts\?since_step=-1")):
        screen.page.get_by_role("button", name="All steps").click()
    screen.page.get_by_role("button", name="Log scale").click()
    expect(screen.page.get_by_role("button", name="Log scale")).to_have_attribute("aria-pressed", "true")


def test_the_launch_is_shown_and_copied(trained: str, screen: Screen) -> None:
    screen.open(f"/jobs/{trained}")
    screen.find("#launch-details > summary").click()
    screen.sees("#command-text", "elasticrun")
    screen.find("#launch .copy").first.click()
    screen.sees("#launch .copy", "Copied")
    assert "looked-at" in screen.page.evaluate("navigator.clipboard.readText()")


def test_another_attempt_begins_from_the_chosen_snapshot(trained: str, screen: Screen, client: Client) -> None:
    screen.open(f"/jobs/{trained}")
    attempts = client.job(trained).attempts
    screen.page.on("dialog", lambda dialog: dialog.accept())
    row = screen.find("tr", has=screen.page.get_by_role("button", name="Retry from this one")).last
    name = row.get_attribute("id")
    row.get_by_role("button", name="Retry from this one").click()
    screen.sees("#notice", "gets a new attempt")
    until(client, trained, lambda job: job.attempts == attempts + 1 and (job.step or 0) > 0, timeout_s=120)
    screen.sees("#main", f"restored step {int(str(name).split('-')[1])} from {name}")


def test_stacks_of_a_rank_are_requested_on_the_page(trained: str, screen: Screen) -> None:
    screen.open(f"/jobs/{trained}?rank=0")
    screen.find("#rank").get_by_role("button", name="Get stacks now").click()
    screen.sees("#notice", "saves its stacks")
    screen.sees("#stacks", "Thread")


def test_a_trainer_that_was_submitted_by_the_form_makes_steps(screen: Screen, client: Client) -> None:
    screen.open("/submit")
    screen.find("[name=name]").fill("trained-from-the-form")
    screen.find("[name=steps]").fill("5000")
    screen.find("[name=workers]").fill("1")
    screen.find("[name=labels]").fill("made=by-hand")
    screen.page.wait_for_function("() => document.getElementById('yaml').value.includes('made: by-hand')")
    screen.find("#go").click()
    screen.sees("h1", "trained-from-the-form")
    screen.waits_for_step(1)
    first = screen.step()
    screen.waits_for_step(first + 2)
    client.cancel(screen.page.url.rpartition("/")[2])
    screen.sees("h1 .chip", "Cancelled")


def test_a_job_goes_from_the_form_to_its_end(screen: Screen, client: Client) -> None:
    code = "import time; print('hello from the form', flush=True); time.sleep(600)"
    screen.open("/submit")
    screen.find("[name=name]").fill("from-the-form")
    screen.find("[name=kind]").select_option("command")
    screen.find("[name=command]").fill(f'{python_job("")["run"]["command"][0]} -c "{code}"')
    screen.find("[name=workdir]").fill("/")
    screen.find("[name=labels]").fill("made=by-hand")
    screen.sees("#plan", "Plan")
    screen.page.wait_for_function("() => document.getElementById('yaml').value.includes('made: by-hand')")
    screen.find("#go").click()
    screen.sees("h1", "from-the-form")
    screen.sees("h1 .chip", "Running")
    screen.sees("#log", "hello from the form")
    job_id = screen.page.url.rpartition("/")[2]
    assert client.job(job_id).labels == {"made": "by-hand"}
    screen.act("cancel", "Cancel job")
    screen.sees("#notice", "is being cancelled")
    screen.sees("h1 .chip", "Cancelled")
    screen.find("a", has_text="Clone").click()
    screen.sees("h1", "Clone of")
    expect(screen.find("[name=labels]")).to_have_value("made=by-hand")
