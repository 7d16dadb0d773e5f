"""Links between the pages of this repository lead somewhere, and every page can be found from the index."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
_LINK = re.compile(r"\[[^\]\[]*\]\(([^()\s]+)\)")
_CODE = re.compile(r"^```.*?^```$|^    [^\n]*$|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """File and anchor of each link that stays in the repository."""
    for target in _LINK.findall(_CODE.sub("", page.read_text())):
        if "://" not in target:
            name, _, anchor = target.partition("#")
            yield (page.parent / name).resolve() if name else page, anchor


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of headings: lower case, no punctuation, hyphens for spaces."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    for target, anchor in links(page):
        assert target.exists(), f"{page}: {target}"
        assert not anchor or anchor in anchors(target), f"{page}: {target}#{anchor}"


def test_every_page_is_in_the_index() -> None:
    listed = {target for target, _ in links(ROOT / "docs" / "README.md")}
    apart = {ROOT / "docs" / "README.md", *(ROOT / "docs" / "adr").glob("*.md")}
    assert {page for page in (ROOT / "docs").rglob("*.md") if page not in apart} - listed == set()
