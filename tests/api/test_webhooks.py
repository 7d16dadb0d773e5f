"""Webhooks over HTTP, and their names in specs."""

from __future__ import annotations

from dataclasses import replace

import httpx
import pytest
from sqlalchemy import text

from orchestrator.api.app import create_app
from orchestrator.commands.job_commands import Commands
from orchestrator.commands.plans import Plans
from orchestrator.domain.access.identity import LOCAL
from orchestrator.domain.access.webhook import Webhook
from orchestrator.domain.errors import Conflict, InvalidSpec
from orchestrator.domain.job.job import JobState
from orchestrator.store.job_reader import JobReader
from orchestrator.store.job_store import SqlJobStore
from orchestrator.store.outbox_store import OutboxStore
from orchestrator.store.webhook_store import WebhookStore
from orchestrator.webhooks.hooks import Hooks, is_proxied
from orchestrator.wire.webhook_views import WebhookRequest, WebhookView
from tests.api.conftest import World
from tests.api.fakes import Client

VIEW = WebhookView(name="pager", host="pager.example:8443", events=["job.state", "recovery.*"], all_jobs=False)


def _configure(world: World, *names: str) -> None:
    """Rebuild the service with other webhooks in its settings."""
    jobs, reader = SqlJobStore(world.database), JobReader(world.database)
    checks = replace(world.services.commands._checks, webhooks=names)
    commands = Commands(jobs, reader, checks, world.clock, lambda: None)
    world.client.close()
    plans = Plans(reader, checks)
    world.client = Client(create_app(replace(world.services, commands=commands, plans=plans, webhooks=[VIEW])))


def test_the_list_of_webhooks_has_no_urls_or_secrets(world: World) -> None:
    assert world.client.get("/api/v1/webhooks").json() == {"items": [], "next_cursor": None}
    _configure(world, "pager")
    answer = world.client.get("/api/v1/webhooks")
    assert answer.json()["items"] == [
        {"name": "pager", "host": "pager.example:8443", "events": ["job.state", "recovery.*"], "all_jobs": False}
    ]


def test_a_job_may_name_the_webhooks_that_are_configured(world: World) -> None:
    _configure(world, "pager", "ops")
    job_id = world.submit(notify=["pager", "ops"])
    assert world.job(job_id).spec.notify == ("pager", "ops")


@pytest.mark.parametrize("path", ["/api/v1/jobs", "/api/v1/plan"])
def test_an_unknown_webhook_is_refused_with_its_pointer(world: World, path: str) -> None:
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


def make(world: World, **fields: object) -> httpx.Response:
    return world.client.post("/api/v1/webhooks", json={"name": "pager", "url": "https://pager.example/in", **fields})


def test_a_webhook_is_created_used_by_a_job_and_removed(world: World) -> None:
    made = make(world, events=["job.*"], all_jobs=True).json()
    assert made.pop("secret").startswith("whsec_")
    assert made == {"name": "pager", "host": "pager.example", "events": ["job.*"], "all_jobs": True}
    assert world.client.get("/api/v1/webhooks").json()["items"] == [made], "its secret is not shown again"
    job_id = world.submit(notify=["pager"])
    outbox = OutboxStore(world.database)
    (owed,) = outbox.claim("pager", limit=9, hold_s=0)
    assert (owed.job["id"], owed.event.event.kind) == (job_id, "job.submitted")
    (endpoint,) = world.services.hooks.endpoints()
    assert endpoint.url == "https://pager.example/in"
    assert world.client.delete("/api/v1/webhooks/pager").status_code == 204
    assert world.client.get("/api/v1/webhooks").json()["items"] == []
    assert outbox.oldest_due_s("pager") is None, "undelivered messages are dropped"
    assert world.post_spec(notify=["pager"]).status_code == 422
    assert world.client.delete("/api/v1/webhooks/pager").status_code == 404
    world.submit()
    assert outbox.oldest_due_s("pager") is None


