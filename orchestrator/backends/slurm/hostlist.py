"""Parse Slurm's short form of node names, such as `n[1-3,07],gpu-a[1-2]-ib` (hostlist(3) in its sources). Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

_MOST = 100_000
_MOST_BRACKETS = 8  # per name: one for each dimension of a machine
_TOO_LONG = "the list of hosts is too long"
_BRACKET = re.compile(r"\[([0-9,-]+)\]")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


def parse_hostlist(text: str, *, most: int = _MOST) -> tuple[str, ...]:
    """Return all names in order. Raises ValueError for a malformed list or one of more than `most` names."""
    names: list[str] = []
    for part in _split(text):
        names += _expand(part, most - len(names))
    return tuple(names)


def _split(text: str) -> Iterator[str]:
    """Split at the commas outside brackets."""
    depth, begin = 0, 0
    for place, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            yield text[begin:place]
            begin = place + 1
    if depth != 0:
        raise ValueError(f"brackets do not match in {text[:100]!r}")
    if text[begin:]:
        yield text[begin:]


def _expand(part: str, room: int) -> list[str]:
    """Expand one part into at most `room` names."""
    pieces = _BRACKET.split(part)  # text, the inside of a bracket, text, ...
    if any("[" in text or "]" in text for text in pieces[::2]) or len(pieces) > 2 * _MOST_BRACKETS + 1:
        raise ValueError(f"{part[:100]!r} is not a list of hosts")
    names = [pieces[0]]
    for inside, after in zip(pieces[1::2], pieces[2::2], strict=True):
        numbers = _numbers(inside, room // max(1, len(names)))
        names = [name + number + after for name in names for number in numbers]
    if len(names) > room:
        raise ValueError(_TOO_LONG)
    return names


def _numbers(text: str, room: int) -> list[str]:
    found: list[str] = []
    for piece in text.split(","):
        match = _RANGE.fullmatch(piece)
        if match is None:
            raise ValueError(f"[{text[:100]}] is not a range of hosts")
        low, high = match[1], match[2] or match[1]
        if len(found) + int(high) - int(low) >= room:
            raise ValueError(_TOO_LONG)
        found += [str(number).zfill(len(low)) for number in range(int(low), int(high) + 1)]
    return found
