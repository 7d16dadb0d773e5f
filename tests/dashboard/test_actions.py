"""Requests from pages, and that pages of other sites cannot send them."""

from __future__ import annotations

import pytest

from orchestrator.domain.job.job import JobState
from tests.api.conftest import World
from tests.builders import make_batch, make_journal_event
from tests.dashboard.looks import HTML, Markup, make_running_job, make_trained_job, page
from trainer.contract import layout
from trainer.contract.chaos import Fault

SCRIPTED = {"HX-Request": "true", "Origin": "http://localhost:8700", "Sec-Fetch-Site": "same-origin"}
FOREIGN = ({"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"})


def commit_snapshot(world: World, job_id: str, name: str) -> None:
    folder = world.root / job_id / "snapshots" / name
    folder.mkdir(parents=True)
    (folder / layout.MANIFEST).write_text("{}")


def test_an_action_from_a_script_is_answered_with_a_sentence(world: World) -> None:
    job_id = world.submit()
    answer = world.client.post(f"/jobs/{job_id}/cancel", headers=SCRIPTED)
    assert answer.status_code == 200
    assert "demo is being cancelled." in answer.text
    assert world.job(job_id).desired.cancelled


def test_a_refused_action_is_answered_with_a_problem_document(world: World) -> None:
    job_id = world.submit()
    world.advance(job_id, JobState.FAILED)
    answer = world.client.post(f"/jobs/{job_id}/suspend", headers=SCRIPTED)
    assert (answer.status_code, answer.headers["content-type"]) == (409, "application/problem+json")
    assert "there is nothing to suspend" in answer.json()["detail"]


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_a_page_of_another_site_can_request_nothing(world: World, headers: dict[str, str]) -> None:
    job_id = world.submit()
    body = {"job": job_id, "yaml": "name: x\nrun: {command: ['true'], workdir: /}", "nodes": "2"}
    paths = [
        f"/jobs/{job_id}/{verb}"
        for verb in ("cancel", "suspend", "resume", "snapshot", "retry", "scale", "stacks", "chaos")
    ]
    for path in (*paths, "/cancel", "/submit", "/submit/draft"):
        assert world.client.post(path, data=body, headers=headers).status_code == 403, path
    assert world.job(job_id).desired.number == 0
    assert len(world.client.get("/api/v1/jobs").json()["items"]) == 1


def test_a_retry_takes_a_snapshot_and_changes(world: World) -> None:
    job_id = world.submit()
    world.advance(job_id, JobState.FAILED)
    commit_snapshot(world, job_id, "step-00000010-a1-g1")
    form = {"restore_from": "step-00000010-a1-g1", "patch": "run: {env: {SEED: '2'}}\npriority: 5"}
    assert world.client.post(f"/jobs/{job_id}/retry", data=form, headers=SCRIPTED).status_code == 200
    job = world.job(job_id)
    assert job.desired.restore_from == "step-00000010-a1-g1"
    assert (job.spec.priority, job.spec.run.env) == (5, {"SEED": "2"})


@pytest.mark.parametrize(
    ("form", "status", "words"),
    [
        ({"restore_from": "step-00000099-a1-g1"}, 422, "no committed snapshot"),
        ({"patch": "- a list"}, 422, "must be a mapping"),
        ({"patch": "run: ["}, 400, "not YAML"),
        ({"patch": "priority: high"}, 422, "/patch/priority"),
    ],
)
def test_an_invalid_retry_is_refused_on_the_page(world: World, form: dict[str, str], status: int, words: str) -> None:
    job_id = world.submit()
    world.advance(job_id, JobState.FAILED)
    answer = world.client.post(f"/jobs/{job_id}/retry", data=form, headers=SCRIPTED)
    assert (answer.status_code, words in answer.text) == (status, True), answer.text
    assert world.job(job_id).desired.retry_number == 0


def test_a_job_is_scaled_from_its_page(world: World) -> None:
    job_id = world.submit()
    assert world.client.post(f"/jobs/{job_id}/scale", data={"nodes": "2:4"}, headers=SCRIPTED).status_code == 200
    assert world.job(job_id).spec.topology.nodes == "2:4"
    refused = world.client.post(f"/jobs/{job_id}/scale", data={"nodes": "4:2"}, headers=SCRIPTED)
    assert (refused.status_code, "the range ends before it begins" in refused.text) == (422, True)


def test_selected_jobs_are_cancelled_and_refusals_are_listed(world: World) -> None:
    first, second, ended = world.submit(), world.submit(), world.submit()
    world.advance(ended, JobState.FAILED)
    answer = world.client.post("/cancel", data={"job": [first, second, ended, "absent"]}, headers=SCRIPTED)
    assert answer.status_code == 200
    assert "2 jobs are being cancelled." in answer.text
    assert f"{ended}" in answer.text
    assert "absent" in answer.text
    assert world.job(first).desired.cancelled
    assert world.job(second).desired.cancelled
    assert world.client.post("/cancel", data={"job": first}, headers=HTML).status_code == 303


