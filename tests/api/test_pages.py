"""The pages: what they show, and that nothing that comes from outside becomes markup."""

from __future__ import annotations

import re
from datetime import timedelta
from html.parser import HTMLParser

import pytest

from orchestrator.dashboard.curve import WIDTH, build_curve
from orchestrator.dashboard.pages import ASSETS
from orchestrator.dashboard.present import show_ago, show_bytes, show_duration
from orchestrator.domain.attempt import AttemptState
from orchestrator.domain.job import JobState
from orchestrator.wire import MetricsView
from tests.api.conftest import World
from tests.builders import NOW, at, make_batch, make_journal_event, make_progress
from trainer.contract.failure import Failure, FailureKind

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&"
HTML = {"Accept": "text/html"}


class Markup(HTMLParser):
    """Collects the tags and attributes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def page(world: World, path: str, **headers: str) -> str:
    answer = world.client.get(path, headers={**HTML, **headers})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    return answer.text


def make_trained_job(world: World, words: str = "as usual") -> str:
    job_id = world.submit(labels={"note": words[:200]})
    world.advance(job_id, JobState.STARTING, JobState.RUNNING, reason=words)
    failure = Failure(kind=FailureKind.APPLICATION, message=words, rank=1, step=3, traceback=words)
    world.start(job_id, state=AttemptState.FAILED, reason=words, failure=failure, ended_at=at(9))
    lines = [
        (
            step * 10,
            make_progress(step, generation=1 + step // 4, total_steps=8, seconds=step, metrics={"loss": 5.0 - step}),
        )
        for step in range(1, 8)
    ]
    events = [(10, make_journal_event("odd." + words[:50], sentence=words))]
    world.journals.ingest([make_batch(job_id, progress=lines, events=events)], arrived_at=world.clock.now())
    world.write_log(job_id, f"{words}\n")
    return job_id


def test_an_empty_list_says_how_to_begin(world: World) -> None:
    text = page(world, "/")
    assert "No jobs yet" in text
    assert "orchestrator submit" in text


def test_the_list_shows_jobs_and_filters_them(world: World) -> None:
    first, second = world.submit(name="alpha"), world.submit(name="beta")
    world.advance(second, JobState.FAILED, reason="the script was not found")
    text = page(world, "/")
    assert first in text
    assert "the script was not found" in text
    assert first not in page(world, "/?state=FAILED")
    assert second not in page(world, "/?q=alpha")
    assert "Nothing matches" in page(world, "/?q=gamma")


def test_the_list_has_pages(world: World) -> None:
    ids = []
    for second in range(53):
        world.clock.moment = at(second)
        ids.append(world.submit())
    text = page(world, "/?q=demo")
    assert ids[0] not in text
    (older,) = re.findall(r'href="([^"]+)">Older', text)
    assert ids[0] in page(world, older.replace("&amp;", "&"))


def test_the_page_of_a_queued_job_has_its_empty_states(world: World) -> None:
    text = page(world, f"/jobs/{world.submit()}")
    for sentence in ("No loss was reported", "No worker told of its progress", "Nothing was started yet"):
        assert sentence in text


def test_the_page_of_a_job_tells_its_story(world: World) -> None:
    job_id = make_trained_job(world, "rank 1 raised ValueError")
    text = page(world, f"/jobs/{job_id}")
    tags = Markup(text).tags
    assert text.count("rank 1 raised ValueError") >= 5
    assert len([1 for tag, names in tags if tag == "polyline"]) == 1
    assert [names["class"] for tag, names in tags if tag == "g"] == ["mark"]
    assert {names["action"] for tag, names in tags if tag == "form"} == {
        f"/jobs/{job_id}/{verb}" for verb in ("cancel", "retry", "snapshot", "suspend")
    }


def test_a_fragment_is_the_content_of_main_only(world: World) -> None:
    job_id = make_trained_job(world)
    for path in ("/", "/clusters", f"/jobs/{job_id}"):
        whole, part = page(world, path), page(world, path, **{"X-Fragment": "main"})
        assert part.strip() in whole
        assert "<main" not in part
        assert "<html" not in part


def test_nothing_from_outside_becomes_markup(world: World) -> None:
    job_id = make_trained_job(world, HOSTILE)
    for path in ("/", "/clusters", f"/jobs/{job_id}", f"/?q={HOSTILE}", f"/?project={HOSTILE[:60]}"):
        text = page(world, path)
        tags = Markup(text).tags
        assert [names["src"] for tag, names in tags if tag == "script"] == [f"/static/app.js?v={ASSETS['app.js'].tag}"]
        assert all((names["src"] or "").startswith("/static/") for tag, names in tags if tag == "img")
        assert not [name for _, names in tags for name in names if name.startswith("on") or name == "style"]


def test_pages_need_no_inline_script_or_style_and_nothing_from_elsewhere(world: World) -> None:
    text = page(world, f"/jobs/{make_trained_job(world)}")
    assert "<style" not in text
    assert not re.findall(r'(?:src|href|action)="(?!/)[^"]*"', text.replace('href="#main"', ""))
    for name in ("app.css", "app.js", "icon.svg"):
        answer = world.client.get(f"/static/{name}")
        assert answer.status_code == 200
        assert "http" not in answer.text.replace("http://www.w3.org/2000/svg", "")
    assert world.client.get("/static/..%2fpages.py").status_code == 404


def test_a_browser_gets_errors_as_a_page_and_a_program_gets_a_problem(world: World) -> None:
    answer = world.client.get("/jobs/absent", headers=HTML)
    assert (answer.status_code, answer.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "Back to the jobs" in answer.text
    assert world.client.get("/jobs/absent").headers["content-type"] == "application/problem+json"
    assert world.client.get("/api/v1/jobs/absent", headers=HTML).headers["content-type"] == "application/problem+json"
    assert world.client.get("/?state=odd", headers=HTML).status_code == 422


def test_the_buttons_wish_and_lead_back(world: World) -> None:
    job_id = world.submit()
    headers = {**HTML, "Origin": "http://localhost:8700"}
    answer = world.client.post(f"/jobs/{job_id}/cancel", headers=headers)
    assert (answer.status_code, answer.headers["location"]) == (303, f"/jobs/{job_id}")
    assert world.job(job_id).desired.cancelled
    shown = page(world, f"/jobs/{job_id}")
    assert "Being cancelled" in shown
    assert 'action="/jobs/' not in shown, "nothing more can be asked of it"
    world.advance(job_id, JobState.CANCELLED)
    assert world.client.post(f"/jobs/{job_id}/retry", headers=headers).status_code == 303
    assert world.job(job_id).desired.retry_number == 1


def asked_for(world: World, job_id: str) -> list[str]:
    """The wishes that the job's page offers."""
    forms = [
        attributes["action"] or "" for tag, attributes in Markup(page(world, f"/jobs/{job_id}")).tags if tag == "form"
    ]
    return [action.rpartition("/")[2] for action in forms]


