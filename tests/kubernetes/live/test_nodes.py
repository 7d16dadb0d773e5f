"""Jobs that lose a pod or a node: drained, deleted, without power. An elastic group goes on and takes it back."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from tests.kubernetes.live.cluster import soon
from tests.kubernetes.live.lab import ENDLESS, Lab
from tests.kubernetes.live.options import Options

pytestmark = pytest.mark.timeout(3600)


def test_a_drained_node_costs_no_budget_and_the_job_continues_from_a_snapshot(lab: Lab, options: Options) -> None:
    if not options["drain"]:
        pytest.skip("--drain names no node")
    job = lab.submit(trainer={"steps": ENDLESS})
    lab.with_snapshot(job)
    pods = lab.cluster.pods(job)
    nodes = [name for name in lab.cluster.expendable(pods) if options["drain"] in ("any", name)]
    if not nodes:
        pytest.skip(f"no pod of the job is on {options['drain']}, or there is no other node")
    lab.cluster.cordon(nodes[0], unschedulable=True)
    try:
        for pod in pods:
            if pod["spec"]["nodeName"] == nodes[0]:
                lab.cluster.evict(pod["metadata"]["name"])
        lab.goes_on(job, attempts=2)
    finally:
        lab.cluster.cordon(nodes[0], unschedulable=False)
    first, after = lab.failures(job)[0], lab.client.job(job)
    assert (first.kind, "EvictionByEvictionAPI" in first.message) == ("preempted", True), first.message
    assert (after.spent, after.preemptions) == ({}, 1)


def test_a_node_without_power_is_lost_and_the_next_attempt_avoids_it(lab: Lab, options: Options) -> None:
    down, up = options["node-down"], options["node-up"]
    if not (down and up):
        pytest.skip("--node-down and --node-up are not set")
    job = lab.submit(trainer={"steps": ENDLESS})
    lab.with_snapshot(job)
    pods = lab.cluster.pods(job)
    nodes = lab.cluster.expendable(pods)
    if len({each["spec"]["nodeName"] for each in pods}) == 1 or not nodes:
        pytest.skip("all pods are on one node, or on control-plane nodes")
    subprocess.run(down.replace("{node}", nodes[0]), shell=True, check=True, timeout=300)
    try:
        # The node is silent first. Then the cluster gives up its pod.
        lab.until(job, lambda job: job.attempts == 2, timeout_s=900)
        last = list(lab.client.attempts(job))[-1]
        assert last.excluded_nodes == [nodes[0]], lab.sentences(job)
        lab.goes_on(job, attempts=2, timeout_s=900)
    finally:
        subprocess.run(up.replace("{node}", nodes[0]), shell=True, check=True, timeout=300)
    soon(lambda: nodes[0] in lab.cluster.nodes(), f"{nodes[0]} is not ready again", timeout_s=600)


@pytest.mark.parametrize(("how", "replica"), [("evicted", 0), ("deleted", 1)], ids=["the store's host", "the other"])
def test_a_replaced_pod_rejoins_the_running_group(lab: Lab, how: str, replica: int) -> None:
    """Replica 0 serves the rendezvous store. The others train on until Kubernetes has replaced the pod."""
    job, pods = _train_elastic(lab, nodes="2:3")
    name = pods[replica]["metadata"]["name"]
    (lab.cluster.delete_pod if how == "deleted" else lab.cluster.evict)(name)
    lab.until(job, lambda job: job.world_size == 2 or job.attempts > 1 or job.ended)
    _trains_on(lab, job, size=2, steps=1)
    lab.until(job, lambda job: job.world_size == 3 or job.attempts > 1 or job.ended)
    _trains_on(lab, job, size=3)
    lives = [(one.replica, one.incarnation) for one in lab.client.job_nodes(job)]
    assert (replica, 2) in lives, lives
    _was_lost_and_rejoined(lab, job, replica)
    _cancel(lab, job)


@pytest.mark.parametrize("replica", [0, 1], ids=["the store's host", "the other"])
def test_an_elastic_group_goes_on_without_a_node(lab: Lab, options: Options, replica: int) -> None:
    """The group forms again before the cluster notices the loss. Its pod rejoins when the node is back."""
    down, up = options["node-down"], options["node-up"]
    if not (down and up):
        pytest.skip("--node-down and --node-up are not set")
    job, pods = _train_elastic(lab)
    node = pods[replica]["spec"]["nodeName"]
    if node == pods[1 - replica]["spec"]["nodeName"] or node not in lab.cluster.expendable(pods):
        pytest.skip("both pods are on one node, or this one is on a control-plane node")
    subprocess.run(down.replace("{node}", node), shell=True, check=True, timeout=300)
    try:
        _goes_on_alone(lab, job)
        assert node in lab.cluster.nodes(), "the cluster noticed the loss first"
        soon(lambda: node not in lab.cluster.nodes(), f"{node} is still ready", timeout_s=300)
        _trains_on(lab, job)
    finally:
        subprocess.run(up.replace("{node}", node), shell=True, check=True, timeout=300)
    lab.until(job, lambda job: job.world_size == 2 or job.attempts > 1 or job.ended, timeout_s=600)
    _trains_on(lab, job, size=2)
    _was_lost_and_rejoined(lab, job, replica)
    _cancel(lab, job)


def _train_elastic(lab: Lab, nodes: str = "1:2") -> tuple[str, list[Any]]:
    """Start an elastic job with one worker in each pod. Return its id and its pods once it has a snapshot."""
    job = lab.submit(trainer={"steps": ENDLESS}, topology={"nodes": nodes, "workers_per_node": 1})
    lab.until(job, lambda job: job.world_size == int(nodes[-1]) or job.ended)
    lab.with_snapshot(job)
    return job, lab.cluster.pods(job)


def _goes_on_alone(lab: Lab, job: str) -> None:
    """Wait until one worker trains in the first attempt."""
    lab.until(job, lambda job: job.world_size == 1 or job.attempts > 1 or job.ended)
    _trains_on(lab, job)
    kinds = [event.kind for event in lab.client.events(job)]
    assert "group.shrunk" in kinds, lab.sentences(job)


def _trains_on(lab: Lab, job: str, *, size: int = 1, steps: int = 20) -> None:
    """Wait for steps of the first attempt with this world size."""
    seen = lab.at_step(job, (lab.client.job(job).step or 0) + steps)
    assert (seen.attempts, seen.world_size) == (1, size), lab.sentences(job)
    assert not lab.failures(job), lab.sentences(job)


def _was_lost_and_rejoined(lab: Lab, job: str, replica: int) -> None:
    """The service has noted that the group went on without the replica, and then that its next agent joined."""

    def notes() -> list[tuple[str, object]]:
        events = [event for event in lab.client.events(job) if event.kind in ("replica.lost", "replica.rejoined")]
        return [(event.kind, event.evidence["replica"]) for event in events]

    expected = [("replica.lost", replica), ("replica.rejoined", replica)]
    soon(lambda: notes() == expected, f"{notes()}\n{lab.sentences(job)}")


def _cancel(lab: Lab, job: str) -> None:
    lab.client.cancel(job)
    assert lab.until(job, lambda job: job.ended).state == "CANCELLED"
