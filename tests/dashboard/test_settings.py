"""The pages of tokens, secrets, webhooks and projects."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest

from orchestrator.dashboard.settings_pages import parse_grants
from orchestrator.domain.access.identity import LOCAL, Role
from orchestrator.domain.errors import InvalidSpec
from orchestrator.wire.webhook_views import WebhookRequest
from tests.api.conftest import World
from tests.dashboard.looks import HTML, Markup, page

VALUE = "a value that nobody sees"


def make_token(world: World, **fields: str) -> str:
    """The token that the page shows."""
    form = {"name": "alice", "grants": "research=operator, *=viewer", "days": "30", **fields}
    answer = world.client.post("/tokens", data=form, headers=HTML)
    assert answer.status_code == 200, answer.text
    assert answer.headers["cache-control"] == "no-store"
    (text,) = re.findall(r"orc_[0-9a-f]{16}_[A-Za-z0-9_-]{43}", answer.text)
    return str(text)


def test_a_token_is_shown_once_and_expires_as_chosen(world: World) -> None:
    text = make_token(world)
    (token,) = world.services.identity.tokens.listed(LOCAL)
    assert token.grants == {"research": Role.OPERATOR, "*": Role.VIEWER}
    assert token.expires_at == world.clock.now() + timedelta(days=30)
    assert text not in page(world, "/tokens")
    assert "alice" in page(world, "/tokens")
    signed_in = world.client.get("/api/v1/tokens", headers={"Authorization": f"Bearer {text}"})
    assert signed_in.status_code == 403, "the token has the roles operator and viewer, not admin"


def test_a_token_without_expiry_is_valid_until_revoked(world: World) -> None:
    make_token(world, days="")
    (token,) = world.services.identity.tokens.listed(LOCAL)
    assert token.expires_at is None
    answer = world.client.post(f"/tokens/{token.id}/revoke", headers=HTML)
    assert (answer.status_code, answer.headers["location"]) == (303, "/tokens")
    text = page(world, "/tokens")
    assert "revoked" in text
    assert f"/tokens/{token.id}/revoke" not in text, "a revoked token has no button to revoke it"
    assert world.client.post("/tokens/absent/revoke", headers=HTML).status_code == 404


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"grants": "research"}, "must be written project=role"),
        ({"grants": "research=chief"}, "/grants/research"),
        ({"grants": "a=viewer\na=admin"}, "listed twice"),
        ({"grants": ""}, "/grants"),
        ({"name": "<b>"}, "/name"),
        ({"name": "local"}, "is reserved for the service"),
        ({"days": "1000000"}, "choose when"),
    ],
)
def test_a_refused_token_form_is_shown_again(world: World, fields: dict[str, str], words: str) -> None:
    form = {"name": "alice", "grants": "research=viewer", "days": "365", **fields}
    answer = world.client.post("/tokens", data=form, headers=HTML)
    assert answer.status_code == 422
    assert words in answer.text
    assert [names["value"] for names in Markup(answer.text).all("input") if names.get("name") == "name"] == [
        form["name"]
    ]
    assert not world.services.identity.tokens.listed(LOCAL)


def test_grants_are_read_from_lines_and_commas() -> None:
    assert parse_grants("a=viewer\n\n b = admin , *=viewer") == {"a": "viewer", "b": "admin", "*": "viewer"}
    with pytest.raises(InvalidSpec, match="must be written"):
        parse_grants("a=")


def test_an_admin_cannot_grant_roles_in_other_projects(closed: World) -> None:
    admin = closed.give("vision=admin")
    form = {"name": "bob", "grants": "research=viewer", "days": "30"}
    answer = closed.client.post("/tokens", data=form, headers={**HTML, **admin})
    assert answer.status_code == 422
    assert "only in projects of which you are admin" in answer.text


def test_a_secret_is_stored_listed_by_its_name_and_removed(world: World) -> None:
    form = {"project": "research", "name": "WANDB_API_KEY", "value": VALUE}
    answer = world.client.post("/secrets", data=form, headers=HTML)
    assert (answer.status_code, answer.headers["location"]) == (303, "/secrets#research-WANDB_API_KEY")
    assert world.services.identity.vault.reveal("research", ["WANDB_API_KEY"]) == {"WANDB_API_KEY": VALUE}
    text = page(world, "/secrets")
    assert "WANDB_API_KEY" in text
    assert VALUE not in text
    assert world.client.post("/secrets/research/WANDB_API_KEY/remove", headers=HTML).status_code == 303
    assert "WANDB_API_KEY</td>" not in page(world, "/secrets")


@pytest.mark.parametrize(
    "fields", [{"name": "no name"}, {"project": "No Project"}, {"value": "x" * 40_000}, {"value": "abc1"}], ids=str
)
def test_a_refused_secret_form_does_not_show_the_value(world: World, fields: dict[str, str]) -> None:
    form = {"project": "research", "name": "KEY", "value": VALUE, **fields}
    answer = world.client.post("/secrets", data=form, headers=HTML)
    assert answer.status_code == 422
    assert form["value"] not in answer.text
    assert "problems" in answer.text


def test_the_secrets_form_is_only_for_admins(closed: World) -> None:
    closed.store_secret("KEY", VALUE, "research")
    submitter = {**HTML, **closed.give("research=submitter")}
    text = page(closed, "/secrets", **submitter)
    assert "KEY" in text
    assert [form["action"] for form in Markup(text).all("form")] == ["/sign-out"]


def test_the_settings_link_only_pages_that_the_caller_may_open(closed: World) -> None:
    for role, pages in (
        ("viewer", {"/projects", "/webhooks"}),
        ("submitter", {"/projects", "/secrets", "/webhooks"}),
        ("admin", {"/projects", "/tokens", "/secrets", "/webhooks"}),
    ):
        text = page(closed, "/projects", **closed.give(f"research={role}", name=role))
        links = {names["href"] for names in Markup(text).all("a")}
        assert links & {"/projects", "/tokens", "/secrets", "/webhooks"} == pages


def test_a_project_shows_its_quota_use_and_the_callers_role(closed: World) -> None:
    text = page(closed, "/projects", **closed.give("research=operator"))
    row = text[text.index(">research</a>") :].partition("</tr>")[0]
    assert re.findall(r"<td[^>]*>([^<]*)</td>", row) == ["operator", "2", "8", "0", "0", "0"]


def test_all_webhooks_are_listed_without_their_urls(world: World) -> None:
    assert "No webhook is configured" in page(world, "/webhooks")
    request = WebhookRequest(name="pager", url="https://pager.example/a-token-in-the-path")
    world.services.hooks.create(request, by=LOCAL)
    text = page(world, "/webhooks")
    assert "pager.example" in text
    assert "a-token-in-the-path" not in text
