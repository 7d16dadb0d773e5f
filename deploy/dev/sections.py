"""Generated sections of a page. A program writes the text between two markers; people write the rest. Pure.

<!-- made: NAME -->
...
<!-- end: NAME -->
"""

from __future__ import annotations

import re

_OPENING = re.compile(r"^<!-- made: (\S+) -->$", re.MULTILINE)


class NoSection(Exception):
    """The page does not have exactly one section with this name."""


def list_sections(page: str) -> list[str]:
    """Return the names of the sections in the page's order."""
    return _OPENING.findall(page)


def read_section(page: str, name: str) -> str:
    """Return the text between the markers. Raises NoSection."""
    start, end = _find(page, name)
    return page[start:end].strip("\n")


def replace_section(page: str, name: str, text: str) -> str:
    """Return the page with this text in the section `name`. All other bytes stay. Raises NoSection."""
    start, end = _find(page, name)
    return f"{page[:start]}\n{text.strip()}\n\n{page[end:]}"


def _find(page: str, name: str) -> tuple[int, int]:
    """Return the offsets of the text between the markers."""
    opening, closing = f"<!-- made: {name} -->\n", f"<!-- end: {name} -->\n"
    if page.count(opening) != 1 or page.count(closing) != 1 or page.index(opening) > page.index(closing):
        raise NoSection(f"the page needs exactly one pair of markers for {name!r}: {opening.strip()} {closing.strip()}")
    return page.index(opening) + len(opening), page.index(closing)
