"""The answer of `why`: the verdict, the first cause, and what helps."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from orchestrator.domain.accounting.chronicle import Chronicle, read_life
from orchestrator.domain.accounting.goodput import Ledger, add_up
from orchestrator.domain.accounting.life import Kept, lay_out
from orchestrator.domain.explanation.why import explain
from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.event import Event
from orchestrator.domain.job.job import WORKERS_RUNNING, JobState
from tests.builders import NOW, at, make_attempt, make_event, make_job, make_spec
from tests.unit.explained import ODD, why_of
from trainer.contract.failure import Failure, FailureKind, render_failure


def failed(generation: int, *, seconds: float, attempt: int = 1, rank: int = 1, **evidence: object) -> Event:
    usual: dict[str, object] = {"kind": "application", "message": "KeyError: 'x'", "rank": rank, "step": 30}
    return make_event(
        "worker.failed", at=at(seconds), attempt=attempt, generation=generation, evidence={**usual, **evidence}
    )


def started(generation: int, *, seconds: float, attempt: int = 1) -> Event:
    return make_event(
        "generation.started", at=at(seconds), attempt=attempt, generation=generation, evidence={"world_size": 2}
    )


def placed(generation: int, seconds: float, *hosts: str) -> list[Event]:
    """The start of a generation with two workers on each host."""
    size = {"world_size": 2 * len(hosts), "pids": {"0": 1, "1": 2}}
    return [
        make_event(
            "generation.started", at=at(seconds), attempt=1, generation=generation, evidence={**size, "host": host}
        )
        for host in hosts
    ]


def shrunk(generation: int, *, at_s: float, took_s: float = 0.0) -> Event:
    return make_event("group.shrunk", at=at(at_s), attempt=1, generation=generation, evidence={"seconds": took_s})


REQUESTED_KILL = [
    make_event(
        "chaos.requested", at=at(3), attempt=1, actor="alice", evidence={"fault": "kill", "number": 7, "attempt": 1}
    ),
    make_event("chaos.injected", at=at(4), attempt=1, generation=1, evidence={"fault": "kill", "number": 7}),
]


RUNNING = make_job(state=JobState.RUNNING, reason=WORKERS_RUNNING)
KILL = {"kind": "unknown", "message": "the worker was killed by SIGKILL", "signal": "SIGKILL"}
BUDGET = "the budget of 3 application failures is spent"


def test_a_running_job_names_the_failure_that_it_recovered_from() -> None:
    events = [failed(1, seconds=5, collateral_ranks=[0, 1]), started(2, seconds=6)]
    why = why_of(RUNNING, [make_attempt()], events)
    assert why.cause is not None
    assert (why.cause.over, why.cause.generation, why.cause.collateral_ranks) == (True, 1, (0,))
    assert why.verdict == (
        "Running on 1 node. Rank 1 failed at 12:00 UTC after step 30. KeyError: 'x'. "
        "The workers started again 1 s later."
    )
    assert why.next == "Nothing to do."


def test_a_killed_worker_was_killed_and_a_requested_kill_names_who_requested_it() -> None:
    events = [failed(1, seconds=5, **KILL), started(2, seconds=8)]
    suspected, on_purpose = (why_of(RUNNING, [make_attempt()], each) for each in (events, [*REQUESTED_KILL, *events]))
    assert suspected.verdict == (
        "Running on 1 node. Rank 1 was killed by SIGKILL at 12:00 UTC after step 30; "
        "the workers started again 3 s later."
    )
    assert "Rank 1 was killed on purpose by alice at 12:00 UTC" in on_purpose.verdict
    assert suspected.remedy is not None
    assert on_purpose.cause is not None
    assert on_purpose.cause.chaos is not None
    assert on_purpose.remedy is None, "its sender is known"
    assert why_of(RUNNING, [make_attempt()], events[:1]).verdict == (
        "Training has stopped. Rank 1 was killed by SIGKILL at 12:00 UTC after step 30."
    )


@pytest.mark.parametrize(
    ("evidence", "verdict"),
    [
        ({"kind": "hang", "message": "no step in 60 s"}, "The worker group hung at 12:00 UTC. No step in 60 s."),
        ({**KILL, "kind": "device-oom", "rank": 0}, "Rank 0 ran out of device memory at 12:00 UTC. The worker was"),
        ({"kind": "unknown", "message": "it is gone", "rank": 0}, "Rank 0 failed at 12:00 UTC. It is gone."),
        (
            {"kind": "node", "message": "its GPU is gone", "rank": 0},
            "Rank 0 lost a node at 12:00 UTC. Its GPU is gone.",
        ),
    ],
)
def test_a_failure_in_place_is_told_of_its_rank_or_of_the_group(evidence: dict[str, object], verdict: str) -> None:
    event = failed(1, seconds=5, **{"rank": None, "step": None, **evidence})
    assert verdict in why_of(RUNNING, [make_attempt()], [event]).verdict


def test_a_running_job_that_misses_reports_says_so() -> None:
    job = replace(RUNNING, reason="no reports from its agents")
    assert why_of(job, [make_attempt()], [started(1, seconds=1)]).verdict == "No reports from its agents."


MARKED = make_event("node.marked", at=at(9), attempt=1, evidence={"node": "n2", "kind": "node", "cluster": "c"})


def shrunken(*events: Event, generations: list[Event] | None = None) -> Chronicle:
    """A group on n1 and n2 that went on with n1 only, 6 s after it had noticed the loss."""
    before, after = (placed(1, 0, "n1", "n2"), placed(2, 12, "n1")) if generations is None else (generations, [])
    return Chronicle(
        job=replace(RUNNING, spec=make_spec(topology={"nodes": "1:2", "workers_per_node": 2})),
        attempts=[make_attempt(nodes="1:2", asked="1:2")],
        events=[*before, *events, shrunk(2, at_s=12, took_s=6.0), *after],
        kept={(1, 2): kept(13, 20)},
        heard_at={},
    )


def verdict_of(chronicle: Chronicle, now: datetime = NOW) -> str:
    return explain(chronicle, read_life(chronicle), Ledger(), now).verdict


def test_a_group_that_lost_a_node_runs_on_the_others_and_training_continued() -> None:
    whole = shrunken(MARKED)
    assert verdict_of(whole) == "Running on 1 of 2 nodes. Node n2 was lost at 12:00 UTC; training continued 7 s later."
    assert "Node n2 was lost on May 4 at 12:00 UTC" in verdict_of(whole, NOW + timedelta(days=2))
    ahead = replace(whole, kept={(1, 2): kept(2, 20)})
    assert verdict_of(ahead).endswith("was lost at 12:00 UTC; training continued."), "the clocks of the nodes differ"
    early = replace(whole, events=whole.events[:-1])
    assert "An agent was lost" in verdict_of(early), "no node has reported yet"


def test_an_agent_that_is_gone_is_no_lost_node() -> None:
    """It was killed, or its pod was deleted. Only what the cluster says of the node speaks against the node."""
    assert "The agent on n2 was lost at 12:00 UTC; training continued 7 s later." in verdict_of(shrunken())
    earlier = replace(MARKED, at=at(-5))
    assert "The agent on n2 was lost" in verdict_of(shrunken(earlier)), "the node was lost before this generation"
    of_replicas = shrunken(generations=[*joined(0, 1), *joined(1, 1), *in_group(1, 0, {0: "n1", 1: "n2"})])
    later = replace(of_replicas, events=[*of_replicas.events, *in_group(2, 12, {0: "n1"})])
    assert "Replica 1 on n2 was lost at 12:00 UTC; training continued 7 s later." in verdict_of(later)
    marked = replace(later, events=[*later.events, MARKED])
    assert "Node n2 was lost at 12:00 UTC" in verdict_of(marked)


def joined(replica: int, incarnation: int, at_s: float = -1.0) -> list[Event]:
    evidence = {"replica": replica, "incarnation": incarnation, "host": f"n{replica + 1}"}
    return [make_event("agent.started", at=at(at_s), attempt=1, generation=0, evidence=evidence)]


def in_group(generation: int, seconds: float, hosts: dict[int, str]) -> list[Event]:
    """The start of a generation with two workers of each replica."""
    size: dict[str, object] = {"world_size": 2 * len(hosts), "pids": {"0": 1, "1": 2}}
    return [
        make_event(
            "generation.started",
            at=at(seconds),
            attempt=1,
            generation=generation,
            evidence={**size, "host": host, "replica": replica},
        )
        for replica, host in hosts.items()
    ]


def noted(replica: int, incarnation: int, failure: Failure, node: str | None = None) -> Event:
    evidence = {"replica": replica, "incarnation": incarnation, "node": node, "failure": render_failure(failure)}
    return make_event("replica.lost", at=at(8), attempt=1, evidence=evidence)


DELETED = Failure(kind=FailureKind.PREEMPTED, message="pod train-1-x on n2 was deleted in the cluster, but not by us")
SILENT = Failure(kind=FailureKind.NODE, message="node n2 does not answer")
ON_BOTH = {0: "n1", 1: "n2"}
TRIO = [*joined(0, 1), *joined(1, 1), *joined(2, 1), *in_group(1, 0, {0: "n1", 1: "n2", 2: "n3"})]


def test_a_deleted_pod_is_told_in_the_words_of_its_cluster() -> None:
    chronicle = shrunken(noted(1, 1, DELETED), generations=[*joined(0, 1), *joined(1, 1), *in_group(1, 0, ON_BOTH)])
    whole = replace(chronicle, events=[*chronicle.events, *in_group(2, 12, {0: "n1"})])
    why = explain(whole, read_life(whole), Ledger(), NOW)
    assert why.verdict == (
        "Running on 1 of 2 nodes. Replica 1 was lost at 12:00 UTC. Pod train-1-x on n2 was deleted in the cluster, "
        "but not by us. Training continued 7 s later."
    )
    assert why.cause is not None
    assert why.cause.failure == DELETED
    assert why.remedy is not None
    assert why.remedy.name == "deleted in Kubernetes"
    assert [one.cause for one in read_life(whole).attempts[0].generations] == ["preempted", None]
    lost = replace(whole, events=[*whole.events, noted(1, 1, SILENT, node="n2")])
    assert "Node n2 was lost at 12:00 UTC. Node n2 does not answer. Training" in verdict_of(lost)


@pytest.mark.parametrize(
    ("notes", "words"),
    [
        ([], "Replicas 1, 2 were lost at 12:00 UTC; training continued 7 s later."),
        ([noted(1, 1, SILENT, node="n2")], "Replicas 1, 2 were lost at 12:00 UTC. Node n2 does not answer."),
        ([noted(1, 1, DELETED), noted(2, 1, DELETED)], "Replicas 1, 2 were lost at 12:00 UTC. Pod train-1-x"),
        (
            [noted(1, 1, SILENT, node="n2"), noted(2, 1, SILENT, node="n3")],
            "Nodes n2, n3 were lost at 12:00 UTC. Node n2 does not answer.",
        ),
    ],
    ids=["unknown", "one node", "deleted", "both nodes"],
)
def test_several_replicas_are_lost_nodes_only_if_each_node_is_lost(notes: list[Event], words: str) -> None:
    chronicle = shrunken(*notes, generations=TRIO)
    assert words in verdict_of(replace(chronicle, events=[*chronicle.events, *in_group(2, 12, {0: "n1"})]))


def test_a_replica_that_was_replaced_before_the_group_formed_again_is_the_cause_behind_lost_peers() -> None:
    """The group has its full size again. Without the two incarnations it would look like a failed worker."""
    victim = failed(1, seconds=5, rank=0, lost_a_peer=True, message="connection closed by peer")
    again = make_event("restart.in_place", at=at(30), attempt=1, generation=2, evidence={"seconds": 25.0})
    first = [*joined(0, 1), *joined(1, 1), *in_group(1, 0, ON_BOTH), victim]
    replaced = [*first, noted(1, 1, DELETED), *joined(1, 2, 28), again, *in_group(2, 30, ON_BOTH)]
    why = why_of(RUNNING, [make_attempt()], replaced)
    assert "Replica 1 was lost at 12:00 UTC. Pod train-1-x" in why.verdict
    same = why_of(RUNNING, [make_attempt()], [*first, again, *in_group(2, 30, ON_BOTH)])
    assert "Rank 0 failed" in same.verdict


def test_a_replica_that_rejoined_the_group_is_one_of_the_actions() -> None:
    back = make_event("replica.rejoined", at=at(33), attempt=1, sentence="replica 1 rejoined the group after 21.0 s")
    chronicle = shrunken(generations=TRIO)
    whole = replace(chronicle, events=[*chronicle.events, *in_group(2, 12, {0: "n1", 2: "n3"}), back])
    assert [each.sentence for each in explain(whole, read_life(whole), Ledger(), NOW).deeds][-1] == back.sentence


@pytest.mark.parametrize("notes", [[], [noted(1, 1, DELETED)]])
def test_a_fault_that_ends_an_agent_is_told_of_the_replica_and_not_of_its_node(notes: list[Event]) -> None:
    evidence: dict[str, object] = {"fault": "node-loss", "number": 7, "attempt": 1}
    requested = make_event("chaos.requested", at=at(3), attempt=1, actor="alice", evidence=evidence)
    injected = make_event("chaos.injected", at=at(4), attempt=1, generation=1, evidence=evidence)
    first = [*joined(0, 1), *joined(1, 1), *in_group(1, 0, ON_BOTH)]
    chronicle = shrunken(requested, injected, *notes, generations=first)
    whole = replace(chronicle, events=[*chronicle.events, *in_group(2, 12, {0: "n1"})])
    assert re.search(r"Replica 1( on n2)? was killed on purpose by alice at 12:00 UTC", verdict_of(whole))


@pytest.mark.parametrize(
    ("failure", "nodes", "verdict"),
    [
        (
            Failure(kind=FailureKind.APPLICATION, message="KeyError: 'labels'", rank=0, step=7),
            (),
            "Rank 0 failed at 12:00 UTC after step 7. KeyError: 'labels'.",
        ),
        (
            Failure(kind=FailureKind.APPLICATION, message="train.py: error: no --lr", rank=0),
            (),
            "Rank 0 failed at 12:00 UTC. train.py: error: no --lr.",
        ),
        (
            Failure(kind=FailureKind.NODE, message="replica 1's agent on n2 is gone"),
            ("n2",),
            "Node n2 was lost at 12:00 UTC. Replica 1's agent on n2 is gone.",
        ),
        (
            Failure(kind=FailureKind.NODE, message="replica 1's agent is gone"),
            (),
            "Attempt 1 lost an agent at 12:00 UTC. Replica 1's agent is gone.",
        ),
        (
            Failure(kind=FailureKind.PREEMPTED, message="the cluster took its nodes"),
            ("n2",),
            "Attempt 1 was preempted at 12:00 UTC. The cluster took its nodes.",
        ),
        (
            Failure(kind=FailureKind.LAUNCH, message="the script does not exist"),
            (),
            "Attempt 1 could not start at 12:00 UTC. The script does not exist.",
        ),
    ],
)
def test_a_failed_job_says_what_failed_and_why_no_attempt_follows(
    failure: Failure, nodes: tuple[str, ...], verdict: str
) -> None:
    ended = make_attempt(state=AttemptState.FAILED, ended_at=at(9), failure=failure, marked_nodes=nodes)
    job = make_job(state=JobState.FAILED, reason=f"{failure.message}; {BUDGET}")
    assert why_of(job, [ended], []).verdict == f"{verdict} The budget of 3 application failures is spent."


def test_the_victim_of_a_lost_peer_is_not_the_cause() -> None:
    events = [
        failed(1, seconds=5, rank=0, lost_a_peer=True, message="connection closed by peer"),
        failed(1, seconds=6, rank=3, lost_a_peer=False),
    ]
    why = why_of(make_job(state=JobState.RECOVERING), [make_attempt()], events)
    assert why.cause is not None
    assert why.cause.failure.rank == 3


@pytest.mark.parametrize("behind", [0, 1])
def test_of_ranks_that_several_agents_call_hung_the_one_with_the_fewest_steps_is_the_cause(behind: int) -> None:
    """If the script does not report collectives, a rank that waits in one for a hung rank looks hung too."""
    events = [failed(1, seconds=5, rank=rank, kind="hang", step=30 - (rank == behind)) for rank in (0, 1)]
    why = why_of(make_job(state=JobState.RUNNING), [make_attempt()], [*events, started(2, seconds=6)])
    assert why.cause is not None
    assert (why.cause.failure.kind, why.cause.failure.rank) == (FailureKind.HANG, behind)


def test_where_workers_lost_only_a_peer_and_the_group_shrank_a_lost_node_is_the_cause() -> None:
    victim = failed(1, seconds=5, rank=0, lost_a_peer=True, message="connection closed by peer")
    events = [victim, shrunk(2, at_s=7), started(2, seconds=7)]
    why = why_of(make_job(state=JobState.RUNNING), [make_attempt()], events)
    assert why.cause is not None
    assert why.cause.failure == Failure(kind=FailureKind.NODE, message="an agent was lost")
    restarted = make_event("restart.in_place", at=at(6), attempt=1, generation=2)
    why = why_of(make_job(state=JobState.RUNNING), [make_attempt()], [victim, restarted, started(2, seconds=7)])
    assert why.cause is not None
    assert why.cause.failure.kind is FailureKind.APPLICATION


def test_a_failed_job_names_its_last_attempts_failure_and_what_helps() -> None:
    failure = Failure(
        kind=FailureKind.APPLICATION, message="ModuleNotFoundError: No module named 'einops'", rank=0, exit_code=1
    )
    ended = make_attempt(number=2, state=AttemptState.FAILED, ended_at=at(9), failure=failure, marked_nodes=("n3",))
    job = make_job(state=JobState.FAILED, reason="the same error twice")
    why = why_of(job, [make_attempt(), ended], [failed(1, seconds=3)])
    assert why.cause is not None
    assert (why.cause.attempt, why.cause.failure, why.cause.nodes, why.cause.over) == (2, failure, ("n3",), False)
    assert why.verdict == (
        "The same error twice. Rank 0 failed at 12:00 UTC. ModuleNotFoundError: No module named 'einops'."
    )
    assert why.remedy is not None
    assert why.remedy.name == "missing module"
    assert why.next.endswith("Then run `orchestrator retry job-1`.")


def test_a_job_without_trouble_has_no_cause() -> None:
    why = why_of(make_job(state=JobState.QUEUED, reason="waits for 2 slots"), [], [])
    assert (why.verdict, why.cause, why.remedy, why.lost) == ("Waits for 2 slots.", None, None, "nothing")


def test_a_failed_job_without_a_known_error_may_be_retried() -> None:
    ended = make_attempt(state=AttemptState.FAILED, ended_at=at(9), failure=ODD)
    why = why_of(make_job(state=JobState.FAILED, reason="the budget is spent"), [ended], [])
    assert (why.remedy, why.next) == (None, "Run `orchestrator retry job-1`.")


@pytest.mark.parametrize(
    ("snapshot_step", "run", "rest"),
    [
        (None, {"trainer": {}}, " It starts from the beginning and repeats 30 steps."),
        (20, {"trainer": {}}, " It starts from the newest snapshot and repeats 10 steps."),
        (20, {"script": "a.py"}, " It starts from the newest snapshot and repeats 10 steps."),
        (30, {"trainer": {}}, ""),
        (None, {"script": "a.py"}, ""),
    ],
)
def test_a_failed_jobs_retry_says_which_steps_it_repeats(
    snapshot_step: int | None, run: dict[str, object], rest: str
) -> None:
    """The state was only in memory, and ended with the attempt. Generation 1 had reached step 50, and lost 20 steps."""
    ended = make_attempt(state=AttemptState.FAILED, ended_at=at(9), failure=ODD)
    job = make_job(spec=make_spec(run=run), state=JobState.FAILED, reason="the budget is spent")
    chronicle = Chronicle(
        job=job,
        attempts=[ended],
        events=[started(1, seconds=1), failed(1, seconds=4, step=50), started(2, seconds=5), failed(2, seconds=8)],
        kept={},
        heard_at={},
        has_snapshot=snapshot_step is not None,
        snapshot_step=snapshot_step,
    )
    why = explain(chronicle, read_life(chronicle), Ledger(), NOW)
    assert why.next == f"Run `orchestrator retry job-1`.{rest}"


@pytest.mark.parametrize(
    ("has_snapshot", "source"), [(True, None), (False, "/runs/other/snapshots")], ids=["a snapshot", "another job's"]
)
def test_a_retry_from_a_snapshot_of_an_unknown_step_does_not_say_what_it_repeats(
    has_snapshot: bool, source: str | None
) -> None:
    ended = make_attempt(state=AttemptState.FAILED, ended_at=at(9), failure=ODD)
    spec = make_spec(run={"trainer": {}}, snapshot={"from": source})
    chronicle = Chronicle(
        job=make_job(spec=spec, state=JobState.FAILED),
        attempts=[ended],
        events=[started(1, seconds=1), failed(1, seconds=4)],
        kept={},
        heard_at={},
        has_snapshot=has_snapshot,
    )
    assert explain(chronicle, read_life(chronicle), Ledger(), NOW).next == "Run `orchestrator retry job-1`."


def test_a_job_that_succeeded_names_its_last_failure() -> None:
    ended = make_attempt(state=AttemptState.FAILED, ended_at=at(9), failure=ODD)
    job = make_job(state=JobState.SUCCEEDED, reason="training finished at step 60")
    why = why_of(job, [ended, make_attempt(number=2, state=AttemptState.SUCCEEDED)], [])
    assert why.verdict.startswith("Training finished at step 60. Rank 1 failed at 12:00 UTC after step 30.")
    in_place = why_of(job, [make_attempt()], [failed(1, seconds=5)]).cause
    assert in_place is not None
    assert in_place.over


def test_an_attempt_that_replaced_a_failed_one_has_recovered_once_it_runs() -> None:
    attempts = [make_attempt(state=AttemptState.FAILED, ended_at=at(9), failure=ODD), make_attempt(number=2)]
    starting = why_of(make_job(state=JobState.STARTING), attempts, [failed(1, seconds=8)])
    running = why_of(make_job(state=JobState.RUNNING), attempts, [failed(1, seconds=8)])
    assert [why.cause and why.cause.over for why in (starting, running)] == [False, True]
    assert running.cause is not None
    assert (running.cause.failure, running.cause.generation) == (ODD, 1)


def test_a_failure_in_place_is_newer_than_that_of_an_earlier_attempt() -> None:
    attempts = [make_attempt(state=AttemptState.FAILED, ended_at=at(9), failure=ODD), make_attempt(number=2)]
    why = why_of(make_job(state=JobState.RUNNING), attempts, [failed(1, seconds=20, attempt=2)])
    assert why.cause is not None
    assert (why.cause.attempt, why.cause.over) == (2, False)
    after = why_of(make_job(state=JobState.RUNNING), attempts, [failed(1, seconds=20), failed(2, seconds=21)])
    assert after.cause is not None
    assert (after.cause.attempt, after.cause.failure) == (1, ODD)


def test_a_recovering_job_only_waits() -> None:
    ended = make_attempt(state=AttemptState.LOST, ended_at=at(9), failure=ODD)
    why = why_of(make_job(state=JobState.RECOVERING, reason="the next attempt starts in 5 s"), [ended], [])
    assert why.verdict.startswith("The next attempt starts in 5 s. Rank 1 failed at 12:00 UTC after step 30.")
    assert why.next == "Nothing to do. The next attempt starts by itself."


@pytest.mark.parametrize(
    ("has_snapshot", "source", "run", "beginning"),
    [
        (True, None, {"script": "a.py"}, "the newest snapshot"),
        (True, "/runs/other/snapshots", {"script": "a.py"}, "the newest snapshot"),
        (False, None, {"trainer": {}}, "the beginning"),
        (False, None, {"script": "a.py"}, "its own files or from its beginning"),
        (False, "/runs/other/snapshots", {"script": "a.py"}, "the snapshot that `snapshot.from` names"),
    ],
)
def test_a_cancelled_jobs_retry_begins_where_it_can(
    has_snapshot: bool, source: str | None, run: dict[str, object], beginning: str
) -> None:
    spec = make_spec(run=run, snapshot={"from": source})
    job = make_job(spec=spec, state=JobState.CANCELLED, reason="was cancelled")
    chronicle = Chronicle(job=job, attempts=[], events=[], kept={}, heard_at={}, has_snapshot=has_snapshot)
    assert (
        explain(chronicle, read_life(chronicle), Ledger(), NOW).next
        == f"`orchestrator retry job-1` begins another attempt from {beginning}."
    )


def test_actions_are_those_since_the_failure_with_the_rule_that_fired() -> None:
    before = make_event("job.state", at=at(1), sentence="started", evidence={"state": "STARTING", "rule": "start"})
    after = make_event("job.state", at=at(8), sentence="starts anew", evidence={"state": "STARTING", "rule": "recover"})
    why = why_of(make_job(state=JobState.RUNNING), [make_attempt()], [before, failed(1, seconds=5), after])
    assert [(action.sentence, action.rule) for action in why.deeds] == [("starts anew", "recover")]


def test_a_restart_in_place_of_several_nodes_is_one_action() -> None:
    restarts = [
        make_event(
            "restart.in_place", at=at(seconds), attempt=1, generation=generation, sentence=f"{generation}: {node}"
        )
        for generation, seconds in ((2, 7), (3, 9))
        for node in ("n1", "n2")
    ]
    why = why_of(make_job(state=JobState.RUNNING), [make_attempt()], [failed(1, seconds=5), *restarts])
    assert [action.sentence for action in why.deeds] == ["2: n1", "3: n1"]


def test_losses_are_those_of_the_ledger_without_the_time_in_the_queue() -> None:
    events = [started(1, seconds=0), failed(1, seconds=14), started(2, seconds=16)]
    chronicle = Chronicle(
        job=make_job(
            spec=make_spec(topology={"nodes": "1", "workers_per_node": 2}), state=JobState.RUNNING, created_at=at(-30)
        ),
        attempts=[make_attempt(created_at=at(0))],
        events=events,
        kept={(1, 1): kept(1, 10), (1, 2): kept(17, 21)},
        heard_at={1: at(21)},
    )
    life = read_life(chronicle)
    assert (
        explain(chronicle, life, add_up(lay_out(life, at(21))), NOW).lost
        == "12.0 of 42.0 device-seconds (8.0 re-done, 4.0 recovering)"
    )


def kept(first: int, last: int) -> Kept:
    return Kept(steps=last - first + 1, first_at=at(first), last_at=at(last))


def test_times_of_journals_count_only_as_numbers() -> None:
    """Anyone may write into a run directory."""
    nonsense = make_event("group.shrunk", attempt=1, generation=2, evidence={"seconds": "soon"})
    grown = make_event("generation.started", at=at(3), attempt=1, generation=2, evidence={"world_size": "many"})
    chronicle = Chronicle(job=make_job(), attempts=[make_attempt()], events=[nonsense, grown], kept={}, heard_at={})
    (attempt,) = read_life(chronicle).attempts
    assert [(one.world_size, one.noticed_at) for one in attempt.generations] == [(1, nonsense.at)]


def test_a_retried_job_rested_between_its_end_and_the_retry() -> None:
    def state(name: str, when: datetime) -> Event:
        return make_event("job.state", at=when, evidence={"state": name})

    events = [state("STARTING", at(0)), state("FAILED", at(10)), state("QUEUED", at(30)), state("STARTING", at(31))]
    job = make_job(state=JobState.RUNNING, created_at=at(0))
    life = read_life(Chronicle(job=job, attempts=[], events=events, kept={}, heard_at={}))
    assert [(rest.since, rest.until) for rest in life.rests] == [(at(10), at(30))]


def test_a_job_that_can_never_start_has_to_be_changed() -> None:
    reason = "waits in Slurm's queue as job 12: PartitionConfig (it can never start: no node has so much)"
    advice = "Run `orchestrator cancel job-1`, then submit it with other resources, topology or placement."
    assert why_of(make_job(state=JobState.STARTING, reason=reason), [], []).next == advice
    assert (
        why_of(make_job(state=JobState.STARTING, reason="waits: Resources"), [], []).next
        == "Nothing to do. The job starts by itself."
    )
