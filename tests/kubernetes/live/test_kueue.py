"""Jobs in a queue of Kueue: they wait for quota, are preempted, shrink to what is free, and are evicted.

Kueue's own controller decides, or a control loop of the tests if the cluster has only Kueue's resources.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.kubernetes.live.cluster import Cluster, soon
from tests.kubernetes.live.kueue_loop import KueueLoop
from tests.kubernetes.live.lab import ENDLESS, Lab
from tests.kubernetes.live.options import Options

pytestmark = pytest.mark.timeout(1800)

PODS = 2  # the quota of the queue, in pods of a job
_CONTROLLER_S = 15.0  # in which Kueue's controller calls a new queue active


@dataclass(frozen=True)
class Queue:
    name: str  # of the LocalQueue, its ClusterQueue, its flavor and the class with a higher priority
    group: str  # such as apis/kueue.x-k8s.io/v1beta2
    loop: KueueLoop | None  # None: Kueue's own controller


@pytest.fixture(scope="module")
def queue(cluster: Cluster, options: Options) -> Iterator[Queue]:
    try:
        preferred = cluster.ask("GET", "/apis/kueue.x-k8s.io")["preferredVersion"]["groupVersion"]
        cluster.ask("GET", f"/apis/{preferred}/clusterqueues")
    except httpx.HTTPStatusError:
        pytest.skip("the cluster has no resources of Kueue")
    name, group = f"test-{secrets.token_hex(4)}", f"apis/{preferred}"
    made = list(_make_queue(cluster, group, name, quota_gb=PODS * float(options["memory-gb"])))
    loop = None
    if not _is_active(cluster, group, name):
        loop = KueueLoop(cluster, group=group, queue=name, pods=PODS, priorities={name: 100})
        loop.start()
    try:
        yield Queue(name, group, loop)
    finally:
        for path in reversed(made):
            with suppress(httpx.HTTPStatusError):
                cluster.ask("DELETE", path)
        if loop is not None:
            loop.close()


def _make_queue(cluster: Cluster, group: str, name: str, *, quota_gb: float) -> Iterator[str]:
    """Create the objects of a queue and yield their paths."""
    memory = {"name": "memory", "nominalQuota": f"{round(quota_gb * 1024)}Mi"}
    groups = [{"coveredResources": ["memory"], "flavors": [{"name": name, "resources": [memory]}]}]
    specs: dict[tuple[str, str], dict[str, Any]] = {
        ("ResourceFlavor", "resourceflavors"): {"spec": {}},
        ("ClusterQueue", "clusterqueues"): {
            "spec": {
                "namespaceSelector": {},
                "preemption": {"withinClusterQueue": "LowerPriority"},
                "resourceGroups": groups,
            }
        },
        ("WorkloadPriorityClass", "workloadpriorityclasses"): {"value": 100},
        ("LocalQueue", f"namespaces/{cluster.namespace}/localqueues"): {"spec": {"clusterQueue": name}},
    }
    for (kind, path), fields in specs.items():
        body = {"apiVersion": group.removeprefix("apis/"), "kind": kind, "metadata": {"name": name}, **fields}
        cluster.ask("POST", f"/{group}/{path}?fieldValidation=Strict", body)
        yield f"/{group}/{path}/{name}"


def _is_active(cluster: Cluster, group: str, name: str) -> bool:
    deadline = time.monotonic() + _CONTROLLER_S
    while time.monotonic() < deadline:
        status = cluster.ask("GET", f"/{group}/clusterqueues/{name}").get("status") or {}
        if any((each["type"], each["status"]) == ("Active", "True") for each in status.get("conditions") or ()):
            return True
        time.sleep(0.5)
    return False


def test_a_job_waits_until_its_queue_has_quota(lab: Lab, queue: Queue) -> None:
    holder = lab.submit(trainer={"steps": ENDLESS}, placement={"queue": queue.name})
    lab.at_step(holder, 1)
    waiting = lab.program("pass", placement={"queue": queue.name})
    said = lab.until(waiting, lambda job: "insufficient unused quota" in job.reason or job.ended)
    assert "waits for Kueue" in said.reason
    assert "1 more needed" in said.reason or "1536Mi more needed" in said.reason, said.reason
    assert "once its queue has room" in lab.client.why(waiting).next
    lab.client.cancel(holder)
    assert lab.succeeded(waiting).attempts == 1


def test_a_preempted_job_costs_no_budget_and_continues_when_there_is_quota_again(lab: Lab, queue: Queue) -> None:
    job = lab.submit(trainer={"steps": ENDLESS}, placement={"queue": queue.name})
    lab.with_snapshot(job)
    urgent = lab.program("import time; time.sleep(30)", placement={"queue": queue.name, "priority_class": queue.name})
    lab.until(job, lambda seen: seen.attempts == 2 and "waits for Kueue" in seen.reason)
    (first,) = lab.failures(job)
    assert (first.kind, "Kueue preempted it" in first.message) == ("preempted", True), first.message
    assert lab.succeeded(urgent).attempts == 1
    lab.goes_on(job, attempts=2)
    after = lab.client.job(job)
    assert (after.spent, after.preemptions) == ({}, 1)


def test_an_elastic_job_starts_with_the_pods_that_its_quota_allows(lab: Lab, queue: Queue) -> None:
    job = lab.submit(
        trainer={"steps": ENDLESS},
        topology={"nodes": f"1:{PODS + 2}", "workers_per_node": 1},
        placement={"queue": queue.name},
    )
    lab.until(job, lambda seen: seen.world_size == PODS or seen.ended)
    seen = lab.at_step(job, 5)
    (made,) = lab.cluster.jobs(job)
    assert made["spec"]["completions"] == made["spec"]["parallelism"] == PODS
    assert seen.attempts == 1
    lab.client.cancel(job)
    lab.until(job, lambda job: job.ended)


def test_a_queue_that_does_not_exist_is_named(lab: Lab, queue: Queue) -> None:
    job = lab.program("pass", placement={"queue": f"{queue.name}-none"})
    words = "Kueue has no Workload" if queue.loop is not None else f"LocalQueue {queue.name}-none doesn't exist"
    lab.until(job, lambda job: words in job.reason)
    lab.client.cancel(job)
    assert lab.until(job, lambda job: job.ended).state == "CANCELLED"


def test_a_workload_that_a_person_deactivates_waits_until_it_is_active_again(lab: Lab, queue: Queue) -> None:
    holder = lab.program("import time; time.sleep(600)", topology={"nodes": str(PODS)}, placement={"queue": queue.name})
    lab.until(holder, lambda job: job.state == "RUNNING")
    job = lab.program("pass", placement={"queue": queue.name})
    lab.until(job, lambda job: "insufficient unused quota" in job.reason)
    _activate(lab, queue, job, active=False)
    lab.until(job, lambda job: "its Workload is deactivated" in job.reason)
    lab.client.cancel(holder)
    lab.until(holder, lambda job: job.ended)
    assert lab.client.job(job).attempts == 1
    _activate(lab, queue, job, active=True)
    assert lab.succeeded(job).attempts == 1


def test_an_eviction_before_the_first_agent_starts_keeps_the_place_in_the_queue(lab: Lab, queue: Queue) -> None:
    if queue.loop is None:
        pytest.skip("Kueue's controller evicts such a job only if waitForPodsReady is configured")
    job = lab.program("pass", placement={"queue": queue.name, "node_selector": {"no-such-label": "x"}})
    lab.until(job, lambda job: "Unschedulable" in job.reason)
    (made,) = lab.cluster.jobs(job)
    queue.loop.evict(made, "PodsReadyTimeout", "Exceeded the PodsReady timeout")
    lab.until(job, lambda job: "requeued 1 time, next try at" in job.reason)
    lab.until(job, lambda job: "Unschedulable" in job.reason)
    assert (lab.client.job(job).attempts, lab.failures(job)) == (1, [])
    assert [each["metadata"]["uid"] for each in lab.cluster.jobs(job)] == [made["metadata"]["uid"]]
    lab.client.cancel(job)
    lab.until(job, lambda job: job.ended)


def _activate(lab: Lab, queue: Queue, job_id: str, *, active: bool) -> None:
    (made,) = lab.cluster.jobs(job_id)
    workloads = lab.cluster.items("workloads", queue.group)
    owners = {each["metadata"]["ownerReferences"][0]["uid"]: each["metadata"]["name"] for each in workloads}
    name = owners[made["metadata"]["uid"]]
    path = f"/{queue.group}/namespaces/{lab.cluster.namespace}/workloads/{name}"
    lab.cluster.ask("PATCH", path, {"spec": {"active": active}}, kind="merge-patch+json")
    soon(lambda: lab.cluster.ask("GET", path)["spec"]["active"] is active, "the Workload did not change")
