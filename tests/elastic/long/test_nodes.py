"""Several agents, each in its own network namespace with a real address. Needs root."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.nodes.fleet import Fleet, find_split
from benchmarks.recovery.steps import Step
from tests.elastic.fleets import open_fleet
from tests.elastic.harness import wait_for
from trainer.contract.exit_record import EventKind

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with open_fleet(tmp_path, 2) as started:
        yield started


def form(fleet: Fleet) -> None:
    for node in range(2):
        began = time.time()
        fleet.start(node)
        fleet.until_world(node + 1, after_s=began, steps=5)


@pytest.mark.parametrize("how", ["kill", "cut"])
def test_a_group_continues_without_a_lost_node_and_takes_it_in_again(fleet: Fleet, how: str) -> None:
    form(fleet)
    lost_at = time.time()
    fleet.network.kill(1) if how == "kill" else fleet.network.cut(1)
    fleet.until_world(1, after_s=lost_at, steps=5)
    assert lost_by(fleet, 0) == [1]
    fleet.network.kill(1)
    fleet.network.repair(1)
    began = time.time()
    fleet.start(1)
    fleet.until_world(2, after_s=began, steps=5)
    assert find_split(fleet.history()) is None


@pytest.mark.parametrize("cut", [pytest.param(1, marks=pytest.mark.smoke), 0])
def test_of_two_nodes_the_host_of_the_store_trains_during_a_cut_and_the_other_rejoins(fleet: Fleet, cut: int) -> None:
    """No connection breaks then. By default TCP would retry for a quarter of an hour."""
    form(fleet)
    cut_at = time.time()
    fleet.network.cut(cut)
    step = fleet.until_world(1, after_s=cut_at, steps=20)
    assert step.pid in fleet.network.pids(0)
    repaired_at = time.time()
    fleet.network.repair(cut)
    fleet.until_world(2, after_s=repaired_at, steps=5)
    assert find_split(fleet.history()) is None


@pytest.mark.parametrize("silently", [False, True], ids=["with a reset", "silently"])
def test_a_group_continues_without_the_host_of_its_store_and_takes_it_in_again(fleet: Fleet, silently: bool) -> None:
    form(fleet)
    lost_at = time.time()
    fleet.network.kill(0, silently=silently)
    fleet.until_world(1, after_s=lost_at, steps=5)
    assert lost_by(fleet, 1) == [0]
    fleet.network.repair(0)
    began = time.time()
    fleet.start(0)
    fleet.until_world(2, after_s=began, steps=5)
    assert find_split(fleet.history()) is None


@pytest.mark.parametrize("silently", [False, True], ids=["with a reset", "silently"])
def test_a_group_that_needs_the_lost_node_journals_its_loss(fleet: Fleet, silently: bool) -> None:
    """With a reset, the node's kernel closes its connections, and workers die before any heartbeat is missed."""
    fleet.min_nodes = 2
    for node in range(2):
        fleet.start(node)
    fleet.until_world(2, after_s=0, steps=5)
    fleet.network.kill(1, silently=silently)
    wait_for(lambda: lost_by(fleet, 0), "event of the lost node", 90)
    assert lost_by(fleet, 0) == [1]
    assert fleet.agents[0].poll() is None


def lost_by(fleet: Fleet, node: int) -> list[object]:
    """The replicas that this node's agent has journaled as lost."""
    journal = fleet.folder / f"attempts/1/replica-{node}/1/events.jsonl"
    events = map(json.loads, journal.read_text().splitlines())
    return [
        number for event in events if event["kind"] == EventKind.PEER_LOST for number in event["evidence"]["replicas"]
    ]


@pytest.mark.parametrize("lossy", [pytest.param(0, marks=pytest.mark.smoke), 2])
def test_a_group_goes_on_without_a_node_that_loses_packets_and_takes_it_in_again(tmp_path: Path, lossy: int) -> None:
    """Node 0 serves the store."""
    with open_fleet(tmp_path, 3, needs="nft") as fleet:
        fleet.form(steps=20)
        lossy_at = time.time()
        fleet.network.lose(lossy, 30)
        fleet.until_world(2, after_s=lossy_at, steps=40)
        repaired_at = time.time()
        fleet.network.repair(lossy)
        fleet.until_world(3, after_s=repaired_at, steps=5)
    changes = [evidence.get("because") for evidence in fleet.events(EventKind.GROUP_SHRUNK)]
    assert any("packets" in str(each) for each in changes), changes
    assert find_split(fleet.history()) is None


def test_find_split_finds_a_step_of_an_older_generation() -> None:
    steps = [Step(1.0, 0, 1, 10, 3, 2), Step(1.1, 0, 2, 10, 4, 1), Step(1.2, 1, 3, 11, 3, 2), Step(1.3, 1, 3, 12, 3, 2)]
    assert "generation 3 made step 12 0.20 s after generation 4" in str(find_split(steps))
    assert find_split(steps[:3]) is None, "step 11 was under way"


def test_find_split_finds_two_groups_of_one_generation() -> None:
    ours = Step(1.0, rank=0, pid=1, number=10, generation=3, world_size=2)
    assert "two groups" in str(find_split([ours, replace(ours, pid=2)]))
    assert "two groups" in str(find_split([ours, replace(ours, rank=1, pid=2, world_size=3)]))
    assert find_split([ours, replace(ours, rank=1, pid=2)]) is None
