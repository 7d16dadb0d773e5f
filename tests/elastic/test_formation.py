"""The change from one worker group to the next: restarted in place, shrunk or grown."""

from __future__ import annotations

import pytest

from trainer.contract.exit_record import EventKind
from trainer.elastic.rendezvous.formation import Formation, classify_change, describe_restart


@pytest.mark.parametrize(
    ("nodes", "kind", "rung", "words"),
    [
        (1, EventKind.GROUP_SHRUNK, "shrink", "from 4 to 2 workers"),
        (2, EventKind.RESTARTED_IN_PLACE, "in-place", "restarted in place"),
        (3, EventKind.GROUP_GREW, "grow", "from 4 to 6 workers"),
    ],
)
def test_a_change_is_classified_by_the_number_of_nodes(nodes: int, kind: EventKind, rung: str, words: str) -> None:
    before, now = Formation(nodes=2, world_size=4), Formation(nodes=nodes, world_size=2 * nodes)
    assert classify_change(before, now) is kind
    sentence, evidence = describe_restart(kind, before, now, generation=7, seconds=1.25)
    assert words in sentence
    assert "1.25 s" in sentence
    assert evidence == {
        "rung": rung,
        "seconds": 1.25,
        "generation": 7,
        "world_size": 2 * nodes,
        "from_world_size": 4,
    }


def test_a_restart_without_a_failure_has_a_reason() -> None:
    before, now = Formation(nodes=2, world_size=4), Formation(nodes=2, world_size=4, because="the group lost host-b")
    sentence, evidence = describe_restart(EventKind.RESTARTED_IN_PLACE, before, now, generation=7, seconds=1.25)
    assert sentence == "workers restarted in place as generation 7 after 1.25 s: the group lost host-b"
    assert evidence["because"] == "the group lost host-b"
