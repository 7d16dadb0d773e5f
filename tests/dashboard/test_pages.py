"""The content of the pages."""

from __future__ import annotations

import gc
import re
from datetime import timedelta

import pytest
from jinja2.runtime import Context, Macro

from orchestrator.dashboard.present import show_ago, show_bytes, show_duration
from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.job import JobState
from orchestrator.domain.specs.validation import parse_spec
from tests.api.conftest import World
from tests.api.running import run
from tests.builders import NOW, make_batch, make_journal_event, make_progress
from tests.dashboard.looks import HTML, Markup, make_running_job, make_trained_job, page

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&"


def test_the_page_of_a_job_shows_the_parts_of_a_steps_time(world: World) -> None:
    job_id = make_trained_job(world)
    assert "Seconds per step" not in page(world, f"/jobs/{job_id}")
    split = {"loss": 1.0, "step_s": 0.25, "compute_s": 0.2, "communication_s": 0.05, "data_s": 0.0, "mfu": 0.413}
    lines = [
        (80, make_progress(8, generation=2, metrics=split)),
        (90, make_progress(9, generation=2, metrics={"x": 1.0})),
    ]
    world.journals.ingest([make_batch(job_id, progress=lines)], arrived_at=world.clock.now())
    shown = page(world, f"/jobs/{job_id}")
    assert "computing 80%, communication 20%, data 0%" in shown
    assert "41.3%" in shown


def test_the_page_of_a_job_has_its_restarts_by_source(world: World) -> None:
    job_id = make_running_job(world)
    assert 'id="restarts"' not in page(world, f"/jobs/{job_id}")
    lost = make_journal_event("worker.failed", evidence={"kind": "unknown", "step": 3, "rank": 0})
    begun = make_journal_event("generation.started", generation=2, evidence={"world_size": 2})
    restored = make_journal_event("restored", generation=2, evidence={"step": 1, "source": "memory"})
    events = [(30, lost), (40, begun), (50, restored)]
    world.journals.ingest([make_batch(job_id, events=events)], arrived_at=world.clock.now())
    (found,) = world.client.get(f"/api/v1/jobs/{job_id}/goodput").json()["restarts"]
    assert (found["source"], found["restarts"], found["steps_repeated"], found["steps_unknown"]) == ("memory", 1, 2, 0)
    assert '<td>Memory</td><td class="num">1</td><td class="num">2</td>' in page(world, f"/jobs/{job_id}")


@pytest.mark.parametrize("path", ["/", "/fleet", "/clusters", "/submit", "/jobs/JOB"])
def test_a_rendered_page_leaves_no_garbage(world: World, path: str) -> None:
    path = path.replace("JOB", make_trained_job(world))
    page(world, path)  # the first one compiles the templates
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        page(world, path)
        gc.collect()
        left = [each for each in gc.garbage if isinstance(each, (Context, Macro))]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert left == []


def test_an_empty_list_explains_how_to_submit(world: World) -> None:
    text = page(world, "/")
    assert "No jobs yet" in text
    assert "orchestrator submit" in text


def test_the_page_of_a_queued_job_shows_its_queue_and_no_empty_sections(world: World) -> None:
    holder = run(world, topology={"nodes": "2"}, supervise={"max_runtime_s": 1200})
    world.start(holder, nodes="2", state=AttemptState.RUNNING, started_at=world.clock.now())
    other = run(world, name="other", nodes="2", project="research", topology={"nodes": "2"})
    world.submit(name="first", priority=9, topology={"nodes": "1"})
    text = page(world, f"/jobs/{world.submit(topology={'nodes': '1'})}")
    assert "1 job starts before it." in text
    assert "It starts within about 20 min if no job ahead of it slows down or fails." in text
    assert f'href="/jobs/{holder}"' in text
    assert other not in text
    assert "Other jobs hold 2 devices." in text
    for absent in ("Goodput", "No attempt has started yet", "No snapshot yet", "Newest snapshot"):
        assert absent not in text
    hidden = [tag["id"] for tag in Markup(text).all("div") if "hidden" in tag]
    assert hidden == ["training", "output"]


