"""What the API tells of webhooks, and what it takes of them in a spec."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.api.app import create_app
from orchestrator.commands import Commands
from orchestrator.domain.job import JobState
from orchestrator.store.jobs import SqlJobStore
from orchestrator.store.readers import SqlJobReader
from orchestrator.wire import WebhookView
from tests.api.conftest import World
from tests.api.fakes import Client

VIEW = WebhookView(name="pager", host="pager.example:8443", events=["job.state", "recovery.*"], all_jobs=False)


def _configure(world: World, *names: str) -> None:
    """The service again, with other webhooks in its configuration."""
    clusters: Any = world.services.commands._clusters
    jobs, reader = SqlJobStore(world.database), SqlJobReader(world.database)
    commands = Commands(jobs, reader, clusters, world.clock, lambda: None, webhooks=names)
    world.client.close()
    world.client = Client(create_app(replace(world.services, commands=commands, webhooks=[VIEW])))


def test_the_list_tells_names_hosts_and_events_and_nothing_else(world: World) -> None:
    assert world.client.get("/api/v1/webhooks").json() == {"items": [], "next_cursor": None}
    _configure(world, "pager")
    answer = world.client.get("/api/v1/webhooks")
    assert answer.json()["items"] == [
        {"name": "pager", "host": "pager.example:8443", "events": ["job.state", "recovery.*"], "all_jobs": False}
    ]
    assert world.client.get("/api/v1/webhooks?name=pager").status_code == 422


def test_a_job_may_name_the_webhooks_that_are_configured(world: World) -> None:
    _configure(world, "pager", "ops")
    job_id = world.submit(notify=["pager", "ops"])
    assert world.job(job_id).spec.notify == ("pager", "ops")


@pytest.mark.parametrize("path", ["/api/v1/jobs", "/api/v1/plan"])
def test_an_unknown_webhook_is_refused_where_it_stands(world: World, path: str) -> None:
    _configure(world, "pager", "ops")
    answer = world.post_spec(path, notify=["pager", "pagr"])
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert error["pointer"] == "/notify/1"
    assert error["detail"] == "there is no webhook 'pagr'; known: ops, pager"


def test_a_job_outlives_a_webhook_that_it_names(world: World) -> None:
    _configure(world, "pager", "ops")
    job_id = world.submit(notify=["pager"])
    _configure(world, "ops")
    assert world.client.post(f"/api/v1/jobs/{job_id}/scale", json={"nodes": "1:1"}).status_code == 202
    world.advance(job_id, JobState.FAILED)
    retry = f"/api/v1/jobs/{job_id}/retry"
    added = world.client.post(retry, json={"patch": {"notify": ["pager", "gone"]}})
    assert [error["pointer"] for error in added.json()["errors"]] == ["/patch/notify/1"]
    assert world.client.post(retry, json={"patch": {"priority": 5}}).status_code == 202
