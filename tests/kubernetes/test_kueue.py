"""What Kueue's Workload says: a row for each condition and reason of its API, and the sightings that follow."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.backends.kubernetes.backend import KubernetesBackend
from orchestrator.backends.kubernetes.client import KubernetesClient
from orchestrator.backends.kubernetes.kueue import Workload, by_job, describe_wait, find_eviction, parse_workload
from orchestrator.backends.kubernetes.objects import Condition, ContainerObject
from orchestrator.backends.kubernetes.render import render_manifests, render_name
from orchestrator.backends.kubernetes.sight import SightContext, Traces, View, sight
from orchestrator.backends.kubernetes.site import KubernetesSite, effective_placement
from orchestrator.domain.errors import LaunchRefused
from orchestrator.domain.explanation.obstacles import KUEUE, OBSTACLES, tell_next
from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.job import JobState
from orchestrator.domain.observation.observation import Presence, Sighting
from orchestrator.domain.specs.spec import Placement
from orchestrator.domain.specs.unsupported import find_unsupported
from tests.elastic.harness import wait_for
from tests.kubernetes.conftest import build
from tests.kubernetes.fake_api import FakeApi, Json
from tests.kubernetes.records import shorten
from tests.kubernetes.test_render import OWN, plan_of
from tests.kubernetes.test_sight import BEGAN, KEY, a_job, pods
from tests.kubernetes.test_states import HERE, NOW, RUNNING, ended
from tests.unit.situations import a_job as a_stored_job
from tests.unit.situations import a_spec, an_attempt
from trainer.contract.failure import FailureKind

QUOTA = "couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor default, 2 more needed"
EVICTED = ("Evicted", True, "Preempted", "Preempted to accommodate a workload (UID: 7, JobUID: 8)")
WAITING = ContainerObject(waiting="ContainerCreating")
TIMEOUT = ("Evicted", True, "PodsReadyTimeout", "Exceeded the PodsReady timeout ns/job-train-a1-0f")


def a_workload(*conditions: tuple[str, bool, str, str], **status: Any) -> Workload:
    return parse_workload(a_document(*conditions, **status))


def a_document(*conditions: tuple[str, bool, str, str], active: bool = True, **status: Any) -> Json:
    listed = [
        {"type": kind, "status": str(holds), "reason": reason, "message": message}
        for kind, holds, reason, message in conditions
    ]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train-a1", "uid": "u", "controller": True}
    return {
        "metadata": {"name": "job-train-a1-0f", "uid": "w", "ownerReferences": [owner]},
        "spec": {"active": active, "queueName": "research"},
        "status": {"conditions": listed, **status},
    }


def no_quota(reason: str, message: str) -> Workload:
    return a_workload(("QuotaReserved", False, reason, message))


def checked(*states: tuple[str, str, str]) -> Workload:
    checks = [{"name": name, "state": state, "message": message} for name, state, message in states]
    reserved = ("QuotaReserved", True, "QuotaReserved", "Quota reserved in ClusterQueue team-a")
    return a_workload(reserved, admissionChecks=checks, admission={"clusterQueue": "team-a"})


# The workload, a part of the sentence, and the obstacle that explains what happens next.
WAITS: list[tuple[Workload | None, str, str]] = [
    (None, "Kueue has no Workload for it yet", "no Workload"),
    (a_workload(), "Kueue has not looked at it yet", "Kueue"),
    (no_quota("Pending", QUOTA), "2 more needed", "Kueue"),
    (no_quota("WaitingForQuota", QUOTA), "WaitingForQuota: couldn't assign", "Kueue"),
    (
        no_quota("Pending", "insufficient quota for cpu in flavor default, request > maximum capacity (4 > 2)"),
        "(4 > 2)",
        "larger than its queue",
    ),
    (no_quota("ExceedsMaxQuota", "insufficient quota"), "ExceedsMaxQuota", "larger than its queue"),
    (no_quota("Inadmissible", "LocalQueue research doesn't exist"), "doesn't exist", "missing queue"),
    (no_quota("Inadmissible", "ClusterQueue team-a not found"), "team-a not found", "missing queue"),
    (no_quota("Inadmissible", "LocalQueue research is terminating or missing"), "terminating", "missing queue"),
    (no_quota("Misconfigured", "Workload namespace doesn't match"), "Misconfigured", "missing queue"),
    (no_quota("Inadmissible", "ClusterQueue team-a is inactive"), "is inactive", "stopped queue"),
    (no_quota("Suspended", "LocalQueue research is stopped"), "is stopped", "stopped queue"),
    (no_quota("NoMatchingFlavor", "flavor default doesn't match node affinity"), "affinity", "no flavor"),
    (no_quota("Pending", "untolerated taint {a b NoSchedule} in flavor spot"), "taint", "no flavor"),
    (no_quota("TopologyPlacementFailed", 'topology "default" allows to fit only 1 out of 2'), "1 out of 2", "topology"),
    (no_quota("Pending", f"{QUOTA}. Pending the preemption of 1 workload(s)"), "of 1 workload", "preemption for it"),
    (no_quota("WaitingForPreemptedWorkloads", QUOTA), "WaitingForPreempted", "preemption for it"),
    (no_quota("PendingEvaluation", "in the queue"), "PendingEvaluation: in the queue", "Kueue"),
    (
        no_quota("Waiting", "waiting for all admitted workloads to be in PodsReady condition"),
        "PodsReady",
        "pods of others",
    ),
    (no_quota("WaitingForPodsReady", "waiting for pods"), "WaitingForPodsReady", "pods of others"),
    (
        no_quota("Pending", f"{QUOTA}, insufficient quota for cpu in flavor spot, request > maximum capacity (4 > 2)"),
        "(4 > 2)",
        "Kueue",
    ),
    (
        no_quota("NoMatchingFlavor", "flavor a doesn't match node affinity topology.kubernetes.io/zone"),
        "zone",
        "no flavor",
    ),
    (no_quota("AdmissionGated", "Admission is gated by: example.com/gate"), "gated by", "gate"),
    (no_quota("OnHold", "scaled to zero"), "OnHold", "gate"),
    (
        checked(("nodes", "Pending", "")),
        "team-a has reserved quota; admission check nodes is Pending",
        "admission check",
    ),
    (checked(("a", "Ready", ""), ("b", "Retry", "no room")), "check b is Retry: no room", "admission check"),
    (checked(), "ClusterQueue team-a has reserved quota", "admitted"),
    (a_workload(("Admitted", True, "Admitted", "")), "admitted; Kueue starts it", "admitted"),
    (
        a_workload(
            ("BlockedOnPreemptionGates", True, "PreemptionGated", "gate closed"), ("QuotaReserved", False, "", "")
        ),
        "may not preempt other workloads (PreemptionGated: gate closed)",
        "gate",
    ),
    (
        a_workload(TIMEOUT, requeueState={"count": 2, "requeueAt": "2100-01-01T12:34:05Z"}),
        "requeued 2 times, next try at 12:34:05 UTC (PodsReadyTimeout: Exceeded",
        "pause",
    ),
    (
        a_workload(TIMEOUT, requeueState={"requeueAt": "2100-01-01T12:34:05Z"}),
        "Kueue (next try at 12:34:05 UTC (",
        "pause",
    ),
    (
        a_workload(EVICTED, ("Admitted", True, "Admitted", ""), ("QuotaReserved", True, "QuotaReserved", "")),
        "Kueue evicts it (Preempted: Preempted to accommodate",
        "Kueue",
    ),
    (
        a_workload(("Evicted", True, "Deactivated", "The workload is deactivated"), active=False),
        "its Workload is deactivated (Deactivated: The workload is deactivated)",
        "deactivated",
    ),
]

# The reason of the condition Evicted, and what became of an attempt that trained.
EVICTIONS: list[tuple[str, FailureKind]] = [
    ("Preempted", FailureKind.PREEMPTED),
    ("PodsReadyTimeout", FailureKind.INFRASTRUCTURE),
    ("AdmissionCheck", FailureKind.PREEMPTED),
    ("ClusterQueueStopped", FailureKind.PREEMPTED),
    ("LocalQueueStopped", FailureKind.PREEMPTED),
    ("NodeFailures", FailureKind.NODE),
    ("FlavorMigration", FailureKind.PREEMPTED),
    ("EvictedOnManagerCluster", FailureKind.PREEMPTED),
    ("WorkloadSliceReplaced", FailureKind.PREEMPTED),
    ("Deactivated", FailureKind.PREEMPTED),
    ("DeactivatedDueToMaximumExecutionTimeExceeded", FailureKind.TIMEOUT),
    ("DeactivatedDueToRequeuingLimitExceeded", FailureKind.INFRASTRUCTURE),
    ("DeactivatedDueToAdmissionCheck", FailureKind.INFRASTRUCTURE),
    ("DeactivatedDueToSomethingNew", FailureKind.PREEMPTED),
    ("SomethingNew", FailureKind.PREEMPTED),
]


def see(workload: Workload | None, *containers: ContainerObject | None, **fields: Any) -> Sighting:
    """Judge a suspended Job of two pods in a queue."""
    traces, removed = fields.pop("traces", Traces(replicas=2, submitted=True)), fields.pop("removed", False)
    job = a_job(fields.pop("nodes", "2"), **{"suspended": True, "queued_by_kueue": True, **fields})
    seen = pods(*containers, removed=removed, deletes_at=NOW if removed else None)
    view = View(job=job, pods=seen, nodes=HERE, workload=workload, has_workloads=True)
    return sight(KEY, view, traces, SightContext(now=NOW))


@pytest.mark.parametrize(("workload", "words", "obstacle"), WAITS, ids=[words for _, words, _ in WAITS])
def test_a_queued_job_says_what_it_waits_for(workload: Workload | None, words: str, obstacle: str) -> None:
    seen = see(workload)
    assert seen.presence is Presence.PENDING
    assert seen.evidence.startswith("Job train-a1 waits for Kueue (")
    assert words in seen.evidence
    assert words.removeprefix("Kueue (") in describe_wait(workload, now=NOW)
    job = a_stored_job(JobState.STARTING, reason=f"waits: {seen.evidence}")
    expected = next(each.next for each in KUEUE if each.name == obstacle)
    assert tell_next(job, an_attempt(AttemptState.PENDING)) == expected.format(job=job.id, cluster=job.spec.cluster)


def test_every_obstacle_of_kueue_has_a_case() -> None:
    assert {name for _, _, name in WAITS} == {each.name for each in KUEUE}
    assert len({each.name for each in OBSTACLES}) == len(OBSTACLES)


@pytest.mark.parametrize(("reason", "kind"), EVICTIONS)
def test_an_evicted_attempt_that_trained_is_over(reason: str, kind: FailureKind) -> None:
    workload = a_workload(("Evicted", True, reason, "the message"))
    seen = see(workload, ended(143), ended(143), removed=True, traces=BEGAN)
    assert seen.cause is not None
    assert (seen.presence, seen.cause.kind) == (Presence.GONE, kind)
    assert "Kueue" in seen.cause.message
    assert f"{reason}: the message" in seen.cause.message
    assert seen.leftovers, "the Job must be deleted, or Kueue would start it again"


def test_a_preemption_names_its_reason_in_the_queue() -> None:
    workload = a_workload(EVICTED, ("Preempted", True, "InCohortReclamation", "the same"))
    found = find_eviction(workload)
    assert found is not None
    assert found.message.endswith("(UID: 7, JobUID: 8); InCohortReclamation)")


def test_a_workload_that_was_admitted_again_is_not_evicted() -> None:
    assert find_eviction(a_workload(("Evicted", False, "QuotaReserved", "Previously: Preempted"))) is None
    assert find_eviction(a_workload()) is None


def test_an_attempt_that_was_evicted_before_an_agent_started_stays_in_the_queue() -> None:
    """Kueue starts the same Job again. Another attempt would lose its place, and the pause between two tries."""
    unstarted = see(a_workload(TIMEOUT), None, ContainerObject(waiting="ContainerCreating"), removed=True)
    assert unstarted.presence is Presence.PENDING
    resumed = see(a_workload(TIMEOUT), None, ContainerObject(waiting="Pulling"), removed=True, suspended=False)
    assert resumed.presence is Presence.PENDING
    assert see(a_workload(TIMEOUT), RUNNING, ended(143), removed=True).presence is Presence.GONE


def test_an_attempt_that_trained_is_over_even_if_a_restarted_service_never_saw_its_pods() -> None:
    """Otherwise Kueue would start its Job again."""
    seen = see(a_workload(EVICTED), traces=BEGAN)
    assert shorten(seen) == ("gone", "D+ D+", "preempted")
    assert seen.cause is not None
    assert "Kueue preempted it" in seen.cause.message


def test_pods_of_an_earlier_admission_do_not_count_once_the_next_one_runs() -> None:
    old = [replace(pod, uid=f"{pod.uid}-old", name="old", removed=True) for pod in pods(None, WAITING)]
    job = a_job("2", queued_by_kueue=True)
    view = View(job=job, pods=(*old, *pods(RUNNING, None)), nodes=HERE, has_workloads=True)
    seen = sight(KEY, view, Traces(replicas=2, submitted=True, began=True), SightContext(now=NOW))
    assert (seen.presence, seen.cause) == (Presence.PENDING, None), "replica 1 has no pod yet"


def test_a_job_that_shrank_by_partial_admission_ends_with_all_its_replicas() -> None:
    """Kueue restores the requested size when it stops the Job."""
    seen = see(a_workload(EVICTED), ended(143), ended(143), removed=True, nodes="2:4", completions=4, traces=BEGAN)
    assert seen.presence is Presence.GONE


def test_a_job_that_finished_is_not_evicted() -> None:
    done = (Condition("Complete", True, "CompletionsReached", ""),)
    seen = see(a_workload(EVICTED), ended(0), ended(0), suspended=False, conditions=done, traces=BEGAN)
    assert (seen.presence, seen.cause) == (Presence.GONE, None)


def test_the_newest_unfinished_workload_of_a_job_counts() -> None:
    old = replace(a_workload(EVICTED), uid="old", created_at=1.0)
    new = replace(a_workload(), uid="new", created_at=2.0)
    finished = replace(a_workload(("Finished", True, "Succeeded", "")), uid="finished", created_at=3.0)
    unowned = replace(a_workload(), uid="unowned", job_uid="")
    assert by_job([new, finished, old, unowned]) == {"u": new}


def test_a_workload_that_kueue_gave_up_ends_the_attempt_and_one_that_a_person_stopped_does_not() -> None:
    rejected = a_workload(("Evicted", True, "DeactivatedDueToAdmissionCheck", "no capacity"), active=False)
    assert shorten(see(rejected)) == ("gone", "D+ D+", "infrastructure")
    stopped = a_workload(("Evicted", True, "Deactivated", "The workload is deactivated"), active=False)
    assert see(stopped).presence is Presence.PENDING


def test_without_the_right_to_read_workloads_the_job_still_says_that_it_waits(
    api: FakeApi, backend: KubernetesBackend
) -> None:
    api.store.denied = {("workloads", "list")}
    plan = plan_of({"run": {"command": ["true"], "workdir": "/"}, "placement": {"queue": "research"}}, {})
    backend.submit(plan)
    seen = backend.observe({plan.key: plan.max_nodes})[plan.key]
    assert seen.evidence == f"Job {render_name(plan.key)} waits for Kueue"


def test_a_job_s_topology_replaces_the_cluster_s() -> None:
    site = replace(OWN, defaults=Placement(required_topology="a/rack"))
    assert effective_placement(Placement(preferred_topology="a/block"), site).required_topology is None
    assert effective_placement(Placement(queue="q"), site).required_topology == "a/rack"


def test_kueue_may_admit_fewer_pods_of_an_elastic_job() -> None:
    admitted = a_workload(("Admitted", True, "Admitted", ""))
    seen = see(admitted, RUNNING, RUNNING, nodes="2:8", completions=2, suspended=False, traces=BEGAN)
    assert (shorten(seen), seen.nodes) == (("running", "A@n1 A@n1", None), 2)
    whole = see(admitted, RUNNING, RUNNING, nodes="2:2", completions=2, suspended=False, traces=BEGAN)
    assert whole.nodes is None


def test_a_queued_job_tells_kueue_its_size_priority_and_topology() -> None:
    placement = {"queue": "research", "priority_class": "high", "required_topology": "example.com/block"}
    plan = plan_of({"topology": {"nodes": "2:8"}, "placement": placement}, {"nodes": "2:8"})
    job = render_manifests(plan, OWN, workdir="/code").job
    assert job["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] == "high"
    kueues = {name: text for name, text in job["metadata"]["annotations"].items() if name.startswith("kueue.")}
    assert kueues == {
        "kueue.x-k8s.io/job-min-parallelism": "2",
        "kueue.x-k8s.io/job-completions-equal-parallelism": "true",
    }
    template = job["spec"]["template"]
    assert template["metadata"]["annotations"] == {"kueue.x-k8s.io/podset-required-topology": "example.com/block"}
    assert "podAffinity" not in template["spec"].get("affinity", {})


def test_without_a_queue_the_topology_is_an_affinity_of_the_pods() -> None:
    def affinity(**placement: str) -> Json:
        plan = plan_of({"topology": {"nodes": "2"}, "placement": placement}, {"nodes": "2"})
        job = render_manifests(plan, OWN, workdir="/code").job
        assert not any(name.startswith("kueue.") for name in job["metadata"]["annotations"])
        found: Json = job["spec"]["template"]["spec"]["affinity"]["podAffinity"]
        return found

    (term,) = affinity(required_topology="example.com/block")["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "example.com/block"
    (preferred,) = affinity(preferred_topology="example.com/block")["preferredDuringSchedulingIgnoredDuringExecution"]
    assert preferred["podAffinityTerm"] == term


def test_both_topologies_at_once_are_refused() -> None:
    both = a_spec(placement={"required_topology": "a/b", "preferred_topology": "a/b"})
    assert [problem.pointer for problem in find_unsupported(both, "kubernetes")] == ["/placement/preferred_topology"]


def test_a_priority_class_without_a_queue_is_refused(backend: KubernetesBackend) -> None:
    plan = plan_of({"run": {"command": ["true"], "workdir": "/"}, "placement": {"priority_class": "high"}}, {})
    with pytest.raises(LaunchRefused, match="names a queue"):
        backend.submit(plan)


def test_the_workload_is_found_by_its_job(api: FakeApi, backend: KubernetesBackend) -> None:
    plan = plan_of({"run": {"command": ["true"], "workdir": "/"}, "placement": {"queue": "research"}}, {})
    backend.submit(plan)
    job = api.store.get("jobs", render_name(plan.key))
    assert job is not None

    def evidence() -> str:
        return backend.observe({plan.key: plan.max_nodes})[plan.key].evidence

    assert "Kueue has no Workload" in evidence(), "the first pass waits for the first list"
    document = a_document(("QuotaReserved", False, "Pending", QUOTA))
    document["metadata"]["ownerReferences"][0]["uid"] = job["metadata"]["uid"]
    api.store.put("workloads", document, "ADDED")
    wait_for(lambda: "2 more needed" in evidence(), "Kueue's message")


def test_requests_and_passes_start_the_watchers_once_between_them(
    api: FakeApi, client: KubernetesClient, own: KubernetesSite
) -> None:
    plan = plan_of({"run": {"command": ["true"], "workdir": "/"}, "placement": {"queue": "research"}}, {})
    with ExitStack() as opened:
        for _ in range(5):
            backend = opened.enter_context(closing(build(own, client)))
            backend.submit(plan)
            with ThreadPoolExecutor(8) as pool:
                calls = [pool.submit(backend.observe, {plan.key: 1}) for _ in range(4)]
                calls += [pool.submit(backend.slots) for _ in range(4)]
                for call in calls:
                    call.result(60)


def test_workloads_are_not_watched_without_a_queue(api: FakeApi, backend: KubernetesBackend) -> None:
    backend.submit(plan := plan_of({"run": {"command": ["true"], "workdir": "/"}}, {}))
    backend.observe({plan.key: plan.max_nodes})
    assert not any(resource == "workloads" for _, resource, _ in api.store.calls)