def test_neither_the_url_nor_the_secret_is_in_the_database(world: World) -> None:
    secret = "whsec_" + "QUJD" * 8
    assert make(world, url="https://pager.example/token-in-path", secret=secret).json()["secret"] == secret
    with world.database.read() as session:
        rows = session.execute(text("SELECT * FROM webhooks")).all()
    assert rows
    assert not any(told in str(rows) for told in ("token-in-path", "QUJD"))
    (endpoint,) = world.services.hooks.endpoints()
    assert endpoint.key == b"ABC" * 8


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"url": "ftp://pager.example"}, "/url"),
        ({"url": "https://user:pass@pager.example/in"}, "/url"),
        ({"url": "https://user@pager.example/in"}, "/url"),
        ({"url": "https://pager.example:port/in"}, "/url"),
        ({"url": "http://127.0.0.1:8700/in"}, "/url"),
        ({"url": "http://169.254.169.254/latest"}, "/url"),
        ({"url": "http://metadata.google.internal/"}, "/url"),
        ({"url": "http://[::1]/in"}, "/url"),
        ({"name": "Pager"}, "/name"),
        ({"name": ""}, "/name"),
        ({"secret": "short"}, "/secret"),
        ({"secret": "whsec_???"}, "/secret"),
        ({"events": []}, "/events"),
        ({"every_job": True}, "/every_job"),
    ],
)
def test_an_invalid_webhook_is_refused_by_field(world: World, fields: dict[str, object], pointer: str) -> None:
    refused = make(world, **fields)
    assert refused.status_code == 422
    assert {error["pointer"] for error in refused.json()["errors"]} == {pointer}
    assert str(fields.get("secret", "no secret")) not in refused.text


@pytest.mark.parametrize(
    ("environment", "proxied"),
    [
        ({}, False),
        ({"https_proxy": "http://proxy.example:3128"}, True),
        ({"all_proxy": "http://proxy.example:3128"}, True),
        ({"http_proxy": "http://proxy.example:3128"}, False),
        ({"https_proxy": "http://proxy.example:3128", "no_proxy": "pager.example"}, False),
    ],
)
def test_a_webhook_behind_a_proxy_can_only_be_in_the_settings(
    world: World, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], proxied: bool
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    vault, clock = world.services.identity.vault, world.clock
    hooks = Hooks(WebhookStore(world.database), vault, clock, is_proxied=is_proxied)
    request = WebhookRequest(name="pager", url="https://pager.example/in")
    if not proxied:
        assert hooks.create(request, by=LOCAL).name == "pager"
        return
    with pytest.raises(InvalidSpec, match="the proxy of the service's environment") as refused:
        hooks.create(request, by=LOCAL)
    assert [problem.pointer for problem in refused.value.problems] == ["/url"]


def test_a_webhook_name_is_unique_and_those_of_the_settings_cannot_be_removed(world: World) -> None:
    assert make(world).status_code == 201
    assert make(world).status_code == 409
    hooks = Hooks(
        WebhookStore(world.database),
        world.services.identity.vault,
        world.clock,
        configured=[Webhook(name="ops")],
    )
    assert sorted(hooks) == ["ops", "pager"]
    assert len(hooks) == 2
    with pytest.raises(Conflict, match="is from the service's settings"):
        hooks.remove("ops", by=LOCAL)
    with pytest.raises(Conflict, match="a webhook ops exists already"):
        hooks.create(WebhookRequest(name="ops", url="https://x.example/"), by=LOCAL)


def test_a_webhook_that_cannot_be_unsealed_does_not_affect_others(world: World) -> None:
    make(world)
    make(world, name="moved")
    with world.database.write() as session:
        session.execute(text("UPDATE webhooks SET sealed = (SELECT sealed FROM webhooks WHERE name = 'pager')"))
    assert [each.webhook.name for each in world.services.hooks.endpoints()] == ["pager"]
    world.services.hooks.remove("moved", by=LOCAL)
    world.services.hooks.reseal()
    assert [each.webhook.name for each in world.services.hooks.endpoints()] == ["pager"]
