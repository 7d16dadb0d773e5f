"""The recorded traffic of released versions."""

from __future__ import annotations

from pathlib import Path

from tests.traffic.exchange import Exchange, parse

HERE = Path(__file__).parent
VERSIONS = sorted(path.parent.name for path in HERE.glob("*/client.jsonl"))

# Objects with keys of the job or of the moment. The API promises only that they are objects.
OPEN = frozenset({"spent", "evidence", "env", "labels", "series", "bins", "jobs", "terms", "broken", "gpus", "appdef"})


def said_by_clients(version: str) -> list[Exchange]:
    return parse((HERE / version / "client.jsonl").read_text())


def said_by_agents(version: str) -> list[Exchange]:
    return parse((HERE / version / "agent.jsonl").read_text())


def losses(then: object, now: object, where: str = "") -> list[str]:
    """Return the fields that an old reader would miss: those that are gone or have another type.

    A null may have been anything and may replace anything. Lists are compared by their first items.
    """
    if then is None or now is None:
        return []
    if _kind(then) != _kind(now):
        return [f"{where or '/'} was {_kind(then)} and is {_kind(now)}"]
    if isinstance(then, dict) and isinstance(now, dict):
        if where.rpartition("/")[2] in OPEN:
            return []
        gone = [f"{where}/{name} is gone" for name in then.keys() - now.keys()]
        return gone + [
            each for name in then.keys() & now.keys() for each in losses(then[name], now[name], f"{where}/{name}")
        ]
    if isinstance(then, list) and isinstance(now, list) and then and now:
        return losses(then[0], now[0], f"{where}/0")
    return []


def _kind(value: object) -> str:
    for name, types in (("true or false", bool), ("a number", (int, float)), ("text", str), ("a list", list)):
        if isinstance(value, types):
            return name
    return "an object"
