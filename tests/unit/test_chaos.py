"""Requests for stacks and chaos: what is accepted, which agent carries it out, and which node is not blamed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.domain.errors import Conflict, InvalidSpec
from orchestrator.domain.job.attempt import AttemptKey, AttemptState
from orchestrator.domain.job.event import EventKind
from orchestrator.domain.job.faults import Order, Target, request_chaos, request_stacks
from orchestrator.domain.job.job import Desired, Job, JobState, RequestedChaos, RequestedStacks
from orchestrator.domain.job.job_summary import summarize
from orchestrator.domain.job.requests import JobRequest, desired_of_attempt, pending_requests
from orchestrator.domain.observation.observation import Liveness, Presence
from orchestrator.domain.policy.decide import decide
from orchestrator.domain.policy.decision import EndAttempt, MarkNodes, TellAgents, Wait
from tests.unit.situations import a_job, a_replica, a_situation, a_spec, ago, an_attempt, seen
from trainer.contract.chaos import Chaos, Fault, find_targets, parse_chaos, render_chaos
from trainer.contract.launch import DesiredDocument, DesiredState, parse_desired, render_desired

TRAINER = a_spec(run={"trainer": {}})
KILL = Order(fault=Fault.KILL)


def a_target(**fields: Any) -> Target:
    known: dict[str, Any] = {
        "attempt": an_attempt(nodes="2"),
        "world_size": 4,
        "nodes": {0: "n1", 1: "n2"},
        "places": {0: 0, 1: 0, 2: 1, 3: 1},
        "newest_snapshot": "step-00000010-a1-g1",
    }
    return Target(**{**known, **fields})


def chaos_of(request: JobRequest | None) -> RequestedChaos:
    assert request is not None
    assert request.desired.chaos is not None
    return request.desired.chaos


def stacks_of(request: JobRequest | None) -> RequestedStacks:
    assert request is not None
    assert request.desired.stacks is not None
    return request.desired.stacks


# Chaos


def test_a_request_for_chaos_names_the_running_attempt_and_its_own_number() -> None:
    request = request_chaos(a_job(desired=Desired(number=6)), a_target(), Order(fault=Fault.HANG, rank=2))
    assert chaos_of(request) == RequestedChaos(number=7, attempt=1, fault=Fault.HANG, rank=2, replica=1)
    assert request is not None
    assert request.kind is EventKind.CHAOS_REQUESTED
    assert request.sentence == "chaos was requested: hang of rank 2"
    assert request.evidence == {"fault": "hang", "number": 7, "attempt": 1, "rank": 2, "replica": 1}


@pytest.mark.parametrize(
    ("order", "rank", "replica", "whom"),
    [
        (KILL, None, None, "kill"),
        (Order(fault=Fault.NODE_LOSS, node="n2"), None, 1, "node-loss on node 1"),
        (Order(fault=Fault.NODE_LOSS, node="0"), None, 0, "node-loss on node 0"),
        (Order(fault=Fault.PREEMPT, node=1), None, 1, "preempt on node 1"),
        (Order(fault=Fault.SLOW, rank=3), 3, 1, "slow of rank 3"),
        (Order(fault=Fault.CORRUPT_SNAPSHOT), None, None, "corrupt-snapshot"),
    ],
)
def test_a_fault_targets_a_rank_or_a_node(order: Order, rank: int | None, replica: int | None, whom: str) -> None:
    request = request_chaos(a_job(), a_target(), order)
    assert (chaos_of(request).rank, chaos_of(request).replica) == (rank, replica)
    assert request is not None
    assert request.sentence.endswith(f"requested: {whom}")


def test_the_agents_find_a_rank_that_has_reported_nothing() -> None:
    request = request_chaos(a_job(), a_target(places={}, world_size=None), Order(fault=Fault.KILL, rank=9))
    assert (chaos_of(request).rank, chaos_of(request).replica) == (9, None)


@pytest.mark.parametrize(
    ("order", "pointer", "words"),
    [
        (Order(fault=Fault.KILL, rank=4), "/rank", "is 4; the group has 4 ranks, from 0"),
        (Order(fault=Fault.PREEMPT, rank=0), "/rank", "preempt cannot target a single rank"),
        (Order(fault=Fault.CORRUPT_SNAPSHOT, rank=0), "/rank", "cannot target a single rank"),
        (Order(fault=Fault.CORRUPT_SNAPSHOT, node=0), "/node", "cannot target a node"),
        (Order(fault=Fault.KILL, rank=0, node=0), "/node", "name a rank or a node, not both"),
        (Order(fault=Fault.KILL, node="2"), "/node", "has no node 2; it has 0 (n1), 1 (n2)"),
        (Order(fault=Fault.KILL, node="١"), "/node", "has no node ١"),
        (Order(fault=Fault.KILL, node="other"), "/node", "has no node other"),
    ],
)
def test_a_target_that_does_not_exist_is_refused(order: Order, pointer: str, words: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        request_chaos(a_job(), a_target(), order)
    assert [problem.pointer for problem in refused.value.problems] == [pointer]
    assert words in str(refused.value)


def test_a_node_cannot_be_named_before_its_agent_has_reported() -> None:
    with pytest.raises(InvalidSpec, match="it has none yet"):
        request_chaos(a_job(), a_target(nodes={}), Order(fault=Fault.KILL, node="n1"))


def test_a_node_name_wins_over_a_replica_number() -> None:
    odd = a_target(nodes={0: "1", 1: "0"})
    assert chaos_of(request_chaos(a_job(), odd, Order(fault=Fault.KILL, node="1"))).replica == 0


def test_two_agents_on_one_node_are_distinguished_by_number() -> None:
    alike = a_target(nodes={0: "here", 1: "here"})
    with pytest.raises(InvalidSpec, match="2 agents run on here; name one by its number"):
        request_chaos(a_job(), alike, Order(fault=Fault.NODE_LOSS, node="here"))
    assert chaos_of(request_chaos(a_job(), alike, Order(fault=Fault.NODE_LOSS, node=1))).replica == 1


@pytest.mark.parametrize(
    ("job", "target", "order", "words"),
    [
        (a_job(JobState.SUCCEEDED), a_target(), KILL, "has ended SUCCEEDED; there is nothing to disturb"),
        (a_job(desired=Desired(cancelled=True)), a_target(), KILL, "is being cancelled; it is too late to disturb it"),
        (a_job(JobState.QUEUED), a_target(attempt=None), KILL, "is QUEUED: no attempt is running"),
        (a_job(), a_target(attempt=an_attempt(AttemptState.SUBMITTED)), KILL, "no attempt is running"),
        (a_job(), a_target(attempt=an_attempt(stopping_since=ago(1))), KILL, "attempt 1 of job train-abc is ending"),
        (a_job(spec=a_spec(launcher="torchrun")), a_target(), KILL, "runs under torchrun"),
        (a_job(), a_target(newest_snapshot=None), Order(fault=Fault.DISK_FULL), "has saved no snapshot"),
        (a_job(), a_target(newest_snapshot=None), Order(fault=Fault.CORRUPT_SNAPSHOT), "has no snapshot to damage"),
        (
            a_job(spec=a_spec(snapshot={"dir": "s3://bucket/x"})),
            a_target(),
            Order(fault=Fault.CORRUPT_SNAPSHOT),
            "are in an object store",
        ),
        (
            a_job(),
            a_target(relied_on_by="other-1"),
            Order(fault=Fault.CORRUPT_SNAPSHOT),
            "job other-1 continues from a snapshot of job train-abc",
        ),
    ],
)
def test_a_fault_that_cannot_be_injected_is_refused_and_says_why(
    job: Job, target: Target, order: Order, words: str
) -> None:
    with pytest.raises(Conflict) as refused:
        request_chaos(job, target, order)
    assert words in str(refused.value)


def test_a_fault_is_accepted_if_it_needs_no_snapshot_or_there_is_one() -> None:
    alone = a_target(newest_snapshot=None, relied_on_by="other-1")
    assert chaos_of(request_chaos(a_job(spec=TRAINER), alone, Order(fault=Fault.DISK_FULL))).fault is Fault.DISK_FULL
    assert chaos_of(request_chaos(a_job(), alone, KILL)).fault is Fault.KILL
    assert chaos_of(request_chaos(a_job(), a_target(), Order(fault=Fault.DISK_FULL))).fault is Fault.DISK_FULL
    paths = a_job(spec=a_spec(snapshot={"dir": "/scratch"}))
    assert chaos_of(request_chaos(paths, a_target(), Order(fault=Fault.CORRUPT_SNAPSHOT))).number == 1


def test_a_pending_fault_is_not_repeated_and_another_one_must_wait() -> None:
    request = request_chaos(a_job(), a_target(), KILL)
    assert request is not None
    job = a_job(desired=replace(request.desired, number=1))
    assert request_chaos(job, a_target(), KILL) is None
    with pytest.raises(Conflict, match=r"already has a pending fault \(kill\)"):
        request_chaos(job, a_target(), Order(fault=Fault.KILL, rank=0))
    told = a_target(attempt=an_attempt(nodes="2", errand_told=1))
    assert chaos_of(request_chaos(job, told, KILL)).number == 2
    later = a_target(attempt=an_attempt(key=an_attempt().key._replace(number=2)))
    assert chaos_of(request_chaos(job, later, KILL)) == RequestedChaos(number=2, attempt=2, fault=Fault.KILL)


# Stacks


def test_stacks_are_requested_of_all_ranks_or_of_one() -> None:
    request = request_stacks(a_job(desired=Desired(number=3)), a_target(), None)
    assert stacks_of(request) == RequestedStacks(number=4, attempt=1)
    assert request is not None
    assert (request.kind, request.sentence) == (EventKind.STACKS_REQUESTED, "the stacks of all ranks were requested")
    assert request.evidence == {"attempt": 1, "number": 4, "rank": None}
    one = request_stacks(a_job(), a_target(), 3)
    assert stacks_of(one) == RequestedStacks(number=1, attempt=1, rank=3)
    assert one is not None
    assert one.sentence == "the stacks of rank 3 were requested"


def test_pending_stacks_are_not_requested_again_and_two_ranks_become_all() -> None:
    def asked(rank: int | None, *, attempt: int = 1) -> Job:
        return a_job(desired=Desired(number=1, stacks=RequestedStacks(number=1, attempt=attempt, rank=rank)))

    assert request_stacks(asked(None), a_target(), None) is None
    assert request_stacks(asked(None), a_target(), 2) is None
    assert request_stacks(asked(2), a_target(), 2) is None
    assert stacks_of(request_stacks(asked(2), a_target(), 3)) == RequestedStacks(number=2, attempt=1)
    assert stacks_of(request_stacks(asked(2, attempt=0), a_target(), 3)) == RequestedStacks(number=2, attempt=1, rank=3)
    told = a_target(attempt=an_attempt(errand_told=1))
    assert stacks_of(request_stacks(asked(2), told, 2)) == RequestedStacks(number=2, attempt=1, rank=2)


def test_stacks_need_a_running_attempt_under_elasticrun() -> None:
    with pytest.raises(Conflict, match="nothing to ask for the stacks of"):
        request_stacks(a_job(JobState.QUEUED), a_target(attempt=None), None)
    with pytest.raises(InvalidSpec, match="/rank: is 4"):
        request_stacks(a_job(), a_target(), 4)
    with pytest.raises(Conflict, match="use elasticrun"):
        request_stacks(a_job(spec=a_spec(launcher="torchrun")), a_target(), None)


# On the way to the agents


STACKS = RequestedStacks(number=4, attempt=1, rank=2)
CHAOS = RequestedChaos(number=5, attempt=1, fault=Fault.SLOW, rank=1, replica=0)


def test_agents_receive_only_the_requests_for_their_own_attempt() -> None:
    desired = Desired(number=9, snapshot_number=2, stacks=STACKS, chaos=CHAOS)
    told = desired_of_attempt(desired, 1)
    assert told == DesiredDocument(
        snapshot=2,
        number=9,
        stacks=4,
        stacks_rank=2,
        chaos=Chaos(number=5, fault=Fault.SLOW, rank=1, replica=0),
    )
    assert desired_of_attempt(desired, 2) == DesiredDocument(snapshot=2, number=9)
    assert desired_of_attempt(desired, 1, stop=True) == replace(told, state=DesiredState.STOP)
    assert parse_desired(render_desired(told)) == told


def test_a_request_is_sent_once_and_is_pending_until_then() -> None:
    for desired, name in ((Desired(number=4, stacks=STACKS), "stacks"), (Desired(number=5, chaos=CHAOS), "chaos")):
        job = a_job(desired=desired)
        number = desired.number
        for told, action, pending in ((0, TellAgents(), [name]), (number, Wait(), [])):
            attempt = an_attempt(errand_told=told)
            assert decide(a_situation(job, attempt, seen(Presence.RUNNING, a_replica()))).action == action
            assert pending_requests(summarize(job, attempt)) == pending
        assert pending_requests(summarize(job, an_attempt(AttemptState.LOST))) == []
        assert pending_requests(summarize(job, None)) == []
        later = an_attempt(key=an_attempt().key._replace(number=2))
        assert pending_requests(summarize(job, later)) == []
        assert decide(a_situation(job, later, seen(Presence.RUNNING, a_replica()))).action == Wait()
    both = Desired(stacks=STACKS, chaos=CHAOS)
    assert (both.errand(1), both.errand(2), Desired().errand(1)) == (5, 0, 0)


def test_an_attempt_that_was_not_seen_running_receives_no_request() -> None:
    s = a_situation(
        a_job(JobState.STARTING, desired=Desired(number=5, chaos=CHAOS)),
        an_attempt(AttemptState.SUBMITTED, started_at=None),
        seen(Presence.UNKNOWN),
    )
    assert decide(s).action == Wait()


# Harmless to others


def lose_n2(desired: Desired, *, nodes: str) -> Any:
    gone = replace(a_replica(Liveness.DEAD, 1), node="n2")
    presence = Presence.RUNNING if nodes == "1:2" else Presence.GONE
    job = a_job(spec=a_spec(topology={"nodes": nodes}), desired=desired)
    others = (a_replica(),) if nodes == "1:2" else (a_replica(Liveness.DEAD, 0),)
    return decide(a_situation(job, an_attempt(nodes=nodes, errand_told=99), seen(presence, *others, gone)))


def test_a_node_that_chaos_killed_is_not_marked() -> None:
    assert lose_n2(Desired(), nodes="1:2").action == MarkNodes()
    assert lose_n2(Desired(), nodes="2").blames == ("n2",)
    disturbed = Desired(number=5, chaos=CHAOS)
    assert lose_n2(disturbed, nodes="1:2").action == Wait()
    ended = lose_n2(disturbed, nodes="2")
    assert isinstance(ended.action, EndAttempt)
    assert ended.blames == ()
    earlier = Desired(number=5, chaos=replace(CHAOS, attempt=7))
    assert lose_n2(earlier, nodes="2").blames == ("n2",), "chaos of another attempt excuses nothing"


# Which agent


def targets(fault: Fault, *, rank: int | None = None, replica: int | None = None) -> dict[int, tuple[int, ...]]:
    """The ranks that are hit, by agent. Two agents have two ranks each."""
    chaos = Chaos(number=1, fault=fault, rank=rank, replica=replica)
    parts = {0: [0, 1], 1: [2, 3]}
    found = {each: find_targets(chaos, replica=each, ranks=ranks, world_size=4) for each, ranks in parts.items()}
    return {each: ranks for each, ranks in found.items() if ranks}


@pytest.mark.parametrize("fault", [Fault.KILL, Fault.HANG, Fault.SLOW, Fault.NODE_LOSS, Fault.DISK_FULL])
def test_a_fault_of_a_rank_hits_one_agent(fault: Fault) -> None:
    assert targets(fault) == {1: (3,)}
    assert targets(fault, rank=1) == {0: (1,)}
    assert targets(fault, replica=0) == {0: (1,)}
    assert targets(fault, rank=2, replica=1) == {1: (2,)}
    assert targets(fault, rank=2, replica=0) == {}, "the rank has moved, so no other rank is hit"
    assert targets(fault, rank=7) == {}


def test_a_preemption_hits_all_agents_or_one_and_a_corrupt_snapshot_that_of_rank_0() -> None:
    assert targets(Fault.PREEMPT) == {0: (0, 1), 1: (2, 3)}
    assert targets(Fault.PREEMPT, replica=1) == {1: (2, 3)}
    assert targets(Fault.CORRUPT_SNAPSHOT) == {0: (0,)}
    nobody = Chaos(number=1, fault=Fault.KILL, replica=0)
    assert find_targets(nobody, replica=0, ranks=(), world_size=4) == ()


def test_a_fault_is_parsed_as_it_was_rendered_and_anything_else_is_none() -> None:
    chaos = Chaos(number=3, fault=Fault.NODE_LOSS, rank=0, replica=0)
    assert parse_chaos(render_chaos(chaos)) == chaos
    document = render_chaos(chaos)
    for field, values in {
        "number": (0, -1, True, "3", None, 1.0),
        "fault": ("meteor", None, 7, [], "KILL"),
        "rank": (-1, True, "0", 0.0),
        "replica": (-1, False, "1"),
    }.items():
        for value in values:
            assert parse_chaos({**document, field: value}) is None, (field, value)
    for nothing in (None, 7, "kill", [document]):
        assert parse_chaos(nothing) is None
    assert parse_chaos({"number": 1, "fault": "kill"}) == Chaos(number=1, fault=Fault.KILL)


@pytest.mark.parametrize(("attempt", "disturbed"), [(None, False), (1, True), (2, False)])
def test_chaos_disturbs_only_the_attempt_that_it_names(attempt: int | None, disturbed: bool) -> None:
    job = a_job(desired=Desired(chaos=RequestedChaos(number=1, attempt=1, fault=Fault.KILL)))
    present = None if attempt is None else an_attempt(key=AttemptKey(job.id, attempt))
    assert a_situation(job, present).disturbed is disturbed