def test_the_sections_of_a_run_appear_with_its_first_attempt(world: World) -> None:
    job_id = run(world)
    text = page(world, f"/jobs/{job_id}")
    for sentence in ("Goodput", "No metrics yet", "No worker has reported yet", "No snapshot yet", "Newest snapshot"):
        assert sentence in text
    assert not [tag for tag in Markup(text).all("div") if "hidden" in tag]


def test_a_job_on_fewer_nodes_than_it_may_have_says_what_its_growth_waits_for(world: World) -> None:
    job_id = run(world, topology={"nodes": "1:2"})
    world.start(job_id, state=AttemptState.RUNNING, nodes="1", asked="1:2")
    waiting = world.submit(topology={"nodes": "4"})
    text = page(world, f"/jobs/{job_id}")
    assert "Runs on 1 of 2 nodes." in text
    assert f"It grows back when no other job waits for slots. {waiting} waits now." in text
    found = world.client.get(f"/api/v1/jobs/{job_id}/why").json()["wait"]
    assert (found["nodes"], found["holders"]) == (1, [])


def test_the_page_of_a_job_shows_its_failure_and_requests(world: World) -> None:
    job_id = make_trained_job(world, "rank 1 raised ValueError")
    text = page(world, f"/jobs/{job_id}")
    assert text.count("rank 1 raised ValueError") >= 5
    assert {names["action"] for names in Markup(text).all("form") if "action" in names} == {
        f"/jobs/{job_id}/{verb}" for verb in ("cancel", "chaos", "retry", "scale", "snapshot", "stacks", "suspend")
    }
    assert f'href="/submit?from={job_id}"' in text


def test_events_name_their_replica_where_there_are_several(world: World) -> None:
    for nodes, named in (("1", False), ("2", True)):
        job_id = world.submit(topology={"nodes": nodes})
        world.start(job_id)
        told = [(10, make_journal_event("generation.started", sentence="it started"))]
        world.journals.ingest([make_batch(job_id, events=told)], arrived_at=world.clock.now())
        assert ("generation 1 · replica 0" in page(world, f"/jobs/{job_id}")) is named


@pytest.mark.parametrize(("guess", "page"), [("/jobs?state=FAILED", "/?state=FAILED"), ("/goodput", "/fleet")])
def test_an_address_that_people_guess_leads_to_its_page(world: World, guess: str, page: str) -> None:
    answer = world.client.get(guess, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, page)


def test_browsers_find_an_icon(world: World) -> None:
    assert world.client.get("/favicon.ico", follow_redirects=True).headers["content-type"].startswith("image/svg")


def test_a_fragment_is_the_content_of_main_only(world: World) -> None:
    job_id = make_trained_job(world)
    (world.root / job_id / "attempts/1/replica-0/1/g1/local-0/log").unlink()  # a fragment has no log
    for path in ("/", "/clusters", f"/jobs/{job_id}", f"/jobs/{job_id}/launch"):
        whole, part = page(world, path), page(world, path, **{"X-Fragment": "main"})
        assert part.strip() in whole
        assert "<main" not in part
        assert "<html" not in part


def test_pages_have_no_inline_scripts_and_load_nothing_from_other_sites(world: World) -> None:
    text = page(world, f"/jobs/{make_trained_job(world)}")
    assert "<style" not in text
    assert not re.findall(r'(?:src|href|action)="(?:[^"/?#]|//)[^"]*"', text)
    for name in ("app.css", "app.js", "plots.js", "charts.js", "resources.js", "log.js", "submit.js", "icon.svg"):
        answer = world.client.get(f"/static/{name}")
        assert answer.status_code == 200
        assert "http" not in answer.text.replace("http://www.w3.org/2000/svg", "")
    assert world.client.get("/static/..%2fpages.py").status_code == 404


