"""A node of a job loses its power: a whole service, real agents, default times."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kubernetes.whole import World, whole

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with whole(tmp_path) as made:
        yield made


@pytest.mark.parametrize("replica", [0, 1], ids=["the store's host", "the other"])
def test_a_node_without_power_is_lost_and_the_job_starts_on_another(world: World, replica: int) -> None:
    job, names = world.running(pods=2)
    lost = world.node_of(names[replica])
    world.cluster.cut_power(lost)
    again = world.until(job, lambda seen: seen.attempts == 2 and seen.state == "RUNNING", timeout_s=300)
    first, second = world.client.attempts(job)
    assert first.failure is not None
    assert (first.state, first.failure.kind) == ("LOST", "node")
    assert f"node {lost} does not answer" in first.failure.message
    assert again.spent == {"node": 1}
    assert [node.name for node in world.client.nodes()] == [lost]
    pods = [str(pod["metadata"]["name"]) for pod in world.cluster.store.all("pods")]
    nodes = {world.node_of(pod) for pod in pods if pod.startswith(f"{job}-a{second.number}-")}
    assert lost not in nodes
    world.client.cancel(job)
