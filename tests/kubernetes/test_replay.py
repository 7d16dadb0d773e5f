"""Every recorded stream gives the expected sightings and decisions: whole, cut at every line, and with repetitions.

The recorded Jobs have several policies. Ours replaces no pod (backoffLimitPerIndex 0), like 10c, unless it is elastic,
like 21 and 22.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from orchestrator.backends.kubernetes.mirror import Mirror
from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.observation.lost_replica import LostReplica, find_lost_replicas
from orchestrator.domain.observation.membership import Members
from orchestrator.domain.observation.observation import Liveness, Observation, Presence, Sighting, Training
from orchestrator.domain.observation.watched import Watched as WatchedAttempt
from orchestrator.domain.policy.decide import decide
from orchestrator.domain.policy.decision import EndAttempt, Stop
from orchestrator.domain.policy.situation import Situation
from tests.kubernetes import records
from tests.kubernetes.records import Line, Watched, look, shorten
from tests.unit.situations import a_job, a_spec, an_attempt

# Scenario, second -> presence; replicas (Alive, Dead, Unknown; + has leftovers; @ its node); kind of the cause; the
# decision for a job of two nodes without exit records.
Row = tuple[str, float, str, str, str | None, str]
EXPECTED: tuple[Row, ...] = (
    ("01-success", 0.06, "pending", "", None, "wait"),
    ("01-success", 2.0, "running", "A@node-2 A@node-1", None, "wait"),
    ("01-success", 5.32, "running", "D A@node-1", None, "stop node"),
    ("01-success", 9.0, "gone", "D D", None, "end LOST node"),
    ("02-exit1-count", 3.3, "running", "A@node-2 D", None, "stop node"),
    ("02-exit1-count", 13.3, "running", "A@node-2 D+", None, "stop node"),
    ("02-exit1-count", 14.0, "running", "A@node-2 A@node-1", None, "wait"),
    ("02b-exit1-backoff-exceeded", 3.4, "running", "A@node-1 D", None, "stop node"),
    ("02b-exit1-backoff-exceeded", 7.0, "gone", "D D", None, "end LOST node"),
    ("03-exit42-failindex", 5.8, "running", "A@node-2 D", None, "stop node"),
    ("03b-exit42-failjob", 8.3, "gone", "D D", None, "end LOST node"),
    ("03c-max-failed-indexes", 6.4, "gone", "D D", None, "end LOST node"),
    ("04-sigkill-137", 2.6, "running", "A@node-2 D+", None, "stop node"),
    ("05-oomkilled", 3.4, "running", "A@node-2 D", "host-oom", "stop host-oom"),
    ("05-oomkilled", 11.4, "gone", "D D", "host-oom", "end FAILED host-oom"),
    ("06-image-registry-unreachable", 32.0, "pending", "", None, "wait"),
    ("06-image-registry-unreachable", 301.0, "gone", "D+ D+", "infrastructure", "force infrastructure"),
    ("06b-image-not-found", 2.0, "gone", "D+ D+", "launch", "force launch"),
    ("06c-invalid-image-name", 1.3, "gone", "D+ D+", "launch", "force launch"),
    ("07-unschedulable-gpu", 7.0, "pending", "", None, "wait"),
    ("07-unschedulable-gpu", 7.85, "pending", "", None, "wait"),
    ("07-unschedulable-gpu", 8.0, "running", "A@node-1 A@node-2", None, "wait"),
    ("08-drain", 4.0, "running", "A@node-2 A@node-1", "preempted", "wait"),
    ("08-drain", 7.0, "running", "A@node-2 D", "preempted", "stop preempted"),
    ("09-powercut-policy-failed-taint", 16.0, "running", "A@node-2 A@node-1", None, "wait"),
    ("09-powercut-policy-failed-taint", 18.0, "running", "A@node-2 U@node-1", None, "wait"),
    ("09-powercut-policy-failed-taint", 30.0, "running", "A@node-2 U@node-1", "node", "wait"),
    ("09-powercut-policy-failed-taint", 37.0, "running", "A@node-2 D@node-1", "node", "stop node"),
    ("09-powercut-policy-failed-taint", 51.0, "running", "A@node-2 A@node-2", None, "wait"),
    ("09b-powercut-policy-failed-reboot", 30.0, "running", "U@node-2 A@node-1", "node", "wait"),
    ("09b-powercut-policy-failed-reboot", 34.0, "running", "D@node-2 A@node-1", "node", "stop node"),
    ("10-powercut-terminatingorfailed", 25.0, "running", "U@node-2 A@node-1", "node", "wait"),
    ("10-powercut-terminatingorfailed", 30.0, "running", "A@node-1 A@node-1", None, "wait"),
    ("10b-powercut-backofflimit0", 22.0, "unknown", "U@node-2 D", "node", "stop node"),
    ("10b-powercut-backofflimit0", 34.0, "gone", "D@node-2 D", "node", "end LOST node"),
    ("10c-powercut-per-index0", 22.0, "running", "U@node-2 A@node-1", "node", "wait"),
    ("10c-powercut-per-index0", 34.0, "running", "D@node-2 A@node-1", "node", "stop node"),
    ("10c-powercut-per-index0", 49.0, "running", "D@node-2 A@node-1", "node", "stop node"),
    ("11-netcut-20s-tolerated", 20.0, "running", "U@node-2 A@node-1", None, "wait"),
    ("11-netcut-20s-tolerated", 34.0, "running", "A@node-2 A@node-1", None, "wait"),
    ("11b-netcut-20s-evicted", 24.0, "running", "U@node-2 A@node-1", "node", "wait"),
    ("11b-netcut-20s-evicted", 26.0, "running", "D@node-2 A@node-1", "node", "stop node"),
    ("12-delete-background", 2.0, "running", "A@node-2 A@node-1", "preempted", "wait"),
    ("12-delete-background", 8.0, "gone", "D D", "preempted", "end PREEMPTED preempted"),
    ("12b-delete-without-policy", 4.0, "running", "A@node-2 A@node-1", "preempted", "wait"),
    ("12c-delete-foreground", 5.0, "gone", "D D", "preempted", "end PREEMPTED preempted"),
    ("13-active-deadline", 7.0, "running", "A@node-2 A@node-1", "timeout", "wait"),
    ("13-active-deadline", 10.0, "gone", "D D", "timeout", "end FAILED timeout"),
    ("14-suspend", 2.3, "running", "A+@node-2 A+@node-1", "preempted", "wait"),
    ("14-suspend", 4.0, "gone", "D+ D+", "preempted", "force preempted"),
    ("15-elastic-2-3-1", 2.0, "running", "A@node-2 A@node-1", None, "wait"),
    ("15-elastic-2-3-1", 4.0, "running", "A@node-2 A@node-1 A@node-2", None, "wait"),
    ("15-elastic-2-3-1", 10.0, "running", "A@node-2", None, "wait"),
    ("15b-parallelism-only-3-1-3", 5.0, "running", "D D A@node-1", "preempted", "stop preempted"),
    ("15c-elastic-shrink-with-finished-index", 9.0, "running", "A@node-1 A@node-2", None, "wait"),
    ("16-preemption-exit83", 3.0, "running", "A@node-2 A@node-1", "preempted", "wait"),
    ("16-preemption-exit83", 7.0, "running", "A@node-2 D", "preempted", "stop preempted"),
    ("18-force-delete-policy-failed", 3.0, "running", "A@node-2 A@node-1", "preempted", "wait"),
    ("18-force-delete-policy-failed", 4.0, "running", "A@node-2 D", "preempted", "stop preempted"),
    ("18b-force-delete-terminatingorfailed", 4.0, "running", "A@node-2 D", "preempted", "stop preempted"),
    ("18c-plain-delete-policy-failed", 5.0, "running", "A@node-2 D", "preempted", "stop preempted"),
    ("19-success-policy", 11.0, "gone", "D D", None, "end LOST node"),
    ("20-powercut-default-times", 50.0, "running", "A@node-2 A@node-1", None, "wait"),
    ("20-powercut-default-times", 57.0, "running", "A@node-2 U@node-1", None, "wait"),
    ("20-powercut-default-times", 118.0, "running", "A@node-2 U@node-1", "node", "wait"),
    ("20-powercut-default-times", 159.5, "running", "A@node-2 A@node-1", "node", "wait"),
    ("20-powercut-default-times", 161.5, "running", "A@node-2 D@node-1", "node", "stop node"),
    ("21-elastic-deleted", 4.7, "running", "A@node-2 A@node-3 A@node-1", "preempted", "wait"),
    ("21-elastic-deleted", 9.0, "running", "A@node-2 D+ A@node-1", "preempted", "wait"),
    ("21-elastic-deleted", 14.66, "running", "A@node-2 D+ A@node-1", None, "wait"),
    ("21-elastic-deleted", 15.5, "running", "A@node-2 A@node-3 A@node-1", None, "wait"),
    ("22-elastic-evicted-then-deleted", 9.0, "running", "A@node-2 D+ A@node-3", "preempted", "wait"),
    ("22-elastic-evicted-then-deleted", 15.29, "running", "A@node-2 D+ A@node-3", None, "wait"),
    ("22-elastic-evicted-then-deleted", 17.0, "running", "A@node-2 A@node-1 A@node-3", None, "wait"),
    ("22-elastic-evicted-then-deleted", 40.0, "running", "A@node-2 D+ A@node-3", "preempted", "wait"),
    ("22-elastic-evicted-then-deleted", 48.0, "running", "A@node-2 A@node-1 A@node-3", None, "wait"),
)


def watch(name: str, t: float) -> Watched:
    watched = Watched()
    watched.feed(records.until(records.lines(name), t))
    return watched


def decided(seen: Sighting, missed: frozenset[int] = frozenset()) -> str:
    """Return the decision for a training job in a few words: of two nodes, or of two to three if three are seen."""
    now = datetime(2026, 11, 20, 12, tzinfo=UTC)
    nodes = "2:3" if len(seen.replicas) == 3 and seen.replicas[0].liveness is Liveness.ALIVE else "2"
    spec = a_spec(topology={"nodes": nodes})
    attempt = an_attempt(AttemptState.RUNNING, nodes=nodes, started_at=now, created_at=now)
    training = Training(formed_at=now, progress_at=now, step=9)
    observation = Observation(sighting=seen, training=training, exits={}, heard_since=now, missed=missed)
    situation = Situation(
        now=now,
        job=a_job(spec=spec),
        attempt=attempt,
        live=WatchedAttempt(attempt, observation),
        admission=None,
        stop_timeout_s=15,
    )
    action = decide(situation).action
    if isinstance(action, Stop):
        kind = "" if action.failure is None else action.failure.kind.value
        return f"{'force' if action.force else 'stop'} {kind}".strip()
    if isinstance(action, EndAttempt):
        return f"end {action.state} {'' if action.failure is None else action.failure.kind.value}".strip()
    return "wait"


@pytest.mark.parametrize("row", EXPECTED, ids=lambda row: f"{row[0]} at {row[1]:g} s")
def test_a_recorded_moment_has_the_expected_sighting_and_decision(row: Row) -> None:
    name, t, presence, replicas, cause, decision = row
    seen = look(watch(name, t), name, t)
    assert shorten(seen) == (presence, replicas, cause)
    assert decided(seen) == decision


@pytest.mark.parametrize(
    ("name", "t", "missed", "decision"),
    [
        ("09-powercut-policy-failed-taint", 16.0, {1}, "wait"),  # the node is still ready
        ("09-powercut-policy-failed-taint", 18.0, {1}, "stop node"),
        ("09-powercut-policy-failed-taint", 18.0, {0}, "wait"),
        ("10c-powercut-per-index0", 22.0, {0}, "stop node"),
        ("11-netcut-20s-tolerated", 20.0, {0}, "stop node"),
        ("11-netcut-20s-tolerated", 34.0, {0}, "wait"),
        ("20-powercut-default-times", 50.0, {1}, "wait"),
        ("20-powercut-default-times", 57.0, {1}, "stop node"),  # half a second after Kubernetes marks the node
    ],
)
def test_a_silent_node_that_its_peers_also_miss_is_lost_at_once(
    name: str, t: float, missed: set[int], decision: str
) -> None:
    assert decided(look(watch(name, t), name, t), frozenset(missed)) == decision


def test_the_evidence_of_a_replaced_pod_says_what_ended_the_one_before() -> None:
    found = {
        (name, t): look(watch(name, t), name, t).replicas[1]
        for name, t in (("21-elastic-deleted", 9.0), ("21-elastic-deleted", 14.66))
    }
    assert [one.returns for one in found.values()] == [True, True]
    assert [one.evidence for one in found.values()] == [
        "pod train-1-vqdgr on node-3 was deleted; Kubernetes starts another one",
        "pod train-1-vqdgr on node-3 was deleted; its replacement: pod train-1-nrf25 has no node yet",
    ]
    evicted = look(watch("22-elastic-evicted-then-deleted", 9.0), "22-elastic-evicted-then-deleted", 9.0).replicas[1]
    assert evicted.evidence == "pod train-1-xvmfr on node-1 was evicted; Kubernetes starts another one"


@pytest.mark.parametrize(
    ("name", "losses"),
    [
        (
            "21-elastic-deleted",
            [(1, 1, "preempted", "pod train-1-vqdgr on node-3 was deleted", "does not record who deletes objects")],
        ),
        (
            "22-elastic-evicted-then-deleted",
            [
                (1, 1, "preempted", "pod train-1-xvmfr on node-1 was evicted", "EvictionByEvictionAPI: Eviction API"),
                (1, 2, "preempted", "pod train-1-h5pzl on node-1 was deleted", "does not record who deletes objects"),
            ],
        ),
    ],
)
def test_each_replaced_pod_is_recorded_as_lost_once_with_the_clusters_words_and_no_node(
    name: str, losses: list[tuple[int, int, str, str, str]]
) -> None:
    """At every moment of the stream. An agent reports as soon as its pod runs."""
    watched, reported, found = Watched(), {0: 1, 1: 1, 2: 1}, list[LostReplica]()
    for line in records.lines(name):
        watched.feed([line])
        seen = look(watched, name, line.t)
        if seen.presence is not Presence.RUNNING:
            continue
        lost = frozenset((one.replica, one.incarnation) for one in found)
        members = Members(reported=reported, lost=lost)
        found += find_lost_replicas(watch_attempt(seen, members))
        ended = {(one.replica, one.incarnation) for one in found}
        reported |= {
            one.replica: reported[one.replica] + 1
            for one in seen.replicas
            if one.liveness is Liveness.ALIVE and (one.replica, reported[one.replica]) in ended
        }
    assert [(one.replica, one.incarnation, one.failure.kind.value, one.words) for one in found] == [
        loss[:4] for loss in losses
    ]
    assert all(loss[4] in one.failure.message for one, loss in zip(found, losses, strict=True))
    assert not any(one.node for one in found), "the nodes are fine"


@pytest.mark.parametrize(
    "name", ["09-powercut-policy-failed-taint", "10c-powercut-per-index0", "20-powercut-default-times"]
)
def test_a_replica_on_a_node_without_power_is_lost_with_its_node(name: str) -> None:
    t = next(row[1] for row in EXPECTED if row[0] == name and "U@" in row[3])
    (silent,) = (one for one in look(watch(name, t), name, t).replicas if one.node_unreachable)
    missed, members = frozenset({silent.replica}), Members(reported={0: 1, 1: 1})
    assert not find_lost_replicas(watch_attempt(look(watch(name, t), name, t), members)), "it may still run"
    (lost,) = find_lost_replicas(watch_attempt(look(watch(name, t), name, t), members, missed))
    assert (lost.node, lost.failure.kind.value) == (silent.node, "node")


def watch_attempt(seen: Sighting, members: Members, missed: frozenset[int] = frozenset()) -> WatchedAttempt:
    now = datetime(2026, 11, 20, 12, tzinfo=UTC)
    training = Training(formed_at=now, progress_at=now, step=9)
    observed = Observation(sighting=seen, training=training, exits={}, heard_since=now, missed=missed, members=members)
    return WatchedAttempt(an_attempt(AttemptState.RUNNING, nodes="1:3"), observed)


def test_every_replacement_has_a_greater_count_of_earlier_pods() -> None:
    """The incarnation of its agent follows from it, where no folder is shared."""
    watched = watch("22-elastic-evicted-then-deleted", 60.0)
    pods = [pod for pod in watched.view().pods if pod.index == 1]
    by_age = sorted(pods, key=lambda pod: pod.created_at or 0.0)
    assert [(pod.failures, pod.disruptions) for pod in by_age] == [(0, 0), (0, 1), (1, 1)]


def test_every_recorded_stream_has_expected_moments() -> None:
    assert {row[0] for row in EXPECTED} == set(records.STREAMS)


def test_exit_records_of_all_agents_are_seen() -> None:
    traces = records.Traces(replicas=2, submitted=True, began=True, recorded=frozenset({0, 1}))
    seen = look(watch("01-success", 9.0), "01-success", 9.0, traces=traces)
    assert all("left its record" in one.evidence for one in seen.replicas)


def test_an_exit_record_is_waited_for_until_settle_s_is_over() -> None:
    soon = look(watch("01-success", 6.0), "01-success", 6.0, settle_s=30)
    late = look(watch("01-success", 9.0), "01-success", 60.0, settle_s=30)
    assert (shorten(soon)[:2], shorten(late)[:2]) == (("unknown", "U U"), ("gone", "D D"))


def test_an_attempt_that_we_deleted_has_no_cause() -> None:
    for name, t in (
        ("12-delete-background", 2.0),
        ("12-delete-background", 8.0),
        ("18c-plain-delete-policy-failed", 5),
    ):
        assert look(watch(name, t), name, t, ours=True).cause is None


@pytest.mark.parametrize(
    ("name", "t", "words"),
    [
        ("08-drain", 4.0, ("EvictionByEvictionAPI: Eviction API: evicting", "does not record who requested")),
        (
            "16-preemption-exit83",
            3.0,
            (
                "PreemptionByScheduler: default-scheduler: preempting to accommodate",
                "Preempted by pod 2e1419f9-dd91-49a6-bba7-db52e5d820af on node node-1",
            ),
        ),
        (
            "10c-powercut-per-index0",  # if the kubelet returns now, it ends the pod before its node is ready
            22.0,
            ("its node did not answer", "DeletionByTaintManager: Taint manager: deleting due to NoExecute taint"),
        ),
        (
            "18-force-delete-policy-failed",
            3.0,
            ("one of its pods was deleted in the cluster", "not record who deletes"),
        ),
        (
            "18c-plain-delete-policy-failed",
            4.0,
            ("one of its pods was deleted in the cluster", "not record who deletes"),
        ),
        ("12-delete-background", 2.0, ("its Job was deleted in the cluster", "not record who deletes")),
    ],
)
def test_the_cause_of_a_deletion_is_known_while_the_pod_runs(name: str, t: float, words: tuple[str, ...]) -> None:
    """The exit records arrive first. Then the rest of the attempt is deleted, and its cause with it."""
    seen = look(watch(name, t), name, t)
    assert all(one.liveness.value != "dead" for one in seen.replicas)
    assert seen.cause is not None
    assert all(each in seen.cause.message for each in words), seen.cause.message
    assert "by hand" not in seen.cause.message


@pytest.mark.parametrize(("name", "t"), [("08-drain", 4.0), ("08-drain", 7.0), ("16-preemption-exit83", 7.0)])
def test_our_deletion_keeps_the_cluster_s_earlier_cause(name: str, t: float) -> None:
    theirs, ours = (look(watch(name, t), name, t, ours=each).cause for each in (False, True))
    assert theirs is not None
    assert ours == theirs


def test_sightings_are_the_same_without_the_right_to_see_nodes() -> None:
    for name, t, presence, replicas, cause, _ in EXPECTED:
        seen = look(watch(name, t), name, t, sees_nodes=False)
        if (name, t) not in _DIFFERENT:
            assert shorten(seen) == (presence, replicas, cause), (name, t)


# The node is ready again a moment before or after its pods are.
_DIFFERENT = {("11-netcut-20s-tolerated", 34.0), ("20-powercut-default-times", 159.5)}


def test_messages_of_scheduler_and_registry_are_in_the_evidence() -> None:
    assert (
        "2 Insufficient nvidia.com/gpu"
        in look(watch("07-unschedulable-gpu", 5.0), "07-unschedulable-gpu", 5.0).evidence
    )
    image = look(watch("06-image-registry-unreachable", 20.0), "06-image-registry-unreachable", 20.0).evidence
    assert "registry.example.invalid" in image
    missing = look(watch("06b-image-not-found", 5.0), "06b-image-not-found", 5.0).cause
    assert missing is not None
    assert "nosuchtag" in missing.message
    evicted = look(watch("08-drain", 7.0), "08-drain", 7.0).cause
    assert evicted is not None
    assert "drain" in evicted.message
    preempted = look(watch("16-preemption-exit83", 7.0), "16-preemption-exit83", 7.0).cause
    assert preempted is not None
    assert "higher priority" in preempted.message


@pytest.mark.parametrize("name", records.STREAMS)
def test_repeated_lines_change_nothing(name: str) -> None:
    once, twice = Watched(), Watched()
    last: list[Line] = []
    for line in records.lines(name):
        once.feed([line])
        twice.feed([*last[-3:], line, line])  # as after a reconnect from a slightly older version
        last.append(line)
        assert look(twice, name, line.t) == look(once, name, line.t)


@pytest.mark.parametrize("name", records.STREAMS)
def test_a_new_list_at_any_line_changes_nothing(name: str) -> None:
    """The list has the objects of that line. Missing objects count as removed, with their last state."""
    whole, cut, there = Watched(), Watched(), _Server()
    for line in records.lines(name):
        whole.feed([line])
        cut.feed([line])
        there.feed(line)
        there.list_into(cut)
        assert look(cut, name, line.t) == look(whole, name, line.t)


@pytest.mark.parametrize("name", records.STREAMS)
def test_a_service_that_starts_at_any_line_mistakes_no_dead_agent_for_a_living_one_or_vice_versa(
    name: str,
) -> None:
    whole, there = Watched(), _Server()
    for line in records.lines(name):
        whole.feed([line])
        there.feed(line)
        fresh = Watched()
        there.list_into(fresh)
        before, after = look(whole, name, line.t), look(fresh, name, line.t)
        known = {one.replica: one.liveness.value for one in before.replicas}
        for one in after.replicas:
            assert {known.get(one.replica, one.liveness.value), one.liveness.value} != {"alive", "dead"}, line.t


class _Server:
    """The objects of the server, as it would list them."""

    def __init__(self) -> None:
        self._documents: dict[str, dict[str, dict[str, Any]]] = {"jobs": {}, "pods": {}, "nodes": {}, "events": {}}

    def feed(self, line: Line) -> None:
        document = line.event["object"]
        uid = document.get("metadata", {}).get("uid")
        if line.event["type"] in ("ADDED", "MODIFIED"):
            self._documents[line.resource][uid] = document
        elif line.event["type"] == "DELETED":
            self._documents[line.resource].pop(uid, None)

    def list_into(self, watched: Watched) -> None:
        for name, mirror, selected in self._mirrors(watched):
            documents = self._documents[name].values()
            mirror.replace([each for each in documents if selected.items() <= each.items()], "1")

    def _mirrors(self, watched: Watched) -> Iterator[tuple[str, Mirror[Any], dict[str, str]]]:
        yield from (
            ("jobs", watched.jobs, {}),
            ("pods", watched.pods, {}),
            ("nodes", watched.nodes, {}),
            ("events", watched.warnings, {"type": "Warning"}),
            ("events", watched.preemptions, {"reason": "Preempted"}),
        )