def test_cancelling_needs_one_to_200_jobs(world: World) -> None:
    assert "no job is selected" in world.client.post("/cancel", headers=SCRIPTED).text
    many = {"job": [f"job-{number}" for number in range(201)]}
    assert "at most 200" in world.client.post("/cancel", data=many, headers=SCRIPTED).text


def test_an_invalid_form_is_refused_with_400(world: World) -> None:
    job_id = world.submit()
    many = "&".join(f"a{number}=1" for number in range(2000))
    for body in (many.encode(), b"\xff\xfe=1"):
        assert world.client.post(f"/jobs/{job_id}/retry", content=body, headers=SCRIPTED).status_code == 400


def test_the_page_offers_to_retry_from_each_good_snapshot(world: World) -> None:
    job_id = make_trained_job(world)
    before = page(world, f"/jobs/{job_id}")
    assert "No snapshot yet" in before
    assert '<option value="">its own files or from its beginning</option>' in before
    names = [f"step-0000000{step}-a1-g1" for step in (3, 6)]
    events = [
        (20 + index, make_journal_event("snapshot.committed", evidence={"name": name, "size_bytes": 5}))
        for index, name in enumerate(names)
    ]
    world.journals.ingest([make_batch(job_id, events=events)], arrived_at=world.clock.now())
    after = page(world, f"/jobs/{job_id}")
    assert '<option value="">the newest snapshot</option>' in after
    assert all(f"<option>{name}</option>" in after for name in names)


def offered(text: str) -> set[str]:
    return {(form.get("action") or "").rpartition("/")[2] for form in Markup(text).all("form")}


def test_stacks_of_a_rank_are_requested_and_shown_on_the_page(world: World) -> None:
    job_id = make_running_job(world)
    assert "stacks" in offered(page(world, f"/jobs/{job_id}"))
    answer = world.client.post(f"/jobs/{job_id}/stacks", data={"rank": "1"}, headers=SCRIPTED)
    assert answer.status_code == 200, answer.text
    request = world.job(job_id).desired.stacks
    assert request is not None
    assert request.rank == 1
    assert "Stacks requested" in page(world, f"/jobs/{job_id}")
    evidence = {"number": request.number, "stacks": {"1": "Thread 7 <b>\n  in all_reduce"}}
    told = make_journal_event("stacks.saved", evidence=evidence)
    world.journals.ingest([make_batch(job_id, events=[(30, told)])], arrived_at=world.clock.now())
    assert "in all_reduce" in page(world, f"/jobs/{job_id}?rank=1")
    assert "&lt;b&gt;" in page(world, f"/jobs/{job_id}?rank=1")
    assert world.client.post(f"/jobs/{job_id}/stacks", data={"rank": "many"}, headers=SCRIPTED).status_code == 422


def test_a_fault_is_requested_on_the_page(world: World) -> None:
    job_id = make_running_job(world)
    options = {option.get("value") for option in Markup(page(world, f"/jobs/{job_id}")).all("option")}
    assert {fault.value for fault in Fault} <= options
    form = {"fault": "kill", "rank": "1", "node": ""}
    answer = world.client.post(f"/jobs/{job_id}/chaos", data=form, headers=SCRIPTED)
    assert answer.status_code == 200, answer.text
    request = world.job(job_id).desired.chaos
    assert request is not None
    assert (request.fault, request.rank) == (Fault.KILL, 1)
    assert "Fault requested" in page(world, f"/jobs/{job_id}")


@pytest.mark.parametrize(
    ("form", "words"),
    [({}, "/fault"), ({"fault": "fire"}, "/fault"), ({"fault": "kill", "rank": "one"}, "/rank")],
)
def test_an_invalid_fault_is_refused_on_the_page(world: World, form: dict[str, str], words: str) -> None:
    job_id = make_running_job(world)
    answer = world.client.post(f"/jobs/{job_id}/chaos", data=form, headers=SCRIPTED)
    assert (answer.status_code, words in answer.text) == (422, True), answer.text
    assert world.job(job_id).desired.chaos is None


def test_chaos_is_offered_only_to_operators(closed: World) -> None:
    job_id = make_running_job(closed, **closed.give("default=submitter", name="submitter"))
    for role, offers in (("viewer", False), ("submitter", False), ("operator", True), ("admin", True)):
        text = page(closed, f"/jobs/{job_id}", **closed.give(f"default={role}", name=role))
        assert ("chaos" in offered(text)) == offers, role
