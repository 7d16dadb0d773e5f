"""Recorded requests with their answers, one JSON object a line. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

_TIME = re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00:00)")
_EPOCH = "2026-01-01T00:00:00.000000000"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A request with its answer. Headers are the ones that matter, with lower-case names."""

    call: str | None  # the step that sent the request; None for an agent's report
    method: str
    path: str  # with its query
    headers: dict[str, str]
    body: str
    status: int
    answer_headers: dict[str, str]
    answer: str

    def json(self) -> object:
        return json.loads(self.body) if self.body else None

    def answer_json(self) -> object:
        """Return None if the answer is not JSON."""
        return json.loads(self.answer) if "json" in self.answer_headers.get("content-type", "") else None


def render(exchanges: Iterable[Exchange]) -> str:
    return "".join(json.dumps(asdict(each), ensure_ascii=False) + "\n" for each in exchanges)


def parse(text: str) -> list[Exchange]:
    return [Exchange(**json.loads(line)) for line in text.splitlines()]


def normalize(exchanges: Sequence[Exchange], names: Sequence[tuple[str, str]]) -> list[Exchange]:
    """Replace names and times of this machine by others of the same length, because journal offsets count bytes.

    `names` are pairs (old, new).
    """
    text = render(exchanges)
    for real, kept in names:
        if len(real) != len(kept):
            raise ValueError(f"{kept!r} is not as long as {real!r}")
        text = text.replace(real, kept)
    return parse(_TIME.sub(_same_length, text))


def _same_length(found: re.Match[str]) -> str:
    zone = "Z" if found[0].endswith("Z") else "+00:00"
    return _EPOCH[: len(found[0]) - len(zone)] + zone
