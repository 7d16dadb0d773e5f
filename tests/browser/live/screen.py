"""A page as a person sees it: where it is, what it shows, and what axe-core says of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Locator, Page, expect

WAIT_MS = 60_000  # a busy machine; what is waited for comes within seconds
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
        """Wait until such a part holds these words."""
        expect(self.page.locator(selector).first).to_contain_text(words, timeout=WAIT_MS)

    def shows(self, selector: str) -> None:
        expect(self.page.locator(selector).first).to_be_visible(timeout=WAIT_MS)

    def lacks(self, selector: str) -> None:
        expect(self.page.locator(selector)).to_have_count(0, timeout=WAIT_MS)

    def act(self, verb: str, answer: str) -> None:
        """Ask for something by the button on top of a job's page, and say yes."""
        self.page.locator(f"#ask-{verb} > summary").click()
        self.page.locator(f"#ask-{verb}").get_by_role("button", name=answer).click()

    def step(self) -> int:
        """The newest step that the page tells of."""
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
        """A picture of the whole page, where somebody wants them."""
        if self.shots is not None:
            self.shots.mkdir(parents=True, exist_ok=True)
            self.page.screenshot(path=self.shots / f"{name}.png", full_page=True)
