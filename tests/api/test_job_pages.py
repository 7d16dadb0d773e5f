"""The list of jobs shows specs as they are stored. Its bytes are those that the full models would give."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.job import Job, JobState
from orchestrator.domain.specs.spec import JobSpec
from orchestrator.store.job_store import SqlJobStore
from orchestrator.wire.answers import Page
from orchestrator.wire.job_views import FailureView, JobView
from tests.api.conftest import World
from tests.builders import NOW, make_batch, make_event, make_job, make_progress
from tests.specs import specs
from trainer.contract.failure import Failure, FailureKind

LIST = "/api/v1/jobs?order=oldest"


def store(world: World, *jobs: Job) -> None:
    for job in jobs:
        SqlJobStore(world.database).add(job, idempotency_key=None, digest="d", event=make_event())


def damage(world: World, job_id: str, spec: str) -> None:
    with world.database.write() as session:
        session.execute(text("UPDATE jobs SET spec = :spec WHERE id = :id"), {"spec": spec, "id": job_id})


def render(view: Page[JobView] | JobView) -> bytes:
    return view.model_dump_json(by_alias=True).encode()


@given(documents=st.lists(specs(), min_size=1, max_size=4))
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_page_has_the_bytes_of_the_full_models(world: World, documents: list[dict[str, Any]]) -> None:
    with world.database.write() as session:
        session.execute(text("DELETE FROM jobs"))
    jobs = [make_job(f"job-{number}", spec=JobSpec.model_validate(each)) for number, each in enumerate(documents)]
    store(world, *jobs)
    answer = world.client.get(LIST)
    parsed = Page[JobView].model_validate_json(answer.content)
    assert [view.spec for view in parsed.items] == [world.job(job.id).spec for job in jobs]
    assert answer.content == render(parsed)


def test_a_page_shows_what_each_job_and_its_newest_attempt_have(world: World) -> None:
    job_ids = [world.submit(labels={"team": "vision"}, supervise={"budgets": {"preemption": 2}}) for _ in range(3)]
    failure = Failure(kind=FailureKind.APPLICATION, message="ValueError", rank=1)
    world.start(job_ids[0], 1, state=AttemptState.FAILED, failure=failure)
    world.start(job_ids[0], 2, state=AttemptState.RUNNING, nodes="1:2", asked="1:2")
    world.journals.ingest([make_batch(job_ids[0], 2, progress=[(9, make_progress(4))])], arrived_at=NOW)
    world.advance(job_ids[0], JobState.STARTING, JobState.RUNNING, spent={"application": 1, "preemption": 1})
    world.start(job_ids[1], 1, state=AttemptState.FAILED, failure=failure)
    answer = world.client.get(LIST)
    page = Page[JobView].model_validate_json(answer.content)
    assert answer.content == render(page)
    first, second, third = sorted(page.items, key=lambda view: job_ids.index(view.id))
    assert (first.attempt, first.attempts, first.nodes, first.pending) == (2, 2, "1:2", ["scale"])
    assert (first.step, first.loss, first.spent) == (4, 0.2, {"application": 1, "preemption": 1})
    assert (first.failure, second.failure) == (None, FailureView(kind="application", message="ValueError", rank=1))
    assert (third.attempt, third.attempts, third.labels) == (None, 0, {"team": "vision"})
    for view in page.items:
        assert world.client.get(f"/api/v1/jobs/{view.id}").content == render(view)
        assert world.services.queries.job(view.id) == view


@pytest.mark.parametrize("spec", ["{", "null", '{"run": {"trainer": {"unknown": 1}}, "labels": 7}'])
def test_a_spec_that_cannot_be_parsed_breaks_no_page(world: World, spec: str) -> None:
    good, bad = world.submit(), world.submit(name="broken")
    damage(world, bad, spec)
    shown = {item["id"]: item for item in world.client.get(LIST).json()["items"]}
    assert (shown[good]["spec"]["name"], shown[bad]["spec"]["name"]) == ("demo", "broken")
    assert world.client.get(f"/api/v1/jobs/{bad}").json() == shown[bad]
    assert world.client.get("/").status_code == 200
    assert world.client.get("/api/v1/goodput").status_code == 200


def test_a_spec_of_an_older_version_is_completed(world: World) -> None:
    job_id = world.submit()
    expected = world.client.get(LIST).content
    stored = json.loads(world.job(job_id).spec.model_dump_json())
    del stored["placement"], stored["array"], stored["supervise"]["budgets"]["launch"]
    damage(world, job_id, json.dumps({"invented": 1, **stored}))
    assert world.client.get(LIST).content == expected
