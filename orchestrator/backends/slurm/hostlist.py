"""Slurm's short form of many node names: `n[1-3,07],gpu-a[1-2]-ib` (hostlist(3) of its sources). Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

_MOST = 100_000
_BRACKET = re.compile(r"\[([0-9,-]+)\]")


def parse_hostlist(text: str) -> tuple[str, ...]:
    """Every name, in order. Raises ValueError for what is no list of hosts, or one that is far too long."""
    names: list[str] = []
    for part in _split(text):
        names += _expand(part)
        if len(names) > _MOST:
            raise ValueError(f"more than {_MOST} hosts in {text[:100]!r}")
    return tuple(names)


def _split(text: str) -> Iterator[str]:
    """At the commas outside brackets."""
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


def _expand(part: str) -> list[str]:
    match = _BRACKET.search(part)
    if match is None:
        if "[" in part or "]" in part:
            raise ValueError(f"{part!r} is no list of hosts")
        return [part]
    before, after = part[: match.start()], _expand(part[match.end() :]) if match.end() < len(part) else [""]
    return [before + number + rest for number in _numbers(match[1]) for rest in after]


def _numbers(text: str) -> list[str]:
    found: list[str] = []
    for piece in text.split(","):
        low, dash, high = piece.partition("-")
        if not low.isdecimal() or (dash and not high.isdecimal()):
            raise ValueError(f"[{text}] is no range of hosts")
        if not dash:
            found.append(low)
            continue
        if int(high) - int(low) > _MOST:
            raise ValueError(f"[{text}] is too long")
        found += [str(number).zfill(len(low)) for number in range(int(low), int(high) + 1)]
    return found