def test_a_page_offers_what_makes_sense_in_each_state(world: World) -> None:
    job_id = world.submit()
    assert asked_for(world, job_id) == ["suspend", "retry", "cancel"]
    world.advance(job_id, JobState.STARTING, JobState.RUNNING)
    world.start(job_id, state=AttemptState.RUNNING)
    assert asked_for(world, job_id) == ["snapshot", "suspend", "retry", "cancel"]
    for verb, words in (("snapshot", "Snapshot asked for"), ("suspend", "Being suspended")):
        assert world.client.post(f"/jobs/{job_id}/{verb}", headers=HTML).status_code == 303
        assert words in page(world, f"/jobs/{job_id}")
        assert words in page(world, "/")
    assert asked_for(world, job_id) == ["resume", "retry", "cancel"]
    world.advance(job_id, JobState.SUSPENDED)
    assert "job-suspended" in page(world, f"/jobs/{job_id}")
    assert asked_for(world, job_id) == ["resume", "retry", "cancel"]
    assert world.client.post(f"/jobs/{job_id}/resume", headers=HTML).status_code == 303
    assert "Being resumed" in page(world, f"/jobs/{job_id}")
    world.advance(job_id, JobState.CANCELLED)
    assert asked_for(world, job_id) == ["retry"]
    refused = world.client.post(f"/jobs/{job_id}/suspend", headers=HTML)
    assert refused.status_code == 409
    assert "there is nothing to suspend" in refused.text


