"""What released versions said, from their files."""

from __future__ import annotations

from pathlib import Path

from tests.traffic.exchange import Exchange, parse

HERE = Path(__file__).parent
VERSIONS = sorted(path.parent.name for path in HERE.glob("*/client.jsonl"))

# Objects whose keys are the job's own, or the moment's: of them only that they are objects is promised.
OPEN = frozenset({"spent", "evidence", "env", "labels", "series", "bins", "jobs", "terms", "broken", "gpus", "appdef"})


def said_by_clients(version: str) -> list[Exchange]:
    return parse((HERE / version / "client.jsonl").read_text())


def said_by_agents(version: str) -> list[Exchange]:
    return parse((HERE / version / "agent.jsonl").read_text())


def losses(then: object, now: object, where: str = "") -> list[str]:
    """What an old reader relied on and would miss: a field that is gone, or has become something else.

    A field that was null may be anything, and one may become null; a list is compared by its first item.
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
