"""The list of jobs: filters, order, pages."""

from __future__ import annotations

import re
from html import unescape

import pytest

from orchestrator.dashboard import list_page
from orchestrator.dashboard.list_page import Filters
from orchestrator.domain.job.job import JobState
from orchestrator.store import job_pages
from orchestrator.store.records import JobOrder
from tests.api.conftest import World
from tests.builders import at
from tests.dashboard.looks import Markup, make_trained_job, page


def shown(world: World, address: str) -> list[str]:
    """The ids of the jobs on a page, in order."""
    return re.findall(r'<tr id="job-([^"]+)">', page(world, address))


def test_jobs_are_filtered_by_each_property(world: World) -> None:
    plain = world.submit(name="plain")
    world.clock.moment = at(1)
    special = world.submit(name="special", project="research", labels={"team": "a=b"})
    world.advance(special, JobState.STARTING, JobState.RUNNING, reason="it runs well")
    assert shown(world, "/") == [special, plain]
    assert shown(world, "/?order=oldest") == [plain, special]
    for query in ("state=RUNNING", "project=research", "label=team%3Da%3Db", "q=runs+well", "cluster=local&q=special"):
        assert shown(world, f"/?{query}") == [special], query
    assert "No jobs match" in page(world, "/?project=research&state=QUEUED")
    assert shown(world, "/?state=&project=&cluster=&label=&q=") == [special, plain], "an empty form filters nothing"


def test_a_search_of_a_long_list_continues_on_request(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_pages, "LOOKED_AT", 2)
    world.submit(name="needle")
    for second in range(1, 5):
        world.clock.moment = at(second)
        world.submit(name="hay")
    address = "/?q=needle"
    for _ in range(2):
        first = page(world, address)
        assert "No match so far" in first
        address = unescape(re.findall(r'rel="next" href="([^"]+)">Search more jobs', first)[0])
    assert len(shown(world, address)) == 1
    assert "No jobs match" in page(world, "/?q=needle&state=RUNNING")


def test_every_page_of_a_long_list_is_reached_and_keeps_the_filters(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_page, "JOBS_SHOWN", 3)
    ids = []
    for second in range(8):
        world.clock.moment = at(second)
        ids.append(world.submit(labels={"run": "long"}))
    address, seen = "/?label=run%3Dlong", list[str]()
    while address:
        text = page(world, address)
        seen += re.findall(r'<tr id="job-([^"]+)">', text)
        following = re.findall(r'rel="next" href="([^"]+)"', text)
        address = unescape(following[0]) if following else ""
        assert not address or "label=run%3Dlong" in address
    assert seen == ids[::-1]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("state=odd", "is not a state"),
        ("label=team", "must be written key=value"),
        ("cursor=odd", "cursor does not belong to this list"),
    ],
)
def test_an_invalid_filter_shows_its_error_on_the_page(world: World, query: str, words: str) -> None:
    world.submit()
    text = page(world, f"/?{query}")
    assert words in text
    assert "Show all 1" in text


def test_a_column_sorts_the_list_in_both_directions(world: World) -> None:
    ids = []
    for second, project in enumerate(("beta", "alpha", "beta")):
        world.clock.moment = at(second)
        ids.append(world.submit(project=project))
    world.advance(ids[0], JobState.FAILED)
    assert shown(world, "/?order=project") == [ids[1], ids[0], ids[2]]
    assert shown(world, "/?order=-project") == [ids[2], ids[0], ids[1]]
    assert shown(world, "/?order=state") == [ids[0], ids[1], ids[2]]
    assert shown(world, "/?order=-state") == [ids[2], ids[1], ids[0]]
    assert shown(world, "/?order=odd") == ids[::-1]
    sorted_by = [names for names in Markup(page(world, "/?order=-state")).all("th") if "aria-sort" in names]
    assert [names["aria-sort"] for names in sorted_by] == ["descending"]
    assert 'href="/?order=state">State' in page(world, "/?order=-state")
    assert 'href="/?order=-updated">Updated' in page(world, "/"), "the first click sorts in descending order"
    assert 'href="/?order=updated">Updated' in page(world, "/?order=-updated")
    assert 'href="/?order=-state">State' in page(world, "/?order=state")


def test_every_order_can_be_chosen(world: World) -> None:
    world.submit()
    for order in JobOrder:
        markup = Markup(page(world, f"/?order={order}"))
        assert [names["value"] for names in markup.all("option") if "selected" in names] == [order.value]


def test_jobs_are_sorted_by_priority(world: World) -> None:
    ids = {priority: world.submit(priority=priority) for priority in (0, -5, 9)}
    assert shown(world, "/?order=-priority") == [ids[9], ids[0], ids[-5]]
    text = page(world, "/")
    assert "priority 9" in text
    assert "priority 0" not in text


def test_links_change_one_filter_and_begin_at_the_first_page() -> None:
    filters = Filters(state="FAILED", q="a&b", order="oldest", cursor="xyz")
    assert filters.link(project="p") == "/?state=FAILED&project=p&q=a%26b&order=oldest"
    assert filters.link(cursor="next").endswith("&cursor=next")
    assert Filters(state="FAILED").link(state="") == "/"


def test_every_job_can_be_selected_to_be_compared(world: World) -> None:
    live, ended = world.submit(), world.submit()
    world.advance(ended, JobState.FAILED)
    boxes = [names["value"] for names in Markup(page(world, "/")).all("input") if names.get("name") == "job"]
    assert sorted(boxes) == sorted([live, ended])


def test_a_row_shows_progress(world: World) -> None:
    make_trained_job(world)
    text = page(world, "/")
    assert '<progress value="7" max="8"' in text
    assert 'class="spark"' in text