def test_a_page_tells_nodes_granted_of_asked_budgets_and_avoided_nodes(world: World) -> None:
    job_id = world.submit(topology={"nodes": "1:4"})
    world.advance(job_id, JobState.STARTING, JobState.RUNNING, spent={"application": 1, "preemption": 2})
    world.start(job_id, state=AttemptState.RUNNING, nodes="1:2", asked="1:4", excluded_nodes=("node7", "node8"))
    text = page(world, f"/jobs/{job_id}")
    assert "on 1:2 nodes, 1:4 asked for" in text
    assert "application 1 of 3, preemption 2<" in text
    assert "node7, node8" in text


def test_the_page_of_clusters_shows_slots_queue_projects_and_avoided_nodes(world: World) -> None:
    assert "No job waits." in page(world, "/clusters")
    assert "No node has a failure" in page(world, "/clusters")
    busy = world.submit(topology={"workers_per_node": 3}, project="research")
    world.advance(busy, JobState.STARTING, JobState.RUNNING)
    world.start(busy, state=AttemptState.RUNNING)
    first, second = world.submit(name="calm"), world.submit(name="urgent", priority=9)
    world.advance(first, JobState.QUEUED, reason="waits for 2 of 4 slots; 1 free now")
    world.blame("node7", busy, sentence=HOSTILE)
    text = page(world, "/clusters")
    assert "3 of 4 slots used, 1 free" in text
    assert "waits for 2 of 4 slots; 1 free now" in text
    assert text.index(second) < text.index(first), "in the order in which they are to start"
    assert "2026-05-04 13:00:00 UTC" in text
    assert "<script>alert" not in text
    assert "Supervised by the test" in text


def series(
    values: list[float | None], generations: list[int] | None = None, attempts: list[int] | None = None
) -> MetricsView:
    count = len(values)
    return MetricsView(
        steps=list(range(count)),
        at=[NOW] * count,
        attempts=attempts or [1] * count,
        generations=generations or [1] * count,
        series={"loss": values},
    )


def test_a_curve_needs_two_values() -> None:
    assert build_curve(series([])) is None
    assert build_curve(series([1.0, None])) is None


def test_a_curve_stays_inside_its_picture_and_has_gaps() -> None:
    curve = build_curve(series([1e9, -3.0, None, 0.0, 2.0]))
    assert curve is not None
    assert len(curve.lines) == 2
    points = [tuple(map(float, point.split(","))) for line in curve.lines for point in line.split()]
    assert all(0 <= x <= WIDTH and 0 <= y <= 240 for x, y in points)


@pytest.mark.parametrize("value", [0.0, -2.5, 1e-300, 1e300])
def test_a_curve_of_one_value_is_a_line(value: float) -> None:
    curve = build_curve(series([value] * 5))
    assert curve is not None
    assert len({point.split(",")[1] for point in curve.lines[0].split()}) == 1


def test_restarts_and_attempts_are_marked_where_they_took_over() -> None:
    curve = build_curve(series([3.0, 2.0, 2.5, 1.0], generations=[1, 1, 2, 1], attempts=[1, 1, 1, 2]))
    assert curve is not None
    assert [(mark.text, mark.new_attempt) for mark in curve.marks] == [("g2", False), ("a2", True)]


def test_thousands_of_restarts_are_marked_without_a_jam_of_labels() -> None:
    curve = build_curve(series([1.0] * 300, generations=list(range(300))))
    assert curve is not None
    assert len([mark for mark in curve.marks if mark.text]) <= 12


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.6, "1 min 00 s"), (3599, "59 min 59 s"), (3660, "1 h 01 min"), (90000, "1 d 1 h")],
)
def test_durations_are_words(seconds: float, text: str) -> None:
    assert show_duration(seconds) == text


def test_times_and_sizes_are_words() -> None:
    assert [show_ago(NOW - timedelta(seconds=s), NOW) for s in (-5, 30, 90, 7200, 200000)] == [
        "just now",
        "30 s ago",
        "1 min ago",
        "2 h ago",
        "2 d ago",
    ]
    assert [show_bytes(size) for size in (None, 0, 999, 1_500_000, 2e15)] == ["–", "0 B", "999 B", "1.5 MB", "2e+03 TB"]
