"""Sightings from an attempt's objects and files, in cases without a recorded stream. Silence proves nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from orchestrator.backends.kubernetes.kueue import Workload
from orchestrator.backends.kubernetes.objects import Condition, ContainerObject, JobObject, PodObject, WarningObject
from orchestrator.backends.kubernetes.sight import SightContext, Traces, View, sight
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.observation.observation import ReplicaEnd, Sighting
from tests.kubernetes.records import shorten
from tests.kubernetes.test_states import AWAY, HERE, NOW, RUNNING, a_pod, ended

KEY = AttemptKey("train", 1)
BEGAN = Traces(replicas=2, submitted=True, began=True)


def a_job(nodes: str = "2", **fields: Any) -> JobObject:
    return JobObject(**{"name": "train-a1", "uid": "u", "whole": True, "nodes": nodes, **fields})


def pods(*containers: ContainerObject | None, **fields: Any) -> tuple[PodObject, ...]:
    """Build pods by index. None: no pod yet."""
    return tuple(
        a_pod("Running" if one.running else "Pending", index=number, uid=f"u{number}", container=one, **fields)
        for number, one in enumerate(containers)
        if one is not None
    )


def see(job: JobObject | None, *seen: PodObject, traces: Traces = BEGAN, **fields: Any) -> Sighting:
    context = SightContext(now=NOW, **{name: fields.pop(name) for name in ("settle_s", "ours") if name in fields})
    return sight(KEY, View(job=job, pods=seen, **{"nodes": HERE, **fields}), traces, context)


WAITS = ContainerObject(waiting="ContainerCreating")


def test_a_job_that_was_never_created_or_never_began_is_absent() -> None:
    never = see(None, traces=Traces(replicas=2))
    nothing = see(None, traces=Traces(replicas=2, submitted=True))
    assert [shorten(one) for one in (never, nothing)] == [("absent", "", None)] * 2
    assert never.evidence != nothing.evidence


def test_a_deleted_job_is_preempted_unless_we_deleted_it() -> None:
    assert shorten(see(None)) == ("gone", "D D", "preempted")
    assert shorten(see(None, ours=True)) == ("gone", "D D", None)
    recorded = Traces(replicas=2, submitted=True, recorded=frozenset({0}))
    assert shorten(see(None, traces=recorded))[0] == "gone"


def test_an_interrupted_submission_is_absent_unless_it_has_pods() -> None:
    assert shorten(see(a_job(whole=False))) == ("absent", "", None)
    assert shorten(see(a_job(whole=False), *pods(RUNNING, RUNNING)))[0] == "running"


def test_a_group_is_pending_until_enough_pods_have_started() -> None:
    assert shorten(see(a_job(), *pods(RUNNING, WAITS)))[0] == "pending"
    assert shorten(see(a_job("1:2"), *pods(RUNNING, WAITS))) == ("running", "A@n1 D+", None)
    assert shorten(see(a_job("2:3"), *pods(RUNNING, WAITS)))[0] == "pending"
    assert "1 of 2 pods have started" in see(a_job(), *pods(RUNNING, WAITS)).evidence


def test_a_dead_pod_is_seen_while_another_waits() -> None:
    dead, waiting = pods(ended(137))[0], pods(None, WAITS)[0]
    assert shorten(see(a_job(), dead, waiting)) == ("running", "D D+", None)
    assert shorten(see(a_job("1:2"), dead, waiting))[0] == "running"


def test_a_replica_on_a_silent_node_is_unknown() -> None:
    assert shorten(see(a_job("1"), *pods(RUNNING), nodes=AWAY)) == ("unknown", "U@n1", None)


def test_a_node_is_unreachable_only_if_kubernetes_says_so() -> None:
    def unreachable(*seen: PodObject, **fields: Any) -> list[bool]:
        return [one.node_unreachable for one in see(a_job("1"), *seen, **fields).replicas]

    given_up = pods(RUNNING, deletes_at=NOW - 60)
    assert unreachable(*pods(RUNNING)) == [False]
    assert unreachable(*pods(RUNNING), nodes=AWAY) == [True]
    assert unreachable(*given_up, nodes=AWAY) == [True]
    assert unreachable(*given_up, nodes=AWAY, ours=True) == [True]
    assert unreachable(*pods(ended(137))) == [False]
    assert see(None, *pods(RUNNING), nodes=HERE).replicas[1].node_unreachable is False


def test_an_index_without_a_pod_has_the_state_of_the_job_s_status() -> None:
    (alive,) = pods(RUNNING)
    assert shorten(see(a_job(failed_indexes=frozenset({1})), alive)) == ("running", "A@n1 D", None)
    assert shorten(see(a_job(completed_indexes=frozenset({1})), alive)) == ("running", "A@n1 D", None)
    over = a_job(conditions=(Condition("Failed", True, "FailedIndexes", ""),))
    assert shorten(see(over)) == ("gone", "D D", None)


def test_a_missing_job_does_not_make_its_pods_dead() -> None:
    (alive,) = pods(RUNNING)
    assert shorten(see(None, alive)) == ("running", "A@n1 U", "preempted")
    assert shorten(see(None, *pods(WAITS)))[:2] == ("unknown", "U U")


def test_without_a_job_removed_pods_are_dead() -> None:
    assert shorten(see(None, *pods(RUNNING, removed=True))) == ("gone", "D D", "preempted")


def test_a_job_that_is_being_deleted_is_preempted() -> None:
    assert shorten(see(a_job(deleting=True))) == ("gone", "D D", "preempted")
    assert shorten(see(a_job(deleting=True), *pods(RUNNING))) == ("running", "A@n1 D", "preempted")


def test_an_exit_record_is_waited_for_only_if_it_can_still_come() -> None:
    for code, letter in ((0, "U"), (1, "U"), (143, "U"), (137, "D"), (2, "D")):
        (pod,) = pods(ended(code, finished_at=NOW - 5))
        assert shorten(see(a_job("1"), pod, settle_s=10))[1] == letter, code
        assert shorten(see(a_job("1"), pod, settle_s=5))[1] == "D", code
    (pod,) = pods(ended(0, finished_at=NOW))
    recorded = Traces(replicas=1, submitted=True, began=True, recorded=frozenset({0}))
    assert shorten(see(a_job("1"), pod, settle_s=10, traces=recorded))[1] == "D"


def test_a_job_that_we_deleted_has_only_causes_that_the_cluster_names() -> None:
    evicted = Condition("DisruptionTarget", True, "EvictionByEvictionAPI", "")
    limit = Condition("FailureTarget", True, "DeadlineExceeded", "")
    going = pods(RUNNING, RUNNING, deletes_at=NOW)
    assert shorten(see(None, *going, ours=True)) == ("running", "A@n1 A@n1", None)
    assert shorten(see(a_job(deleting=True), *going, ours=True))[2] is None
    assert shorten(see(None, going[0], replace(going[1], conditions=(evicted,)), ours=True))[2] == "preempted"
    assert shorten(see(a_job(conditions=(limit,)), *going, ours=True))[2] == "timeout"


def test_only_a_lost_node_is_blamed() -> None:
    lost = Condition("DisruptionTarget", True, "DeletionByPodGC", "")
    evicted = Condition("DisruptionTarget", True, "EvictionByEvictionAPI", "")
    blamed = [shorten(see(a_job("1"), *pods(ended(143), conditions=(each,))))[1] for each in (lost, evicted)]
    assert blamed == ["D@n1", "D"]


def test_the_cause_is_that_of_the_pod_that_ended_first() -> None:
    early, late = pods(ended(137, "OOMKilled", finished_at=NOW - 9), ended(128, "StartError", finished_at=NOW - 5))
    assert shorten(see(a_job(), late, early))[2] == "host-oom"
    limit = a_job(conditions=(Condition("FailureTarget", True, "DeadlineExceeded", ""),))
    assert shorten(see(limit, late, early))[2] == "timeout"
    assert shorten(see(None, late, early))[2] == "host-oom"


def test_the_earliest_end_counts_and_an_unknown_time_comes_last() -> None:
    late, early = pods(ended(128, "StartError", finished_at=NOW - 5), ended(137, "OOMKilled", finished_at=NOW - 9))
    assert shorten(see(a_job(), late, early))[2] == "host-oom"
    evicted = a_pod("Failed", index=0, reason="Evicted")
    assert shorten(see(a_job(), evicted, early))[2] == "host-oom"
    assert shorten(see(a_job(), replace(evicted, deletes_at=NOW - 20), early))[2] == "preempted"


def test_a_pod_on_a_lost_node_ended_with_its_grace_period() -> None:
    lost = a_pod("Running", index=1, container=RUNNING, deletes_at=NOW - 20)
    for finished_at, cause in ((NOW - 5, "node"), (NOW - 30, "host-oom")):
        (killed,) = pods(ended(137, "OOMKilled", finished_at=finished_at))
        assert shorten(see(a_job(), killed, lost, nodes=AWAY))[2] == cause


def test_the_newest_pod_of_an_index_counts_and_an_existing_one_before_a_removed_one() -> None:
    old = a_pod("Failed", name="old", uid="a", created_at=NOW - 50, container=ended(1))
    new = a_pod("Running", name="new", uid="b", created_at=NOW - 10, container=RUNNING)
    assert shorten(see(a_job("1"), old, new))[1] == shorten(see(a_job("1"), new, old))[1] == "A@n1"
    gone = a_pod("Running", name="gone", uid="c", created_at=NOW, container=RUNNING, removed=True)
    assert shorten(see(a_job("1"), old, gone)) == ("gone", "D", None)


def test_a_pod_that_is_replaced_is_dead_and_comes_back() -> None:
    job = a_job("2:3", replacements=6)
    evicted = (Condition("DisruptionTarget", True, "EvictionByEvictionAPI", ""),)
    alive = pods(RUNNING)[0]
    waits = [a_pod("Pending", index=number, uid=f"n{number}", disruptions=1, container=WAITS) for number in (1, 2)]
    both = see(job, alive, *waits)
    assert shorten(both)[:2] == ("running", "A@n1 D+ D+"), "two replacements that wait do not make it pending"
    assert [one.returns for one in both.replicas] == [False, True, True]
    disrupted = a_pod("Failed", index=1, uid="e", container=ended(1), conditions=evicted)
    assert see(job, alive, disrupted).replicas[1].returns


def test_a_pod_is_replaced_only_if_its_job_does_that() -> None:
    job = a_job("1:2", replacements=6)

    def returns(job: JobObject, *, phase: str = "Failed", **fields: Any) -> bool:
        pod = a_pod(phase, **{"index": 1, "uid": "x", "container": ended(143), **fields})
        return see(job, pods(RUNNING)[0], pod, settle_s=0.0).replicas[1].returns

    assert returns(job)
    assert returns(job, container=ended(137))
    assert returns(job, container=ended(255, "Unknown"))
    assert not returns(job, container=ended(1)), "its agent ended by itself"
    evicted = Condition("DisruptionTarget", True, "EvictionByEvictionAPI", "")
    assert not returns(job, phase="Succeeded", container=ended(0, "Completed"), conditions=(evicted,))
    assert [returns(job, failures=number) for number in (5, 6)] == [True, False], "the limit of the index is reached"
    for other in (
        a_job("1:2"),
        a_job("1:2", replacements=6, deleting=True),
        a_job("1:2", replacements=6, suspended=True),
        a_job("1:2", replacements=6, failed_indexes=frozenset({1})),
        a_job("1:2", replacements=6, conditions=(Condition("FailureTarget", True, "DeadlineExceeded", ""),)),
    ):
        assert not returns(other), other


def test_a_waiting_pod_is_a_replacement_only_if_there_was_one_before_it() -> None:
    def sees(job: JobObject, **fields: Any) -> tuple[bool, bool]:
        waits = a_pod("Pending", index=1, uid="w", container=WAITS, **fields)
        found = see(job, pods(RUNNING)[0], waits).replicas[1]
        return found.returns, found.end is not None

    replacing = a_job("1:2", replacements=6)
    assert sees(replacing) == (False, False)
    assert sees(replacing, failures=1) == sees(replacing, disruptions=1) == (True, True)
    assert sees(a_job("1:2"), failures=1) == (False, True), "another controller counted the failure"


def test_a_replacement_tells_how_the_pod_before_it_ended() -> None:
    job, alive = a_job("1:2", replacements=6), pods(RUNNING)[0]
    old = a_pod("Failed", name="old", index=1, uid="o", container=ended(143), deletes_at=NOW, removed=True)
    waits = a_pod("Pending", index=1, uid="w", disruptions=1, container=WAITS)
    told = see(job, alive, old, waits).replicas[1]
    assert told.evidence.startswith("pod old on n1 was deleted; its replacement: pod p is being started")
    assert told.end is not None
    assert (told.end.incarnation, told.end.words) == (1, "pod old on n1 was deleted")
    assert told.end.failure is not None
    assert "but not by this service" in told.end.failure.message
    for counted, words in ({"disruptions": 1}, "its pod was disrupted"), ({"failures": 1}, "its pod ended"):
        unseen = see(job, alive, a_pod("Pending", index=1, uid="w", container=WAITS, **counted)).replicas[1]
        assert unseen.evidence.startswith(f"{words}; its replacement: ")
        assert unseen.end == ReplicaEnd(incarnation=1, words=words)


def test_the_end_of_an_agent_is_that_of_the_newest_pod_that_ran() -> None:
    def end(pod: PodObject, **fields: Any) -> ReplicaEnd | None:
        return see(a_job("1", replacements=6), pod, **fields).replicas[0].end

    def kind(found: ReplicaEnd | None) -> str | None:
        return None if found is None or found.failure is None else found.failure.kind.value

    again = pods(RUNNING, failures=1)[0]
    assert end(again) is None
    silent = end(again, nodes=AWAY)
    assert silent is not None
    assert (silent.incarnation, silent.words) == (2, "node n1 does not answer; pod p may run there")
    assert kind(end(replace(again, deletes_at=NOW - 60), nodes=AWAY)) == "node"
    exited = end(a_pod("Failed", container=ended(1), disruptions=2))
    assert exited == ReplicaEnd(incarnation=3, words="pod p on n1 ended with exit code 1 (Error)")
    assert kind(end(a_pod("Failed", container=ended(137, "OOMKilled"), deletes_at=NOW))) == "host-oom"
    assert kind(end(a_pod("Failed", container=ended(143), deletes_at=NOW))) == "preempted"


def test_a_suspended_job_is_pending_until_its_pods_are_deleted() -> None:
    submitted = Traces(replicas=2, submitted=True)
    assert "Kueue" in see(a_job(suspended=True, queued_by_kueue=True), traces=submitted).evidence
    by_hand = see(a_job(suspended=True), traces=submitted)
    assert (shorten(by_hand)[0], "Kueue" in by_hand.evidence) == ("pending", False)
    assert shorten(see(a_job(suspended=True))) == ("gone", "D+ D+", "preempted"), (
        "it trained, and its pods are forgotten"
    )
    stopped = see(a_job("1", suspended=True), *pods(ended(143), deletes_at=NOW))
    assert shorten(stopped) == ("gone", "D+", "preempted")
    assert stopped.cause is not None
    assert stopped.cause.message == "Job train-a1 was suspended in the cluster"
    named = see(a_job("1", suspended=True, suspended_by="kueue"), *pods(ended(143), deletes_at=NOW)).cause
    assert named is not None
    assert named.message == "Job train-a1 was suspended in the cluster by kueue"


SUBMITTED = Traces(replicas=1, submitted=True)


def test_a_job_whose_pods_never_ran_can_still_be_suspended_and_wait() -> None:
    for container in (None, WAITS):
        waiting = a_pod("Pending", container=container, index=1)
        assert shorten(see(a_job("1", suspended=True), waiting, traces=SUBMITTED))[0] == "pending", container
    for container in (RUNNING, ended(143)):
        ran = a_pod("Failed", container=container, index=1)
        assert shorten(see(a_job("1", suspended=True), ran, traces=SUBMITTED))[0] == "gone", container


def test_kueue_may_evict_a_job_before_its_pods_run_and_start_it_again() -> None:
    queued = a_job("1", suspended=True, queued_by_kueue=True)
    for container, presence in ((None, "pending"), (WAITS, "pending"), (RUNNING, "gone"), (ended(143), "gone")):
        removed = a_pod("Failed", container=container, removed=True)
        assert shorten(see(queued, removed, traces=SUBMITTED))[0] == presence, container


def kueue(**fields: Any) -> Workload:
    evicted = Condition("Evicted", True, "Preempted", "to make room")
    return Workload(**{"uid": "w", "job_uid": "u", "conditions": (evicted,), **fields})


def test_a_workload_that_kueue_deactivated_ends_the_attempt() -> None:
    deactivated = Condition("Evicted", True, "DeactivatedDueToRequeuingLimitExceeded", "")
    queued = a_job("1", suspended=True, queued_by_kueue=True)
    rejected = kueue(active=False, conditions=(deactivated,))
    assert shorten(see(queued, workload=rejected, traces=SUBMITTED)) == ("gone", "D+", "infrastructure")
    assert shorten(see(queued, workload=kueue(), traces=SUBMITTED))[0] == "pending"


def test_kueue_s_reason_for_an_eviction_is_the_cause_unless_the_job_was_decided() -> None:
    def cause(job: JobObject, **fields: Any) -> str | None:
        found = see(job, *pods(ended(143), deletes_at=NOW), **fields).cause
        return None if found is None else found.message

    suspended = a_job("1", suspended=True)
    assert cause(suspended, workload=kueue()) == "Kueue preempted it (Preempted: to make room)"
    assert cause(suspended, workload=kueue(conditions=())) == "Job train-a1 was suspended in the cluster"
    decided = a_job("1", conditions=(Condition("FailureTarget", True, "FailedIndexes", ""),))
    assert cause(decided, workload=kueue()) is None
    assert "one of its pods was deleted" in (cause(a_job("1")) or "")


def test_the_time_limit_of_a_job_is_the_cause_if_no_pod_has_one() -> None:
    limit = a_job("1", conditions=(Condition("Failed", True, "DeadlineExceeded", ""),))
    assert shorten(see(limit, *pods(ended(143))))[2] == "timeout"


def test_a_pod_that_can_never_start_ends_the_attempt() -> None:
    hopeless = ContainerObject(waiting="InvalidImageName")
    assert shorten(see(a_job(), *pods(WAITS, hopeless))) == ("gone", "D+ D+", "launch")
    assert shorten(see(a_job(), *pods(None, hopeless))) == ("gone", "D+ D+", "launch")


def test_warnings_about_quotas_and_volumes_are_in_the_evidence() -> None:
    quota = WarningObject(
        kind="Job", name="train-a1", reason="FailedCreate", message="exceeded quota: q", at=1, since=1
    )
    assert "exceeded quota: q" in see(a_job(), warnings=(quota,)).evidence
    mount = WarningObject(kind="Pod", name="p", reason="FailedMount", message="claim runs not found", at=1, since=1)
    other = WarningObject(kind="Pod", name="p", reason="BackOff", message="irrelevant", at=2, since=2)
    waiting = see(a_job(), *pods(WAITS, WAITS), warnings=(mount, other))
    assert "claim runs not found" in waiting.evidence
    assert "irrelevant" not in waiting.evidence


NOT_LET_IN = 'Error creating: pods "train-a1-0-x" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot'


def refusal(message: str, *, since: float, at: float) -> WarningObject:
    return WarningObject(kind="Job", name="train-a1", reason="FailedCreate", message=message, at=at, since=since)


def refusals(*messages: str, at: float = NOW - 301) -> tuple[WarningObject, ...]:
    """Build warnings of the Job's controller, one per minute."""
    moments = (at + 60 * number for number in range(len(messages)))
    return tuple(refusal(each, since=moment, at=moment) for each, moment in zip(messages, moments, strict=True))


