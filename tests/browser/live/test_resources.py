"""What ranks use, on the page of a real job whose agent samples them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from deploy.dev.service import ThrowawayService
from orchestrator.client import Client
from orchestrator.wire.history_views import ResourcesView
from tests.browser.live.screen import WAIT_MS, Screen
from tests.jobs import ended, python_job, until

# Rank 1 allocates 100 MB. In generation 1 it fails once both ranks have been sampled.
GREEDY = """
import json, os, pathlib, sys, time
rank, generation = int(os.environ["RANK"]), os.environ["ORCHESTRATOR_GENERATION"]
held = bytearray(os.urandom(1) * (100_000_000 if rank else 20_000_000))
path = pathlib.Path(os.environ["ORCHESTRATOR_REPLICA_DIR"], "resources.jsonl")
while generation == "2" or not path.exists() or len(json.loads(path.read_text().splitlines()[-1])["ranks"]) < 2:
    sum(range(100_000))
    time.sleep(0.05)
sys.exit(rank)
"""


@pytest.fixture(scope="module")
def greedy(service: ThrowawayService) -> Iterator[str]:
    """A job with two ranks and samples of two generations."""
    with Client(service.url) as client:
        job_id = client.submit(python_job(GREEDY, name="greedy", workers=2)).id
        until(client, job_id, lambda _: is_sampled(client.resources(job_id)))
        yield job_id
        client.cancel(job_id)


def is_sampled(found: ResourcesView) -> bool:
    """Whether both generations have samples. A rank's CPU is known from its second sample on."""
    known = {use.rank for use in found.newest if use.cpu_cores is not None}
    return {start.generation for start in found.starts} == {1, 2} and known == {0, 1}


def test_each_rank_has_a_line_in_each_chart(greedy: str, screen: Screen) -> None:
    screen.open(f"/jobs/{greedy}")
    screen.shows("#resources .uplot")
    titles = screen.find("#resources h3").all_inner_texts()
    assert titles[:2] == ["Memory, bytes", "CPU, busy cores"]
    expect(screen.find("#resources figure").first.locator(".u-legend .u-label")).to_have_text(
        ["UTC", "rank 0", "rank 1"]
    )
    screen.sees("#resources figcaption", "M, rank 1")


def test_an_open_page_fetches_new_samples(greedy: str, screen: Screen) -> None:
    screen.open(f"/jobs/{greedy}")
    screen.shows("#resources .uplot")
    with screen.page.expect_response(lambda answer: f"{greedy}/resources?" in answer.url, timeout=WAIT_MS) as waiting:
        pass
    assert [rank["rank"] for rank in waiting.value.json()["ranks"]] == [0, 1]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_and_a_phone_shows_the_charts(greedy: str, theme: Any, screen: Screen) -> None:
    screen.page.emulate_media(color_scheme=theme)
    screen.open(f"/jobs/{greedy}")
    screen.shows("#resources .uplot")
    assert screen.complaints() == []
    screen.keep(f"resources-{theme}")
    screen.page.set_viewport_size({"width": 390, "height": 844})
    screen.page.wait_for_function("() => document.querySelector('#resources .uplot').clientWidth < 390")
    assert screen.page.evaluate("() => document.documentElement.scrollWidth") <= 390
    screen.keep(f"resources-phone-{theme}")


def test_a_job_without_samples_has_no_section(screen: Screen, client: Client) -> None:
    spec = python_job("print('up')", name="torchrun", launcher="torchrun")
    job_id = client.submit(spec).id
    until(client, job_id, ended)
    with screen.page.expect_response(lambda answer: f"{job_id}/resources?" in answer.url) as waiting:
        screen.open(f"/jobs/{job_id}")
    assert waiting.value.json()["ranks"] == []
    screen.shows("#workers")
    expect(screen.find("#resources")).to_be_hidden()