def test_a_browser_gets_errors_as_a_page_and_a_program_gets_a_problem(world: World) -> None:
    answer = world.client.get("/jobs/absent", headers=HTML)
    assert (answer.status_code, answer.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "Back to jobs" in answer.text
    assert world.client.get("/jobs/absent").headers["content-type"] == "application/problem+json"
    assert world.client.get("/api/v1/jobs/absent", headers=HTML).headers["content-type"] == "application/problem+json"


def test_an_unknown_job_can_be_searched_for(world: World) -> None:
    answer = world.client.get("/jobs/train-%3Cb%3E" + "x" * 400, headers=HTML)
    assert answer.status_code == 404
    markup = Markup(answer.text)
    (search,) = [names for names in markup.all("input") if names["name"] == "q"]
    assert (search["value"], len(search["value"] or "")) == ("train-<b>" + "x" * 191, 200)
    assert [names["action"] for names in markup.all("form")] == ["/"]
    assert "<b>" not in answer.text
    assert page(world, "/?q=" + "x" * 200)


def test_an_unknown_page_links_back_to_jobs(world: World) -> None:
    nowhere = world.client.get("/nowhere/at/all", headers=HTML)
    assert (nowhere.status_code, nowhere.text.count("Page not found")) == (404, 2)
    assert 'href="/">Back to jobs' in nowhere.text
    assert not Markup(nowhere.text).all("form")
    assert "Job not found" in world.client.post("/jobs/absent/cancel", headers=HTML).text
    assert "absent" in world.client.post("/tokens/absent/revoke", headers=HTML).text


def test_a_job_of_another_project_looks_like_an_unknown_one(closed: World) -> None:
    owner, stranger = closed.give("default=submitter", name="alice"), closed.give("vision=admin", name="eve")
    job_id = closed.client.post("/api/v1/jobs", json=closed.spec(), headers=owner).json()["id"]
    for path in ("/jobs/{}", "/jobs/{}/launch", "/jobs/{}/charts", "/jobs/{}?rank=0"):
        assert closed.client.get(path.format(job_id), headers={**HTML, **owner}).status_code == 200
        hidden, absent = (
            closed.client.get(path.format(each), headers={**HTML, **stranger}) for each in (job_id, "absent")
        )
        assert (hidden.status_code, absent.status_code) == (404, 404)
        assert hidden.text.replace(job_id, "absent") == absent.text
        assert set(hidden.headers) == set(absent.headers)


def test_a_button_records_a_request_and_redirects_to_the_job(world: World) -> None:
    job_id = world.submit()
    headers = {**HTML, "Origin": "http://localhost:8700"}
    answer = world.client.post(f"/jobs/{job_id}/cancel", headers=headers)
    assert (answer.status_code, answer.headers["location"]) == (303, f"/jobs/{job_id}")
    assert world.job(job_id).desired.cancelled
    assert "Cancelling" in page(world, f"/jobs/{job_id}")
    assert asked_for(world, job_id) == [], "a job that is being cancelled offers no requests"
    world.advance(job_id, JobState.CANCELLED)
    assert world.client.post(f"/jobs/{job_id}/retry", headers=headers).status_code == 303
    assert world.job(job_id).desired.retry_number == 1


def asked_for(world: World, job_id: str) -> list[str]:
    """The requests that the page of a job offers."""
    forms = Markup(page(world, f"/jobs/{job_id}")).all("form")
    return [(form["action"] or "").rpartition("/")[2] for form in forms if "action" in form]


def test_a_page_offers_the_requests_that_fit_each_state(world: World) -> None:
    job_id = world.submit()
    assert asked_for(world, job_id) == ["suspend", "scale", "retry", "cancel"]
    world.advance(job_id, JobState.STARTING, JobState.RUNNING)
    world.start(job_id, state=AttemptState.RUNNING)
    assert asked_for(world, job_id) == ["snapshot", "suspend", "scale", "retry", "chaos", "cancel"]
    for verb, words in (("snapshot", "Snapshot requested"), ("suspend", "Suspending")):
        assert world.client.post(f"/jobs/{job_id}/{verb}", headers=HTML).status_code == 303
        assert words in page(world, f"/jobs/{job_id}")
        assert words in page(world, "/")
    assert asked_for(world, job_id) == ["resume", "scale", "retry", "cancel"]
    world.advance(job_id, JobState.SUSPENDED)
    assert "job-suspended" in page(world, f"/jobs/{job_id}")
    assert asked_for(world, job_id) == ["resume", "scale", "retry", "cancel"]
    assert world.client.post(f"/jobs/{job_id}/resume", headers=HTML).status_code == 303
    assert "Resuming" in page(world, f"/jobs/{job_id}")
    world.advance(job_id, JobState.CANCELLED)
    assert asked_for(world, job_id) == ["retry"]
    refused = world.client.post(f"/jobs/{job_id}/suspend", headers=HTML)
    assert refused.status_code == 409
    assert "there is nothing to suspend" in refused.text


def test_the_page_of_a_job_shows_nodes_budgets_and_avoided_nodes(world: World) -> None:
    job_id = world.submit(topology={"nodes": "1:4"})
    world.advance(job_id, JobState.STARTING, JobState.RUNNING, spent={"application": 1, "preemption": 2})
    world.start(job_id, state=AttemptState.RUNNING, nodes="1:2", asked="1:4", excluded_nodes=("node7", "node8"))
    text = page(world, f"/jobs/{job_id}")
    assert "on 1:2 nodes, 1:4 requested" in text
    assert "application 1 of 3<" in text
    assert re.search(r"<dt>Preemptions</dt>\s*<dd[^>]*>2", text)
    assert "node7, node8" in text


def test_the_page_of_clusters_shows_use_by_user(closed: World) -> None:
    headers = closed.give("research=submitter", name="ada")
    spec = closed.spec(project="research", topology={"workers_per_node": 3})
    ids = [closed.client.post("/api/v1/jobs", json=spec, headers=headers).json()["id"] for _ in range(2)]
    closed.advance(ids[0], JobState.STARTING, JobState.RUNNING)
    closed.start(ids[0], state=AttemptState.RUNNING)
    text = page(closed, "/clusters", **headers)
    row = text[text.index(">ada</td>") - 40 :].partition("</tr>")[0]
    assert re.findall(r">([^<]*)</td>", row) == ["ada", "research", "local", "1", "3", "1"]
    assert ">ada</td>" not in page(closed, "/clusters", **closed.give("vision=admin"))


def test_the_page_of_clusters_shows_slots_queue_projects_and_avoided_nodes(world: World) -> None:
    assert "The queue is empty." in page(world, "/clusters")
    assert "No node has failed recently" in page(world, "/clusters")
    busy = world.submit(topology={"workers_per_node": 3}, project="research")
    world.advance(busy, JobState.STARTING, JobState.RUNNING)
    world.start(busy, state=AttemptState.RUNNING)
    first, second = world.submit(name="calm"), world.submit(name="urgent", priority=9)
    world.advance(first, JobState.QUEUED, reason="needs 2 slots; 1 of 4 is free")
    world.blame("node7", busy, sentence=HOSTILE)
    text = page(world, "/clusters")
    assert "3 of 4 slots used, 1 free" in text
    assert "needs 2 slots; 1 of 4 is free" in text
    assert text.index(second) < text.index(first), "in the order in which they will start"
    assert "2026-05-04 13:00:00 UTC" in text
    assert "<script>alert" not in text
    assert "supervised by the test" in text


def test_the_record_of_a_node_is_cleared_by_a_button(world: World) -> None:
    world.blame("node 7", world.submit())
    (action,) = re.findall(r'action="(/nodes/[^"]*)"', page(world, "/clusters"))
    assert action == "/nodes/local/node%207/clear"
    world.blame("node7", world.submit())
    answer = world.client.post("/nodes/local/node7/clear", headers=HTML)
    assert (answer.status_code, answer.headers["location"]) == (303, "/clusters#nodes")
    assert "node7" not in page(world, "/clusters")


def test_the_button_is_offered_to_operators_of_every_project(closed: World) -> None:
    closed.blame("node7", closed.services.commands.submit(parse_spec(closed.spec()), None)[0].id)
    for role, shown in (("viewer", False), ("operator", True)):
        seen = closed.client.get("/clusters", headers={**HTML, **closed.give(f"*={role}")})
        assert ("/nodes/local/node7/clear" in seen.text, "node7" in seen.text) == (shown, True)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.6, "1 min 00 s"), (3599, "59 min 59 s"), (3660, "1 h 01 min"), (90000, "1 d 1 h")],
)
def test_durations_are_formatted(seconds: float, text: str) -> None:
    assert show_duration(seconds) == text


def test_times_and_sizes_are_formatted() -> None:
    assert [show_ago(NOW - timedelta(seconds=s), NOW) for s in (-5, 30, 90, 7200, 200000)] == [
        "just now",
        "30 s ago",
        "1 min ago",
        "2 h ago",
        "2 d ago",
    ]
    assert [show_bytes(size) for size in (None, 0, 999, 1_500_000, 2e15)] == ["–", "0 B", "999 B", "1.5 MB", "2e+03 TB"]
