"""Jobs on a node that is drained or loses its power."""

from __future__ import annotations

import subprocess

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
