"""A service that needs tokens: signing in and out, roles, and the settings pages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from deploy.dev.service import ThrowawayService
from orchestrator.client import Client
from orchestrator.domain.access.identity import Role
from tests.browser.live.screen import WAIT_MS, Screen
from tests.jobs import python_job, running, until

FIRST = "the first admin's token"
HOSTILE = "<img src=x onerror=window.hit=1><script>window.hit=1</script>"
SETTINGS = ("/projects", "/tokens", "/secrets", "/webhooks")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThrowawayService]:
    settings = {"ORCHESTRATOR_LOCAL_SLOTS": "8", "ORCHESTRATOR_POLL_S": "0.1", "ORCHESTRATOR_TOKEN": FIRST}
    with ThrowawayService(tmp_path_factory.mktemp("closed") / "runs", settings) as started:
        yield started


@pytest.fixture
def client(service: ThrowawayService) -> Iterator[Client]:
    with Client(service.url, FIRST) as connected:
        yield connected


@pytest.fixture(scope="module")
def job(service: ThrowawayService) -> Iterator[str]:
    with Client(service.url, FIRST) as client:
        job_id = client.submit(python_job("import time; time.sleep(900)", name="guarded", project="research")).id
        until(client, job_id, running)
        yield job_id
        client.cancel(job_id)


def sign_in(screen: Screen, token: str, path: str = "/") -> None:
    screen.open(path)
    screen.find("#token").fill(token)
    screen.page.get_by_role("button", name="Sign in").click()
    screen.sees(".account", "Sign out")


def viewer(client: Client, name: str = "vera") -> str:
    return client.create_token(name, {"research": Role.VIEWER}).token


def test_signing_in_leads_to_the_requested_page_and_signing_out_ends_the_session(screen: Screen, job: str) -> None:
    screen.open(f"/jobs/{job}")
    screen.sees("main", "Sign in")
    screen.find("#token").fill("orc_0123456789abcdef_wrong")
    screen.page.get_by_role("button", name="Sign in").click()
    screen.sees("main [role=alert]", "not valid here")
    screen.find("#token").fill(FIRST)
    screen.page.get_by_role("button", name="Sign in").click()
    screen.sees("h1", "guarded")
    assert screen.page.url.endswith(f"/jobs/{job}")
    screen.page.get_by_role("button", name="Sign out").click()
    screen.shows("#token")
    screen.open("/")
    screen.shows("#token")


def test_a_viewer_cannot_cancel_a_job(screen: Screen, client: Client, job: str) -> None:
    sign_in(screen, viewer(client), f"/jobs/{job}")
    screen.sees("h1 .chip", "Running")
    screen.act("cancel", "Cancel job")
    screen.sees("#notice .bad", "this needs the role operator")
    assert not client.job(job).cancelling
    screen.open("/submit")
    screen.sees("main", "403")
    screen.open("/projects")
    expect(screen.find("nav[aria-label=Settings] a")).to_have_text(["Projects", "Webhooks"], timeout=WAIT_MS)


def test_a_job_of_another_project_is_hidden(screen: Screen, client: Client, job: str) -> None:
    token = client.create_token("otto", {"vision": Role.ADMIN}).token
    sign_in(screen, token)
    screen.lacks(f"#job-{job}")
    screen.open(f"/jobs/{job}")
    screen.sees("main", "404")


def test_a_token_is_made_used_and_revoked_on_its_page(screen: Screen, client: Client) -> None:
    sign_in(screen, FIRST, "/tokens")
    screen.find("[name=name]").fill("made by hand")
    screen.find("[name=grants]").fill("research=viewer")
    screen.page.get_by_role("button", name="Create token").click()
    screen.sees("#made-text", "orc_")
    token = screen.find("#made-text").inner_text()
    screen.find(".copy").click()
    screen.sees(".copy", "Copied")
    assert screen.page.evaluate("navigator.clipboard.readText()") == token
    screen.open("/tokens")
    screen.lacks("#made-text")
    screen.page.once("dialog", lambda dialog: dialog.dismiss())
    row = screen.find("tr", has_text="made by hand")
    row.get_by_role("button", name=re.compile("Revoke")).click()
    expect(row).to_contain_text("until", timeout=WAIT_MS)
    screen.page.once("dialog", lambda dialog: dialog.accept())
    row.get_by_role("button", name=re.compile("Revoke")).click()
    expect(row).to_contain_text("revoked", timeout=WAIT_MS)
    screen.page.get_by_role("button", name="Sign out").click()
    screen.find("#token").fill(token)
    screen.page.get_by_role("button", name="Sign in").click()
    screen.sees("main [role=alert]", "not valid here")


def test_a_secret_is_stored_and_removed_on_its_page(screen: Screen) -> None:
    sign_in(screen, FIRST, "/secrets")
    screen.find("[name=project]").fill("research")
    screen.find("[name=name]").fill("WANDB_API_KEY")
    screen.find("[name=value]").fill("a value that nobody sees")
    screen.page.get_by_role("button", name="Save secret").click()
    screen.sees("#research-WANDB_API_KEY", "first admin")
    assert "a value that nobody sees" not in screen.page.content()
    screen.page.once("dialog", lambda dialog: dialog.accept())
    screen.find("#research-WANDB_API_KEY").get_by_role("button").click()
    screen.lacks("#research-WANDB_API_KEY")


def test_settings_take_texts_as_texts(screen: Screen) -> None:
    sign_in(screen, FIRST, "/tokens")
    screen.find("[name=name]").fill(HOSTILE)
    screen.find("[name=grants]").fill(f"{HOSTILE}=viewer")
    screen.page.get_by_role("button", name="Create token").click()
    screen.sees(".problems", "/name")
    screen.open("/secrets")
    for name in ("project", "name", "value"):
        screen.find(f"[name={name}]").fill(HOSTILE)
    screen.page.get_by_role("button", name="Save secret").click()
    screen.sees(".problems", "/project")
    assert screen.page.evaluate("window.hit") is None


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_on_the_settings_and_a_phone_shows_them(
    screen: Screen, client: Client, job: str, theme: Any
) -> None:
    screen.page.emulate_media(color_scheme=theme)
    screen.open("/")
    assert screen.complaints() == []
    screen.keep(f"sign-in-{theme}")
    viewer(client, f"shown in {theme}")
    sign_in(screen, FIRST)
    for path in SETTINGS:
        screen.page.set_viewport_size({"width": 1280, "height": 900})
        screen.open(path)
        screen.shows("main h1")
        assert screen.complaints() == []
        screen.keep(f"{path.strip('/')}-{theme}")
        screen.page.set_viewport_size({"width": 390, "height": 844})
        assert screen.page.evaluate("document.documentElement.scrollWidth") <= 390
