"""The documentation's site: every request goes to its own server, and a phone needs no horizontal scrolling."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.live.screen import WAIT_MS

ROOT = Path(__file__).parents[3]
PAGES = ("", "concepts/", "how-to/submit-a-script/", "reference/cli/", "source/trainer/elastic/agent.py/")


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", folder]
    subprocess.run(build, cwd=ROOT, timeout=300, check=True)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("path", PAGES)
def test_a_page_fits_a_phone_and_asks_no_other_server(path: str, theme: Any, url: str, browser: Browser) -> None:
    with browser.new_context(color_scheme=theme, viewport={"width": 390, "height": 844}) as context:
        page = context.new_page()
        page.set_default_timeout(WAIT_MS)
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(url + path, wait_until="networkidle")
        expect(page.locator("body")).to_have_attribute(
            "data-md-color-scheme", {"light": "default", "dark": "slate"}[theme], timeout=WAIT_MS
        )
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert len(asked) > 3
        assert [address for address in asked if not address.startswith(url)] == []


def test_the_search_finds_a_page(url: str, browser: Browser) -> None:
    with browser.new_context() as context:
        page = context.new_page()
        page.set_default_timeout(WAIT_MS)
        page.goto(url)
        page.locator("input[name=query]").click()
        page.locator("input[name=query]").press_sequentially("rendezvous")
        expect(page.locator(".md-search-result__link").first).to_be_visible(timeout=WAIT_MS)
