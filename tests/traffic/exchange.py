"""One request and its answer, as it is kept in a file: a JSON object a line. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

_TIME = re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00:00)")
_EPOCH = "2026-01-01T00:00:00.000000000"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """`call` is the client's method that asked, None for an agent's report. Bodies are text; headers those that mean
    something, by small names."""

    call: str | None
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
        """None where the answer is no JSON."""
        return json.loads(self.answer) if "json" in self.answer_headers.get("content-type", "") else None


def render(exchanges: Iterable[Exchange]) -> str:
    return "".join(json.dumps(asdict(each), ensure_ascii=False) + "\n" for each in exchanges)


def parse(text: str) -> list[Exchange]:
    return [Exchange(**json.loads(line)) for line in text.splitlines()]


def normalise(exchanges: Sequence[Exchange], names: Sequence[tuple[str, str]]) -> list[Exchange]:
    """Names of this machine and this hour become others **of the same length**: the offsets of journal lines count
    bytes. `names` are pairs of what stands there and what is to stand there."""
    text = render(exchanges)
    for real, kept in names:
        if len(real) != len(kept):
            raise ValueError(f"{kept!r} is not as long as {real!r}")
        text = text.replace(real, kept)
    return parse(_TIME.sub(_same_length, text))


def _same_length(found: re.Match[str]) -> str:
    zone = "Z" if found[0].endswith("Z") else "+00:00"
    return _EPOCH[: len(found[0]) - len(zone)] + zone
