"""The pages of an array and of a comparison, with curves of real jobs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from deploy.dev.service import ThrowawayService
from orchestrator.client import Client
from tests.browser.live.screen import WAIT_MS, Screen
from tests.jobs import ended, python_job, until

HOSTILE = "<img src=x onerror=window.hit=1>\"'`${window.hit=1}"
# Reports 30 steps. The loss of the job whose rate is 2 becomes NaN. The job whose rate is 3 fails.
CODE = """
import os, sys
from trainer.supervised import Supervised
rate = float(os.environ["RATE"])
run = Supervised(steps=30)
for step in range(30):
    loss = 10 / (1 + rate * step) if rate != 2 or step < 20 else float("nan")
    run.step(step, loss=loss, tokens_per_s=1000 * rate, own=rate)
sys.exit(rate == 3)
"""


@pytest.fixture(scope="module")
def array(service: ThrowawayService) -> Iterator[str]:
    with Client(service.url) as client:
        job = python_job(CODE, name="curves")
        job["supervise"]["budgets"] = {"application": 0}
        sweep = {"zip": {"run.env.RATE": ["1", "2", "3"], "run.env.NOTE": ["a", HOSTILE, "c"]}, "at_once": 2}
        found = client.submit_array({**job, "sweep": sweep})
        for member in found.members:
            until(client, member.job_id, ended)
        yield found.id


@pytest.mark.parametrize("look", ["light", "dark", "phone"])
@pytest.mark.parametrize("page", ["array", "compare"])
def test_both_pages_show_curves_everywhere(page: str, look: Any, screen: Screen, client: Client, array: str) -> None:
    if look == "phone":
        screen.page.set_viewport_size({"width": 390, "height": 844})
    else:
        screen.page.emulate_media(color_scheme=look)
    jobs = [member.job_id for member in client.array(array).members]
    screen.open(f"/arrays/{array}" if page == "array" else "/compare?" + "&".join(f"job={job}" for job in jobs))
    screen.shows("#curve-chart canvas")
    expect(screen.find("#curve-chart .u-series")).to_have_count(4)
    screen.sees(".wide table", "Failed")
    screen.sees("#curve-chart .u-legend", "env.RATE 1, env.NOTE a")
    screen.sees("#curve-notes", "loss became NaN or infinite at step 21")
    assert screen.complaints() == []
    if look == "phone":
        assert screen.page.evaluate("document.documentElement.scrollWidth") <= 390
    assert screen.page.evaluate("window.hit") is None
    screen.keep(f"{page}-{look}")


def test_the_curves_follow_the_choices(screen: Screen, array: str) -> None:
    screen.open(f"/arrays/{array}")
    screen.shows("#curve-chart canvas")
    screen.find("#curves-metric").select_option("own")
    screen.find("#curves-by").select_option("time")
    screen.sees("#curve-chart .u-legend", "seconds")
    screen.find("#curves-by").select_option("tokens")
    screen.sees("#curve-chart .u-legend", "tokens")
    screen.find("#curves-log").click()
    expect(screen.find("#curves-log")).to_have_attribute("aria-pressed", "true")
    screen.shows("#curve-chart canvas")


def test_the_failed_member_is_retried_and_cancelled_from_the_page(screen: Screen, client: Client, array: str) -> None:
    screen.open(f"/arrays/{array}")
    screen.act("retry", "Retry them")
    screen.sees("#notice", f"The members of {array} are retried.")
    failed = client.array(array).members[2].job_id
    until(client, failed, lambda job: job.attempts == 2 and job.ended)
    assert [member.state for member in client.array(array).members] == ["SUCCEEDED", "SUCCEEDED", "FAILED"]


def test_jobs_are_selected_in_the_list_and_compared(screen: Screen, array: str) -> None:
    screen.open(f"/?label=array={array}")
    expect(screen.find("#compare-chosen")).to_be_hidden()
    screen.find("input[name=job]").nth(0).check()
    screen.find("input[name=job]").nth(1).check()
    screen.find("#compare-chosen").click()
    screen.page.wait_for_url(re.compile("/compare[?]job="))
    screen.sees("h1", "Compare 2 jobs")
    screen.shows("#curve-chart canvas")
    screen.find(".wide table a").first.click()
    screen.find("a.label", has_text="array=").click()
    screen.page.wait_for_url(f"**/arrays/{array}", timeout=WAIT_MS)


def test_a_sweep_is_submitted_from_the_page(screen: Screen, client: Client) -> None:
    screen.open("/submit")
    screen.find("#yaml").fill(
        "name: swept\nrun: {command: ['true'], workdir: /}\nsweep: {product: {run.env.N: [1, 2]}}\n"
    )
    screen.sees("#plan", "The sweep makes 2 jobs.")
    screen.find("#go").click()
    screen.page.wait_for_url("**/arrays/swept-*", timeout=WAIT_MS)
    screen.sees("h1", "Array swept-")
    screen.sees("main .note", "2 jobs")
