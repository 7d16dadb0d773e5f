"""With which agents a group should go on: what an observer makes of links that lose heartbeats."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import pytest

from trainer.elastic.rendezvous.link import Quality, Silence
from trainer.elastic.rendezvous.link_messages import Verdict
from trainer.elastic.rendezvous.observer import Observer
from trainer.elastic.rendezvous.options import Timing
from trainer.elastic.rendezvous.round_document import Limits, Member, Round, Stage

GOOD, FAIR, POOR = Quality.GOOD, Quality.FAIR, Quality.POOR


@dataclass
class Links:
    """Links with a given quality, and what each peer answers."""

    qualities: dict[str, Quality]
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def follow(self, peers: Mapping[str, tuple[str, int]]) -> None:
        return

    def silence(self, node: str) -> Silence:
        return Silence(heard=True)

    def quality(self, node: str) -> Quality:
        return self.qualities[node]

    def ask(self, about: str, whom: Collection[str]) -> None:
        self.asked += whom

    def answers(self, about: str) -> Mapping[str, Verdict]:
        return {node: self.verdicts[node] for node in self.asked if node in self.verdicts}

    def close(self) -> None:
        return


def observe(links: Links, *, host: str = "a", least: int = 1, stalls: bool = True) -> Observer:
    """As agent a."""
    members = tuple(Member(node=node, node_rank=None, address=node, workers=1) for node in ("a", *links.qualities))
    observer = Observer(links, "a", Timing(), Limits(min_nodes=least, max_nodes=9))
    observer.follow(Round(stage=Stage.FORMED, generation=1, members=members), host)
    observer.note_stall(stalls)
    return observer


def judge(observer: Observer) -> bool:
    observer.is_lossy("b")  # asks
    return observer.is_lossy("b")


BADLY, HEARD = {"c": Verdict.HEARD_BADLY}, {"c": Verdict.HEARD}


@pytest.mark.parametrize(
    ("links", "settings", "is_lossy"),
    [
        (Links({"b": POOR, "c": GOOD}, BADLY), {}, True),
        (Links({"b": POOR, "c": FAIR}, BADLY), {}, True),
        (Links({"b": POOR, "c": GOOD}, BADLY), {"host": "b"}, True),
        (Links({"b": POOR, "c": GOOD}, BADLY), {"stalls": False}, False),
        (Links({"b": POOR, "c": GOOD}, BADLY), {"least": 3}, False),
        (Links({"b": POOR, "c": GOOD}, HEARD), {}, False),
        (Links({"b": POOR, "c": GOOD}), {}, False),
        (Links({"b": POOR, "c": POOR}, BADLY), {}, False),  # this agent is the lossy one
        (Links({"b": Quality.UNSTEADY, "c": GOOD}, BADLY), {}, False),
        (Links({"b": POOR}), {}, True),
        (Links({"b": POOR}), {"host": "b"}, False),
    ],
)
def test_an_agent_is_lossy_if_the_group_stalls_and_another_agent_loses_its_heartbeats_too(
    links: Links, settings: dict[str, object], is_lossy: bool
) -> None:
    assert judge(observe(links, **settings)) is is_lossy


def test_an_agent_stays_lossy_until_its_link_is_good() -> None:
    links = Links({"b": POOR, "c": GOOD}, BADLY)
    observer = observe(links)
    assert judge(observer)
    observer.note_stall(False)
    for quality, is_lossy in ((FAIR, True), (POOR, True), (GOOD, False), (POOR, False)):
        links.qualities["b"] = quality
        assert observer.is_lossy("b") is is_lossy


def test_an_agent_that_the_group_has_taken_in_again_is_not_lossy() -> None:
    """Another agent may have found its link good before this one did."""
    observer = observe(Links({"b": POOR, "c": FAIR}, BADLY))
    assert judge(observer)
    everybody = observer._round
    left = [member for member in everybody.members if member.node != "b"]
    observer.follow(replace(everybody, members=tuple(left)), "a")
    assert observer.is_lossy("b")
    observer.note_stall(False)
    observer.follow(everybody, "a")
    assert not observer.is_lossy("b")


def test_agents_that_link_to_the_node_are_asked_first() -> None:
    nodes = [f"n{number:02}" for number in range(20)]
    links = Links({node: POOR if node == "n10" else GOOD for node in nodes})
    observer = observe(links, host="n19")
    observer.is_lossy("n10")
    assert set(links.asked) == {"n09", "n11", "n19"}


@pytest.mark.parametrize(("member", "graded"), [(GOOD, ({"x"}, {"y"})), (POOR, (set(), set()))])
def test_newcomers_are_graded_by_an_agent_that_is_well_connected(
    member: Quality, graded: tuple[set[str], set[str]]
) -> None:
    links = Links({"b": member})
    observer = observe(links)
    links.qualities |= {"x": POOR, "y": GOOD, "z": FAIR}
    assert observer.grade({"x", "y", "z"}) == graded
