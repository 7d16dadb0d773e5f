"""A page in the browser, with helpers to wait, click and check accessibility."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Locator, Page, expect

WAIT_MS = 60_000  # for a busy machine; normally it takes seconds
STANDARDS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


@dataclass(frozen=True)
class Screen:
    page: Page
    url: str
    shots: Path | None

    def open(self, path: str) -> None:
        self.page.goto(self.url + path)

    def find(self, selector: str, **options: Any) -> Locator:
        return self.page.locator(selector, **options)

    def sees(self, selector: str, words: str) -> None:
        """Wait until the first match of `selector` contains `words`."""
        expect(self.page.locator(selector).first).to_contain_text(words, timeout=WAIT_MS)

    def shows(self, selector: str) -> None:
        expect(self.page.locator(selector).first).to_be_visible(timeout=WAIT_MS)

    def lacks(self, selector: str) -> None:
        expect(self.page.locator(selector)).to_have_count(0, timeout=WAIT_MS)

    def act(self, verb: str, answer: str) -> None:
        """Send a request with the button on top of a job's page, and confirm it."""
        self.page.locator(f"#ask-{verb} > summary").click()
        self.page.locator(f"#ask-{verb}").get_by_role("button", name=answer).click()

    def step(self) -> int:
        """The newest step on the page."""
        return int(self.page.locator("#pulse").get_attribute("data-step") or "0")

    def waits_for_step(self, step: int) -> None:
        self.page.wait_for_function(
            "step => Number(document.getElementById('pulse').dataset.step) >= step", arg=step, timeout=WAIT_MS * 2
        )

    def complaints(self) -> list[str]:
        """What axe-core finds against WCAG 2.2 AA and its best practices."""
        found = Axe().run(self.page, options={"runOnly": STANDARDS})
        return [
            f"{one['id']}: {node['html'][:160]}: {node['failureSummary'][:300]}"
            for one in found.response["violations"]
            for node in one["nodes"][:3]
        ]

    def keep(self, name: str) -> None:
        """Take a screenshot of the whole page if a folder is set."""
        if self.shots is not None:
            self.shots.mkdir(parents=True, exist_ok=True)
            self.page.screenshot(path=self.shots / f"{name}.png", full_page=True)
