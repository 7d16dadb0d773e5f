"""The stacks of ranks, read from events of agents of any version."""

from __future__ import annotations

import pytest

from orchestrator.domain.job.event import Event
from orchestrator.domain.job.rank_stacks import RankStacks, newest_stacks
from tests.builders import at, make_event


def saved(seconds: float, *, attempt: int | None = 1, **evidence: object) -> Event:
    return make_event("stacks.saved", at=at(seconds), attempt=attempt, generation=2, evidence=evidence)


def texts(*events: Event) -> dict[int, str | None]:
    """The text of each rank. Events are in the order of their arrival."""
    return {each.rank: each.text for each in newest_stacks(events[::-1])}


def test_the_newest_stacks_of_each_rank_count() -> None:
    events = [
        saved(1, wish=3, stacks={"0": "old", "1": "one"}),
        saved(2, wish=4, stacks={"10": "ten", "0": "new"}, silent=[2]),
    ]
    assert texts(*events) == {0: "new", 1: "one", 2: None, 10: "ten"}
    assert list(texts(*events)) == [0, 1, 2, 10]
    assert newest_stacks(events[::-1])[0] == RankStacks(rank=0, attempt=1, generation=2, at=at(2), wish=4, text="new")


def test_stacks_of_an_earlier_attempt_are_left_out() -> None:
    assert texts(saved(1, stacks={"5": "gone"}), saved(2, attempt=2, stacks={"0": "here"})) == {0: "here"}
    assert texts(saved(1, attempt=2, stacks={"0": "here"}), saved(2, stacks={"5": "late"})) == {0: "here"}


def test_stacks_without_a_request_answer_none() -> None:
    assert [each.wish for each in newest_stacks([saved(1, stacks={"0": "x"}, ranks=[0])])] == [None]
    assert [each.wish for each in newest_stacks([saved(1, stacks={"0": "x"}, wish="4")])] == [None]


@pytest.mark.parametrize(
    "evidence",
    [
        {},
        {"ranks": [0, 1]},
        {"stacks": "text", "silent": "0"},
        {"stacks": {"x": "y", "-1": "y", "²": "y", "": "y", "1": 7}, "silent": ["1", None]},
        {"stacks": {1: "y"}},
        {"stacks": [["0", "y"]]},
    ],
)
def test_invalid_evidence_is_left_out(evidence: dict[str, object]) -> None:
    assert newest_stacks([saved(1, **evidence)]) == ()
    assert newest_stacks([]) == ()
