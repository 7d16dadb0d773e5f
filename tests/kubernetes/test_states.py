"""Meanings of states, reasons and conditions, above all those without a recorded stream."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.backends.kubernetes.objects import (
    Condition,
    ContainerObject,
    JobObject,
    NodeObject,
    PodObject,
    parse_indexes,
    parse_job,
    parse_node,
    parse_pod,
    parse_time,
    parse_warning,
)
from orchestrator.backends.kubernetes.states import (
    DISRUPTIONS,
    POD_REASONS,
    TERMINATED,
    WAITING,
    Judgment,
    Standing,
    describe_loss,
    find_job_cause,
    is_decided,
    is_over,
    is_refusal,
    is_silent,
    judge,
)
from tests.builders import make_exit_record
from trainer.contract.exit_record import Outcome
from trainer.contract.failure import FailureKind
from trainer.contract.pod import LastWords, render_last_words

NOW = 1_000_000.0
HERE, AWAY = {"n1": NodeObject(name="n1", ready=True)}, {"n1": NodeObject(name="n1", ready=False)}


def a_pod(phase: str = "Running", **fields: Any) -> PodObject:
    given = {"name": "p", "uid": "u", "job": "train", "index": 0, "node": "n1", "created_at": NOW - 10, **fields}
    return PodObject(phase=phase, **given)


def ended(code: int, reason: str = "Error", **fields: Any) -> ContainerObject:
    return ContainerObject(terminated=reason, exit_code=code, **fields)


def word(pod: PodObject, nodes: dict[str, NodeObject] | None = HERE) -> Judgment:
    return judge(pod, nodes, now=NOW, late_s=10)


def kind(pod: PodObject) -> str | None:
    cause = word(pod).cause
    return None if cause is None else cause.kind.value


RUNNING = ContainerObject(running=True)
DISRUPTED = Condition("DisruptionTarget", True, "EvictionByEvictionAPI", "evicted")


@pytest.mark.parametrize(
    ("reason", "expected"),
    [(name, meaning.kind) for name, meaning in TERMINATED.items()] + [("Error", None), ("Completed", None)],
)
def test_the_reason_of_a_terminated_container_is_the_cause(reason: str, expected: FailureKind | None) -> None:
    assert kind(a_pod("Failed", container=ended(137, reason))) == (None if expected is None else expected.value)


@pytest.mark.parametrize(("reason", "expected"), [(name, meaning.kind) for name, meaning in DISRUPTIONS.items()])
def test_a_disruption_is_the_cause_of_its_pod_s_end(reason: str, expected: FailureKind) -> None:
    condition = Condition("DisruptionTarget", True, reason, "")
    assert kind(a_pod("Failed", container=ended(143), conditions=(condition,), deletes_at=NOW)) == expected.value
    assert (
        kind(a_pod("Failed", container=ended(143), conditions=(Condition("DisruptionTarget", False, reason, ""),)))
        is None
    )


def test_an_unknown_reason_of_a_disruption_is_no_cause() -> None:
    assert (
        kind(a_pod("Failed", container=ended(143), conditions=(Condition("DisruptionTarget", True, "New", ""),)))
        is None
    )


def test_a_loss_is_the_disruption_or_the_deletion_or_the_exit() -> None:
    killed = a_pod("Failed", container=ended(137))
    assert describe_loss(killed) == "pod p on n1 ended with exit code 137 (Error, SIGKILL)"
    assert describe_loss(replace(killed, deletes_at=NOW)) == "pod p on n1 was deleted"
    assert describe_loss(replace(killed, deletes_at=NOW, conditions=(DISRUPTED,))) == "pod p on n1 was evicted"
    undone = replace(DISRUPTED, holds=False)
    assert describe_loss(replace(killed, deletes_at=NOW, conditions=(undone,))) == "pod p on n1 was deleted"


@pytest.mark.parametrize(
    ("reason", "message", "expected"),
    [(name, "", meaning.kind) for name, meaning in POD_REASONS.items()]
    + [
        ("Evicted", "The node was low on resource: memory. Threshold quantity: 100Mi", FailureKind.HOST_OOM),
        ("Evicted", "The node was low on resource: ephemeral-storage.", FailureKind.STORAGE),
        ("Evicted", 'Usage of EmptyDir volume "tmp" exceeds the limit "1Gi".', FailureKind.STORAGE),
        ("Evicted", "The node had condition: [DiskPressure].", FailureKind.PREEMPTED),
    ],
)
def test_a_pod_s_own_reason_is_its_cause(reason: str, message: str, expected: FailureKind) -> None:
    assert kind(a_pod("Failed", reason=reason, message=message)) == expected.value


@pytest.mark.parametrize(("reason", "expected"), [(name, meaning.kind) for name, meaning in DISRUPTIONS.items()])
def test_a_disruption_is_known_before_the_pod_has_ended(reason: str, expected: FailureKind) -> None:
    condition = Condition("DisruptionTarget", True, reason, "in its words", by="somebody")
    running = word(
        a_pod(container=RUNNING, conditions=(condition,), deletes_at=NOW, reason="Evicted", message="low on x")
    )
    assert running.standing is Standing.RUNS
    assert running.cause is not None
    assert (running.cause.kind, running.cause) == (expected, running.disruption)
    for part in (f"{reason}: in its words", "Evicted: low on x", "set by somebody"):
        assert part in running.cause.message
    quiet = word(a_pod(container=RUNNING, conditions=(Condition("DisruptionTarget", True, reason, ""),)))
    assert quiet.cause is not None
    assert quiet.cause.message.endswith(f"(pod p on n1, {reason})")


def test_a_pod_evicted_by_a_custom_taint_is_preempted_and_its_node_not_lost() -> None:
    def node(*taints: dict[str, str], ready: str = "True") -> dict[str, NodeObject]:
        conditions = [{"type": "Ready", "status": ready}]
        document = {"metadata": {"name": "n1"}, "spec": {"taints": taints}, "status": {"conditions": conditions}}
        return {"n1": parse_node(document)}

    condition = Condition(
        "DisruptionTarget", True, "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint"
    )
    pod = a_pod("Failed", container=ended(143), conditions=(condition,), deletes_at=NOW)

    def cause(nodes: dict[str, NodeObject] | None) -> tuple[FailureKind, str]:
        found = word(pod, nodes).cause
        assert found is not None
        return found.kind, found.message

    by_hand = {"key": "maintenance", "effect": "NoExecute"}
    kind, message = cause(node(by_hand))
    assert kind is FailureKind.PREEMPTED
    assert "its node has the taint maintenance" in message
    lost = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}
    for nodes in (
        None,
        {},
        node(),
        node(lost),
        node({**by_hand, "effect": "NoSchedule"}),
        node(lost, by_hand, ready="Unknown"),
    ):
        assert cause(nodes)[0] is FailureKind.NODE


def test_the_effects_of_our_deletion_are_not_a_disruption() -> None:
    init = a_pod("Failed", unpacking=ended(143, message="told to go"), deletes_at=NOW)
    for pod in (init, a_pod("Failed", container=ended(137), deletes_at=NOW), a_pod("Failed", container=ended(126))):
        assert word(pod).disruption is None


def test_out_of_memory_wins_over_the_eviction_after_it() -> None:
    assert kind(a_pod("Failed", container=ended(137, "OOMKilled"), conditions=(DISRUPTED,))) == "host-oom"


@pytest.mark.parametrize("code", [126, 127])
def test_a_missing_program_is_a_launch_failure(code: int) -> None:
    assert kind(a_pod("Failed", container=ended(code))) == "launch"


@pytest.mark.parametrize("code", [0, 1, 3, 125, 128, 137, 143])
def test_other_exit_codes_have_no_cause(code: int) -> None:
    assert kind(a_pod("Failed", container=ended(code))) is None


def test_a_failed_pod_without_a_terminated_container_has_no_cause() -> None:
    assert kind(a_pod("Failed")) is None
    assert kind(a_pod("Failed", unpacking=ContainerObject(waiting="PodInitializing"))) is None


def test_a_failed_init_container_is_a_launch_failure() -> None:
    failed = word(a_pod("Failed", unpacking=ended(1, message="no space")))
    assert (failed.standing, failed.cause and failed.cause.kind) == (Standing.OVER, FailureKind.LAUNCH)
    assert "no space" in (failed.cause.message if failed.cause else "")


def test_an_init_container_that_was_killed_with_its_pod_is_not_a_launch_failure() -> None:
    for code in (137, 143):
        killed = word(a_pod("Failed", unpacking=ended(code), deletes_at=NOW))
        assert (killed.cause, killed.unexplained) == (None, True)
        assert kind(a_pod("Failed", unpacking=ended(code))) == "launch"
    assert kind(a_pod("Failed", unpacking=ended(1), deletes_at=NOW)) == "launch"


@pytest.mark.parametrize(
    ("printed", "kind"),
    [
        ("/usr/bin/python3: No module named trainer", FailureKind.LAUNCH),
        ("elasticrun: [Errno 13] Permission denied: '/run/orchestrator/job/attempts/1'\n", FailureKind.LAUNCH),
        ("elasticrun: [Errno 28] No space left on device: '/run/orchestrator/job'", FailureKind.STORAGE),
    ],
)
@pytest.mark.parametrize("code", [1, 2])
def test_an_agent_that_could_not_begin_is_explained_by_its_last_line(
    printed: str, kind: FailureKind, code: int
) -> None:
    seen = word(a_pod("Failed", container=ended(code, message=f"elasticrun: waits\n{printed}")))
    assert seen.cause is not None
    assert (seen.cause.kind, seen.cause.exit_code) == (kind, code)
    assert printed.strip() in seen.cause.message


def test_an_exit_record_or_an_empty_message_is_not_such_an_explanation() -> None:
    words = render_last_words(LastWords(replica=0, incarnation=1, record=make_exit_record(Outcome.FAILED)))
    for message in (words, "", "  \n"):
        assert word(a_pod("Failed", container=ended(1, message=message))).cause is None
    assert word(a_pod("Failed", container=ended(143, message="elasticrun: told to go"))).cause is None


def test_a_deleted_pod_without_a_disruption_is_unexplained() -> None:
    deleted = word(a_pod("Failed", container=ended(143), deletes_at=NOW))
    assert (deleted.unexplained, deleted.cause) == (True, None)
    assert word(a_pod("Failed", container=ended(143))).unexplained is False
    assert word(a_pod("Failed", container=ended(143), deletes_at=NOW, conditions=(DISRUPTED,))).unexplained is False
    assert word(a_pod(container=RUNNING, deletes_at=NOW)).unexplained is True
    assert word(a_pod(container=RUNNING, deletes_at=NOW, conditions=(DISRUPTED,))).unexplained is False
    assert word(a_pod(container=RUNNING)).unexplained is False


@pytest.mark.parametrize(("reason", "meaning"), WAITING.items())
def test_the_reason_why_a_container_waits_is_its_trouble(reason: str, meaning: Any) -> None:
    waits = word(a_pod("Pending", container=ContainerObject(waiting=reason, message="because")))
    assert waits.standing is Standing.WAITS
    assert waits.trouble is not None
    assert (waits.trouble.kind, waits.may_resolve) == (meaning.kind, meaning.may_resolve)
    assert "because" in waits.evidence
    assert reason in waits.evidence


@pytest.mark.parametrize(
    "message",
    [
        "rpc error: code = NotFound desc = x",
        "manifest unknown",
        "pull access denied for x",
        "unauthorized: login",
        "403 Forbidden",
    ],
)
def test_an_image_that_does_not_exist_is_not_waited_for(message: str) -> None:
    waits = word(a_pod("Pending", container=ContainerObject(waiting="ImagePullBackOff", message=message)))
    assert (waits.trouble and waits.trouble.kind, waits.may_resolve) == (FailureKind.LAUNCH, False)


def test_an_init_container_s_image_counts_as_well() -> None:
    waits = word(a_pod("Pending", unpacking=ContainerObject(waiting="InvalidImageName", message="x")))
    assert waits.trouble is not None


def test_a_container_that_is_being_created_is_not_trouble() -> None:
    for reason in ("ContainerCreating", "PodInitializing"):
        waits = word(a_pod("Pending", container=ContainerObject(waiting=reason)))
        assert (waits.standing, waits.trouble) == (Standing.WAITS, None)
        assert "being started on n1" in waits.evidence
    scheduled = a_pod("Pending", conditions=(Condition("PodScheduled", True, "", ""),))
    assert word(scheduled).evidence == "pod p is being started on n1"
    assert "no node yet" in word(a_pod("Pending", node=None)).evidence


def test_a_pod_without_a_node_waits_for_what_the_scheduler_says() -> None:
    unscheduled = Condition("PodScheduled", False, "Unschedulable", "0/3 nodes are available")
    waits = word(a_pod("Pending", node=None, conditions=(unscheduled,)))
    assert waits.standing is Standing.WAITS
    assert waits.evidence == "pod p has no node (Unschedulable: 0/3 nodes are available)"


def test_pods_on_a_silent_node_are_silent_until_the_cluster_gives_them_up() -> None:
    for nodes in (AWAY, {}):
        assert word(a_pod(container=RUNNING), nodes).standing is Standing.SILENT
    for since, expected in ((-9.9, Standing.SILENT), (-10.0, Standing.LOST), (30.0, Standing.SILENT)):
        seen = word(a_pod(container=RUNNING, deletes_at=NOW + since), AWAY)
        assert seen.standing is expected
    lost = word(a_pod(container=RUNNING, deletes_at=NOW - 60), AWAY)
    assert lost.cause is not None
    assert lost.cause.kind is FailureKind.NODE
    assert "n1" in lost.evidence


def test_a_pod_that_ends_slowly_on_a_ready_node_still_runs() -> None:
    seen = word(a_pod(container=RUNNING, deletes_at=NOW - 600))
    assert seen.standing is Standing.RUNS
    assert "being deleted" in seen.evidence


def test_without_nodes_only_the_node_controller_s_condition_makes_a_pod_silent() -> None:
    by_controller, by_kubelet = (
        a_pod(container=RUNNING, conditions=(Condition("Ready", False, reason, ""),))
        for reason in ("", "ContainersNotReady")
    )
    assert is_silent(by_controller, None)
    assert not is_silent(by_kubelet, None)
    assert not is_silent(a_pod(container=RUNNING), None)
    assert not is_silent(a_pod(container=RUNNING, conditions=(Condition("Ready", True, "", ""),)), None)
    assert not is_silent(a_pod("Pending", conditions=(Condition("Ready", False, "", ""),)), None)
    assert is_silent(a_pod("Unknown"), None)
    assert is_silent(a_pod(reason="NodeLost"), HERE)


def test_a_removed_pod_is_over() -> None:
    seen = word(a_pod(container=RUNNING, removed=True), AWAY)
    assert seen.standing is Standing.OVER
    assert "gone" in seen.evidence


@pytest.mark.parametrize(
    ("condition", "decided", "over", "cause"),
    [
        ("Complete", True, True, None),
        ("Failed", True, True, FailureKind.TIMEOUT),
        ("FailureTarget", True, False, FailureKind.TIMEOUT),
        ("SuccessCriteriaMet", True, False, None),
        ("Suspended", False, False, None),
    ],
)
def test_a_job_is_decided_before_it_is_over(
    condition: str, decided: bool, over: bool, cause: FailureKind | None
) -> None:
    reason = "DeadlineExceeded" if cause else "CompletionsReached"
    job = JobObject(name="train", uid="u", conditions=(Condition(condition, True, reason, "said"),))
    found = find_job_cause(job)
    assert (is_decided(job), is_over(job), found and found.kind) == (decided, over, cause)
    undone = JobObject(name="train", uid="u", conditions=(Condition(condition, False, reason, "said"),))
    assert (is_decided(undone), is_over(undone), find_job_cause(undone)) == (False, False, None)


def test_indexes_times_and_incomplete_objects_are_parsed() -> None:
    assert parse_indexes("0,3-5") == {0, 3, 4, 5}
    assert parse_indexes("") == parse_indexes(None) == frozenset()
    assert parse_time("2026-11-20T16:41:45Z") == parse_time("2026-11-20T17:41:45.000000+01:00")
    assert parse_time("never") is parse_time(None) is None
    bare = parse_pod({"metadata": {"name": "p"}}, container="agent")
    assert (bare.phase, bare.index, bare.container) == ("Pending", None, None)
    odd = parse_job({"metadata": {"name": "j"}, "status": {"failedIndexes": "1", "conditions": None}})
    assert (odd.failed_indexes, odd.min_nodes, odd.max_nodes) == ({1}, 1, 1)
    assert parse_warning({"metadata": {}, "reason": "Starting"}).message == ""


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ('pods "x" is forbidden: violates PodSecurity "baseline:latest": hostPath volumes', True),
        ('pods "x" is forbidden: [maximum memory usage per Container is 1Gi, but limit is 2Gi]', True),
        ('pods "x" is forbidden: no PriorityClass with name batch was found', True),
        ('pods "x" is forbidden: failed quota: q: must specify limits.cpu for: agent', True),
        ('Pod "x" is invalid: spec.containers[0].resources.requests: Invalid value', True),
        ('admission webhook "policy.example" denied the request: no hostPath here', True),
        ('pods "x" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1', False),
        ('Internal error occurred: failed calling webhook "policy.example": connection refused', False),
        ("", False),
    ],
)
def test_a_message_is_a_refusal_unless_it_can_pass(message: str, expected: bool) -> None:
    assert is_refusal(message) is expected


def test_the_author_of_a_condition_comes_from_the_managed_fields() -> None:
    """The format: Kubernetes documentation, "Server-Side Apply", field management."""

    def owned(*keys: str) -> dict[str, Any]:
        found: dict[str, Any] = {".": {}}
        for key in reversed(keys):
            found = {key: found}
        return found

    fields = [
        {"manager": "kubelet", "fieldsV1": owned("f:status", "f:conditions", 'k:{"type":"Ready"}')},
        {"manager": "kube-scheduler", "fieldsV1": owned("f:status", "f:conditions", 'k:{"type":"DisruptionTarget"}')},
        {"manager": "odd"},
        {"manager": "odder", "fieldsV1": {"f:status": None}},
    ]
    conditions = [{"type": kind, "status": "True"} for kind in ("Ready", "DisruptionTarget", "Initialized")]
    document = {"metadata": {"name": "p", "managedFields": fields}, "status": {"conditions": conditions}}
    assert [each.by for each in parse_pod(document, container="agent").conditions] == ["kubelet", "kube-scheduler", ""]
    spec = [{"manager": "kubectl-patch", "fieldsV1": owned("f:spec", "f:suspend")}]
    suspended = {"metadata": {"name": "j", "managedFields": spec}, "spec": {"suspend": True}}
    assert parse_job(suspended).suspended_by == "kubectl-patch"
    assert parse_job({"metadata": {"name": "j", "managedFields": None}}).suspended_by == ""
