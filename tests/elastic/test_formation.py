"""A group that forms again: restarted in place, shrunk or grown."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from trainer.contract.exit_record import EventKind
from trainer.elastic.formation import Formation, describe_change, tell_change
from trainer.elastic.rendezvous import find_clock_ahead


@pytest.mark.parametrize(
    ("nodes", "kind", "rung", "words"),
    [
        (1, EventKind.GROUP_SHRUNK, "shrink", "from 4 to 2 workers"),
        (2, EventKind.RESTARTED_IN_PLACE, "in-place", "restarted in place"),
        (3, EventKind.GROUP_GREW, "grow", "from 4 to 6 workers"),
    ],
)
def test_a_change_is_told_by_its_nodes(nodes: int, kind: EventKind, rung: str, words: str) -> None:
    before, now = Formation(nodes=2, world_size=4), Formation(nodes=nodes, world_size=2 * nodes)
    assert describe_change(before, now) is kind
    sentence, evidence = tell_change(kind, before, now, generation=7, seconds=1.25)
    assert words in sentence
    assert "1.25 s" in sentence
    assert evidence == {
        "rung": rung,
        "seconds": 1.25,
        "generation": 7,
        "world_size": 2 * nodes,
        "from_world_size": 4,
    }


class Node(NamedTuple):
    addr: str


@pytest.mark.parametrize(("ahead_s", "told"), [(-3.0, False), (0.0, False), (0.4, False), (3.0, True)])
def test_a_node_says_whose_clock_is_ahead_of_its_own(ahead_s: float, told: bool) -> None:
    now = datetime(2026, 11, 22, tzinfo=timezone.utc)
    heartbeats = {
        Node("here"): now,
        Node("there"): now + timedelta(seconds=ahead_s),
    }
    handler: Any = SimpleNamespace(_state_holder=SimpleNamespace(state=SimpleNamespace(last_heartbeats=heartbeats)))
    said = find_clock_ahead(handler, now)
    assert (said is not None) == told
    if said is not None:
        assert said.startswith("the clock of there is 3.0 s ahead of this node's")
