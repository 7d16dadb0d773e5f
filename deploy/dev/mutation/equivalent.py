"""The list of mutants that no test can tell from the original, each with its reason.

A line at the margin is a mutant's name, the indented lines below it say why nobody could notice. `#` begins a comment.
"""

from __future__ import annotations

from pathlib import Path

LIST = Path(__file__).with_name("equivalent.txt")


class BadList(Exception):
    """The list cannot be read; the text names the line."""


def parse_equivalents(text: str) -> dict[str, str]:
    """The reason of each mutant, by name. Raises BadList."""
    reasons: dict[str, str] = {}
    name = None
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        if line[0].isspace():
            if name is None:
                raise BadList(f"line {number}: a reason without a mutant above it")
            reasons[name] = f"{reasons[name]} {line.strip()}".strip()
        else:
            name = line.strip()
            if name in reasons:
                raise BadList(f"line {number}: listed twice: {name}")
            reasons[name] = ""
    bare = [name for name, reason in reasons.items() if not reason]
    if bare:
        raise BadList(f"no reason is given for {bare[0]}")
    return reasons
