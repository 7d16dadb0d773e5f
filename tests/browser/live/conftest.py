"""Chromium on the pages of a real service. Without Chromium the tests are skipped; in CI they fail."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Error, Page, sync_playwright

from deploy.dev.service import ThrowawayService
from orchestrator.client import Client
from tests.browser.live.screen import WAIT_MS, Screen

_NAMES = ("chromium", "chromium-browser", "google-chrome")
# Console messages that are due to a stopped service or to a refused request.
_EXPECTED = (
    "Failed to load resource",
    "net::ERR_",
    "Response Status Error Code",
    "htmx:sendError",
    "htmx:afterRequest",
)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = next((found for name in _NAMES if (found := shutil.which(name)) is not None), None)
    if path is None:
        _miss("no Chromium is installed: apt install chromium")
    with sync_playwright() as playwright:
        try:
            launched = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        except Error as error:
            _miss(f"Chromium does not start: {error}")
        yield launched
        launched.close()


def _miss(why: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI must test the pages in a browser: {why}")
    pytest.skip(why)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThrowawayService]:
    """One service for the tests of a file. Each test submits its own jobs."""
    settings = {"ORCHESTRATOR_LOCAL_SLOTS": "16", "ORCHESTRATOR_POLL_S": "0.1", "ORCHESTRATOR_STOP_TIMEOUT_S": "2"}
    with ThrowawayService(tmp_path_factory.mktemp("service") / "runs", settings) as running:
        yield running


@pytest.fixture
def client(service: ThrowawayService) -> Iterator[Client]:
    with Client(service.url) as connected:
        yield connected


@pytest.fixture
def screen(browser: Browser, service: ThrowawayService) -> Iterator[Screen]:
    """A page that must not log script errors or violations of the Content-Security-Policy."""
    context = browser.new_context(
        viewport={"width": 1280, "height": 900}, permissions=["clipboard-read", "clipboard-write"]
    )
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    complaints = _listen(page)
    yield Screen(page, service.url, shots=_shots_folder())
    context.close()
    assert complaints == []


def _listen(page: Page) -> list[str]:
    complaints: list[str] = []

    def hear(message: ConsoleMessage) -> None:
        expected = any(words in message.text for words in _EXPECTED)
        if message.type in ("error", "warning") and not expected:
            complaints.append(message.text)

    page.on("console", hear)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    return complaints


def _shots_folder() -> Path | None:
    """The folder for screenshots; None: none are taken."""
    given = os.environ.get("ORCHESTRATOR_SCREENSHOTS")
    return None if given is None else Path(given)
