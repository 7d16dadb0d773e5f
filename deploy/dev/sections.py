"""Sections of docs/benchmarks.md: what stands between two markers is written by a run, all other words by people. Pure.

<!-- made: NAME -->
...
<!-- end: NAME -->
"""

from __future__ import annotations

import re

_OPENING = re.compile(r"^<!-- made: (\S+) -->$", re.MULTILINE)


class NoSection(Exception):
    """The page has no place of this name, or more than one; the text names it."""


def list_sections(page: str) -> list[str]:
    """Names of the sections, in the page's order."""
    return _OPENING.findall(page)


def read_section(page: str, name: str) -> str:
    """What stands between the markers. Raises NoSection."""
    start, end = _find(page, name)
    return page[start:end].strip("\n")


def replace_section(page: str, name: str, text: str) -> str:
    """The page with this text between the markers of `name`; all else stays, byte for byte. Raises NoSection."""
    start, end = _find(page, name)
    return f"{page[:start]}\n{text.strip()}\n\n{page[end:]}"


def _find(page: str, name: str) -> tuple[int, int]:
    """Where the text between the markers begins and ends."""
    opening, closing = f"<!-- made: {name} -->\n", f"<!-- end: {name} -->\n"
    if page.count(opening) != 1 or page.count(closing) != 1 or page.index(opening) > page.index(closing):
        raise NoSection(f"the page needs exactly one pair of markers for {name!r}: {opening.strip()} {closing.strip()}")
    return page.index(opening) + len(opening), page.index(closing)