def test_refused_pods_end_the_attempt_after_a_while() -> None:
    lasting = see(a_job(), warnings=refusals(NOT_LET_IN, NOT_LET_IN))
    assert shorten(lasting) == ("gone", "D+ D+", "launch")
    assert lasting.cause is not None
    assert "refuses the pods of Job train-a1 (FailedCreate: Error creating" in lasting.cause.message
    repeated = see(a_job(), warnings=(refusal(NOT_LET_IN, since=NOW - 301, at=NOW),))  # equal messages share one event
    assert shorten(repeated) == ("gone", "D+ D+", "launch")
    early = see(a_job(), warnings=refusals(NOT_LET_IN, at=NOW - 299))
    assert (shorten(early)[0], "violates PodSecurity" in early.evidence) == ("pending", True)


def test_a_temporary_refusal_is_waited_for() -> None:
    full = 'Error creating: pods "train-a1-0-x" is forbidden: exceeded quota: q, requested: pods=1'
    away = "Error creating: Internal error occurred: failed calling webhook"
    for message in (full, away):
        assert shorten(see(a_job(), warnings=refusals(message)))[0] == "pending"
        assert shorten(see(a_job(), warnings=refusals(NOT_LET_IN, message)))[0] == "pending"
    # The time of an earlier full quota does not count.
    assert shorten(see(a_job(), warnings=refusals(full, NOT_LET_IN, at=NOW - 350)))[0] == "pending"
    others = replace(refusals(NOT_LET_IN)[0], name="other-a1")
    assert shorten(see(a_job(), warnings=(others,)))[0] == "pending"
