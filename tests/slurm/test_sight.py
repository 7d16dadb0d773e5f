"""Sightings from Slurm's state and the files of an attempt. Silence proves nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.backends.slurm.listing import SlurmJob
from orchestrator.backends.slurm.sight import (
    SightContext,
    Submission,
    Traces,
    choose,
    matches_submission,
    sight,
    sight_forgotten,
)
from orchestrator.backends.slurm.states import STATES, Standing, explain_wait
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.observation.observation import CAN_NEVER_START, Presence, Sighting
from trainer.contract.node import Departure

KEY = AttemptKey("train-abc", 2)
NOW = 1_000_000.0
TERMS = SightContext(now=NOW, settle_s=30, notice_s=60)


def a_job(state: str = "RUNNING", **fields: Any) -> SlurmJob:
    given = {"id": 12, "name": str(KEY), "nodes": ("n1", "n2"), "batch_host": "n1", "ended_at": NOW - 3600, **fields}
    return SlurmJob(state=state, **given)


def traces(**fields: Any) -> Traces:
    given = {"replicas": 2, "claim": "slurm-lab-12", "allocations": {12: ("n1", "n2")}, **fields}
    return Traces(**given)


def gone(replica: int, code: int, *, recorded: bool = False) -> dict[int, Departure]:
    one = Departure(
        replica=replica, node=f"n{replica + 1}", claim="slurm-lab-12", exit_code=code, recorded=recorded, at=""
    )
    return {replica: one}


def shorten(seen: Sighting) -> tuple[str, list[tuple[str, str | None, bool]], str | None]:
    replicas = [(one.liveness.value, one.node, one.leftovers) for one in seen.replicas]
    return seen.presence.value, replicas, None if seen.cause is None else seen.cause.kind.value


def test_a_running_job_has_its_replicas_on_its_nodes() -> None:
    seen = sight(KEY, a_job(), traces(), TERMS)
    assert shorten(seen) == ("running", [("alive", "n1", False), ("alive", "n2", False)], None)


def test_a_killed_agent_is_dead_and_its_node_is_not_blamed() -> None:
    seen = sight(KEY, a_job(), traces(departures=gone(1, -9)), TERMS)
    assert shorten(seen) == ("running", [("alive", "n1", False), ("dead", None, True)], None)
    assert "SIGKILL" in seen.replicas[1].evidence


def test_an_agent_whose_exit_record_has_not_arrived_is_unknown() -> None:
    late = sight(KEY, a_job(), traces(departures=gone(1, 1, recorded=True)), TERMS)
    there = sight(KEY, a_job(), traces(departures=gone(1, 1, recorded=True), recorded=frozenset({1})), TERMS)
    assert [seen.replicas[1].liveness.value for seen in (late, there)] == ["unknown", "dead"]


def test_a_node_that_an_elastic_job_lost_is_dead_and_blamed() -> None:
    seen = sight(KEY, a_job(nodes=("n1",)), traces(), TERMS)
    assert shorten(seen) == ("running", [("alive", "n1", False), ("dead", "n2", False)], None)


def without_script(departures: dict[int, Departure], **fields: Any) -> Sighting:
    """Sight a job of three nodes that lost the first one, where its script ran."""
    context = replace(TERMS, step_over=fields.pop("step_over", False))
    seen = traces(replicas=3, allocations={12: ("n1", "n2", "n3")}, departures=departures, **fields)
    return sight(KEY, a_job(nodes=("n2", "n3")), seen, context)


def test_agents_continue_without_the_node_of_the_script() -> None:
    seen = without_script({})
    assert shorten(seen) == ("running", [("dead", "n1", False), ("alive", "n2", False), ("alive", "n3", False)], None)
    assert seen.evidence == "Slurm job 12 is RUNNING without n1, where its script ran"
    assert seen.replicas[0].evidence == "replica 0 was on n1, which Slurm job 12 lost"


def test_one_of_the_other_agents_may_end_before_the_last() -> None:
    seen = without_script(gone(1, 0, recorded=True), recorded=frozenset({1}))
    assert shorten(seen) == ("running", [("dead", "n1", False), ("dead", None, False), ("alive", "n3", False)], None)


def test_a_job_without_a_script_is_gone_after_its_last_agent_and_its_allocation_is_left() -> None:
    for code, recorded in ((0, True), (1, True), (-9, False)):
        ends = {**gone(1, code, recorded=recorded), **gone(2, code, recorded=recorded)}
        seen = without_script(ends, recorded=frozenset({1, 2}))
        assert shorten(seen) == ("gone", [("dead", "n1", True), ("dead", None, True), ("dead", None, True)], None)
        assert seen.evidence == "Slurm job 12 lost n1, where its script ran, and its other agents have ended"


def test_a_job_without_a_script_waits_for_an_exit_record_that_is_not_visible_yet() -> None:
    ends = {**gone(1, 0, recorded=True), **gone(2, 0, recorded=True)}
    seen = without_script(ends, recorded=frozenset({1}))
    assert shorten(seen) == ("running", [("dead", "n1", False), ("dead", None, False), ("unknown", "n3", False)], None)


def test_a_job_without_a_script_whose_step_has_ended_is_gone_whatever_its_agents_left() -> None:
    seen = without_script(gone(1, -9), step_over=True)
    assert shorten(seen) == ("gone", [("dead", "n1", True), ("dead", None, True), ("dead", None, True)], None)
    assert seen.replicas[2].evidence == "replica 2's agent left no record, and Slurm job 12 runs no step"


def test_a_job_without_a_script_that_lost_its_other_nodes_too_ends_with_its_last_agent() -> None:
    seen = sight(
        KEY,
        a_job(nodes=("n3",)),
        traces(allocations={12: ("n1", "n2", "n3")}, departures=gone(2, 1)),
        TERMS,
    )
    assert shorten(seen) == ("gone", [("dead", "n1", True), ("dead", "n2", True), ("dead", None, True)], None)


def test_a_job_without_a_script_that_ends_near_its_time_limit_has_a_timeout() -> None:
    """The service cancels it, so Slurm never calls it TIMEOUT."""
    limited = {"nodes": ("n2",), "ended_at": None, "time_limit_s": 3600.0}
    ended = traces(departures=gone(1, 143, recorded=True), recorded=frozenset({1}))
    near = sight(KEY, a_job(started_at=NOW - 3550, **limited), ended, TERMS)
    far = sight(KEY, a_job(started_at=NOW - 1000, **limited), ended, TERMS)
    assert (shorten(near)[2], shorten(far)[2]) == ("timeout", None)


def test_fewer_nodes_than_requested_are_not_a_loss() -> None:
    seen = sight(KEY, a_job(), traces(replicas=4), TERMS)
    assert (seen.nodes, len(seen.replicas)) == (2, 2)


@pytest.mark.parametrize("state", ["SUSPENDED", "STOPPED", "A_STATE_OF_2031"])
def test_a_suspended_or_unknown_state_is_unknown(state: str) -> None:
    seen = sight(KEY, a_job(state), traces(), TERMS)
    assert (seen.presence, seen.evidence) == (Presence.UNKNOWN, f"Slurm job 12 is {state}")
    assert (seen.pause_reason is not None) == (state in ("SUSPENDED", "STOPPED"))


def test_a_requeued_job_is_preempted() -> None:
    for state in ("PENDING", "RUNNING"):
        seen = sight(KEY, a_job(state, restarts=1), traces(), TERMS)
        assert shorten(seen) == ("gone", [("dead", None, True), ("dead", None, True)], "preempted")


def test_a_requeued_job_whose_second_run_we_ended_keeps_its_cause() -> None:
    context = SightContext(now=NOW, settle_s=30, notice_s=60, ours=frozenset({12}))
    seen = sight(KEY, a_job("CANCELLED", restarts=1), traces(recorded=frozenset({0, 1})), context)
    assert seen.cause is not None
    assert seen.cause.message == "somebody else requeued it in Slurm (job 12)"


def test_missing_exit_records_are_waited_for() -> None:
    fresh = sight(KEY, a_job("FAILED", ended_at=NOW - 5), traces(recorded=frozenset({0})), TERMS)
    old = sight(KEY, a_job("FAILED"), traces(recorded=frozenset({0})), TERMS)
    assert shorten(fresh) == ("unknown", [("dead", None, False), ("unknown", None, False)], None)
    assert shorten(old) == ("gone", [("dead", None, False), ("dead", None, False)], None)


def test_only_a_broken_node_is_blamed_for_a_lost_job() -> None:
    context = SightContext(now=NOW, settle_s=30, notice_s=60, broken={"n2": "down: Not responding"})
    seen = sight(KEY, a_job("NODE_FAIL"), traces(), context)
    assert shorten(seen) == ("gone", [("dead", None, False), ("dead", "n2", False)], "node")


@pytest.mark.parametrize("state", ["FAILED", "CANCELLED"])
def test_a_node_that_slurm_drained_before_the_script_began_is_blamed(state: str) -> None:
    """A job whose prolog failed is CANCELLED in Slurm 22.05."""
    context = SightContext(now=NOW, settle_s=30, notice_s=60, broken={"n1": "drained: Prolog error"})
    seen = sight(KEY, a_job(state, exit_code=1), traces(claim=None, allocations={}), context)
    assert shorten(seen) == ("gone", [("dead", "n1", False), ("dead", None, False)], "infrastructure")
    assert seen.cause is not None
    assert seen.cause.message.endswith(f"ended {state} before its script began; Slurm calls n1 drained: Prolog error")


def test_a_down_node_is_the_cause_also_of_a_job_that_we_cancelled() -> None:
    context = SightContext(
        now=NOW, settle_s=30, notice_s=60, broken={"n2": "down: Not responding"}, ours=frozenset({12})
    )
    seen = sight(KEY, a_job("CANCELLED"), traces(recorded=frozenset({0})), context)
    assert shorten(seen) == ("gone", [("dead", None, False), ("dead", "n2", False)], "node")


def test_a_down_node_is_unreachable_although_its_agent_left_a_record() -> None:
    """An agent that was cut off leaves a record. Whether it names more than a lost peer is decided elsewhere."""
    context = SightContext(
        now=NOW, settle_s=30, notice_s=60, broken={"n2": "down: Not responding"}, ours=frozenset({12})
    )
    seen = sight(KEY, a_job("CANCELLED"), traces(recorded=frozenset({0, 1})), context)
    assert shorten(seen) == ("gone", [("dead", None, False), ("dead", "n2", False)], None)
    assert [one.node_unreachable for one in seen.replicas] == [False, True]
    drained = sight(
        KEY, a_job("CANCELLED"), traces(recorded=frozenset({0, 1})), replace(context, broken={"n2": "drained: x"})
    )
    assert not any(one.node_unreachable for one in drained.replicas)


def test_a_job_that_we_cancelled_has_no_cause() -> None:
    context = SightContext(now=NOW, settle_s=30, notice_s=60, ours=frozenset({12}))
    assert sight(KEY, a_job("CANCELLED"), traces(), TERMS).cause is not None
    assert sight(KEY, a_job("CANCELLED"), traces(), context).cause is None


def test_an_end_near_the_time_limit_is_a_timeout() -> None:
    limited = {"started_at": NOW - 7200, "time_limit_s": 3600.0, "exit_code": 143}
    near = sight(KEY, a_job("FAILED", ended_at=NOW - 7200 + 3550, **limited), traces(), TERMS)
    far = sight(KEY, a_job("FAILED", ended_at=NOW - 7200 + 1000, **limited), traces(), TERMS)
    assert (shorten(near)[2], shorten(far)[2]) == ("timeout", None)


@pytest.mark.parametrize(
    ("fields", "kind", "words"),
    [
        ({"exit_code": 78}, "launch", "no Python here"),
        ({"exit_signal": 53}, "launch", "no Python here"),
        ({"exit_code": 75}, "preempted", "requeued"),
        ({"exit_code": 1}, "infrastructure", "no Python here"),
        ({"reason": "BadConstraints", "exit_signal": 1}, "launch", "BadConstraints"),
    ],
)
def test_a_script_that_ended_before_any_agent_is_explained(fields: dict[str, Any], kind: str, words: str) -> None:
    seen = sight(KEY, a_job("FAILED", **fields), traces(claim=None, last_words="no Python here"), TERMS)
    assert seen.cause is not None
    assert (seen.cause.kind.value, words in seen.cause.message) == (kind, True)


def test_a_step_that_was_killed_for_its_memory_is_out_of_memory() -> None:
    words = "slurmstepd-n2: error: StepId=12.0 exceeded memory limit (623636480 > 314572800), being killed"
    seen = sight(KEY, a_job("FAILED", exit_code=137), traces(memory_words=words), TERMS)
    assert seen.cause is not None
    assert seen.cause.kind.value == "host-oom"
    assert seen.cause.message == f"it used more memory than Slurm allocated to it (Slurm job 12: {words})"


def test_slurm_may_cancel_a_job_for_its_memory() -> None:
    words = "[2026-11-30T13:53:34.039] error: Exceeded job memory limit"
    seen = sight(KEY, a_job("CANCELLED"), traces(memory_words=words), replace(TERMS, canceller="by root"))
    assert seen.cause is not None
    assert (seen.cause.kind.value, words in seen.cause.message) == ("host-oom", True)


def test_a_process_that_the_kernel_killed_for_its_memory_does_not_explain_a_cancellation() -> None:
    words = "slurmstepd-n2: error: Detected 1 oom-kill event(s) in StepId=12.0"
    assert shorten(sight(KEY, a_job("CANCELLED"), traces(memory_words=words), TERMS))[2] == "preempted"


def test_of_two_submissions_the_one_with_the_claim_counts() -> None:
    mine, other = a_job("COMPLETED"), a_job("PENDING", id=11)
    assert choose([other, mine], traces()) is mine
    assert choose([a_job("FAILED", id=10), other], traces(claim=None)) is other


def test_of_two_ended_submissions_the_accepted_one_counts() -> None:
    refused, taken = a_job("FAILED", id=10), a_job("CANCELLED", id=11)
    assert choose([refused, taken], traces(claim=None, submitted=frozenset({11}))) is taken


def test_a_forgotten_job_is_gone_only_if_its_agents_are_silent() -> None:
    assert sight_forgotten(KEY, traces(), quiet=False).presence is Presence.UNKNOWN
    assert sight_forgotten(KEY, traces(), quiet=True).presence is Presence.GONE
    assert sight_forgotten(KEY, traces(claim=None), quiet=True).presence is Presence.ABSENT


MADE = Submission(name=str(KEY), user=4242, noted_at=NOW)


@pytest.mark.parametrize(
    ("fields", "ours"),
    [
        ({}, True),
        ({"user": None, "submitted_at": None}, True),
        ({"name": "other"}, False),
        ({"name": "train-abc-a1"}, False),
        ({"user": 0}, False),
        ({"submitted_at": NOW - 700}, False),
        ({"submitted_at": NOW - 300}, True),  # a clock that is behind
        ({"submitted_at": NOW + 86400, "restarts": 1}, True),  # requeued later
        ({"name": "allocation"}, True),
        ({"name": "allocation", "submitted_at": NOW + 86400}, False),
        ({"name": "allocation", "submitted_at": None}, False),
        ({"name": "allocation", "user": 0}, False),
    ],
    ids=str,
)
def test_a_job_with_our_id_is_ours_by_name_user_and_submit_time(fields: dict[str, Any], *, ours: bool) -> None:
    assert matches_submission(a_job(**{"user": 4242, "submitted_at": NOW - 1, **fields}), MADE) is ours


def test_without_a_recorded_submit_time_name_and_user_decide() -> None:
    made = Submission(name=str(KEY), user=4242, noted_at=None)
    job = a_job(user=4242, submitted_at=NOW - 86400)
    assert matches_submission(job, made)
    assert not matches_submission(a_job(name="allocation", user=4242, submitted_at=NOW), made)


def test_the_reason_of_a_wait_is_explained() -> None:
    limited = explain_wait(a_job("PENDING", reason="QOSMaxCpuPerUserLimit"))
    assert limited == "waits in Slurm's queue as job 12: QOSMaxCpuPerUserLimit (its QOS allows its user no more CPUs)"
    assert "scontrol release 12" in explain_wait(a_job("PENDING", reason="JobHeldUser"))


@pytest.mark.parametrize("reason", ["PartitionConfig", "PartitionNodeLimit", "PartitionTimeLimit", "BadConstraints"])
def test_a_job_that_can_never_start_is_recognized(reason: str) -> None:
    """The reasons of 22.05, 24.11 and 26.05."""
    sentence = explain_wait(a_job("PENDING", reason=reason))
    assert sentence.startswith(f"waits in Slurm's queue as job 12: {reason} ({CAN_NEVER_START}")
    assert CAN_NEVER_START not in explain_wait(a_job("PENDING", reason="Resources"))


def test_the_terminal_states_of_slurm() -> None:
    ends = {state for state, meaning in STATES.items() if meaning.standing is Standing.OVER}
    assert ends == {
        "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
        "PREEMPTED", "RECONFIG_FAIL", "REVOKED", "TIMEOUT",
    }  # fmt: skip


def test_only_a_job_that_may_have_run_waits_for_late_records() -> None:
    just_now = {"state": "CANCELLED", "ended_at": NOW - 1}
    waited = a_job(**just_now, nodes=(), batch_host=None)
    assert sight(KEY, waited, Traces(replicas=2), TERMS).presence is Presence.GONE
    for job, left in (
        (a_job(**just_now), Traces(replicas=2)),
        (waited, traces()),
        (waited, Traces(replicas=2, claim="slurm-lab-12")),
        (replace(waited, restarts=1), Traces(replicas=2)),
        (replace(waited, state="NODE_FAIL"), Traces(replicas=2)),
    ):
        assert sight(KEY, job, left, TERMS).presence is Presence.UNKNOWN, (job, left)
