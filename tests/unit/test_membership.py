"""Who left a running group and who has rejoined it: recorded once, with what ended the agent."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.event import Event
from orchestrator.domain.observation.membership import Members, Return, read_life, read_members, read_participants
from orchestrator.domain.observation.observation import Liveness, Presence, ReplicaEnd, ReplicaSighting
from orchestrator.domain.policy.decide import decide
from orchestrator.domain.policy.decision import NoteMembers, Wait
from orchestrator.domain.policy.situation import Situation
from orchestrator.supervisor import act_events
from tests.builders import at, make_event
from tests.unit.situations import NOW, a_job, a_replica, a_situation, a_spec, an_attempt, an_exit, seen
from trainer.contract.exit_record import ExitRecord, Outcome
from trainer.contract.failure import Failure, FailureKind

DELETED = Failure(kind=FailureKind.PREEMPTED, message="pod p-1-x on n2 was deleted in the cluster, but not by us")
ENDED = ReplicaEnd(incarnation=1, words="pod p-1-x on n2 was deleted", failure=DELETED)
GONE = replace(a_replica(Liveness.DEAD, 1), evidence="replica 1's agent, process 7, is gone and left no record")


def a_group(
    *replicas: ReplicaSighting,
    members: Members,
    exits: dict[int, ExitRecord] | None = None,
    missed: int | None = None,
    presence: Presence = Presence.RUNNING,
) -> Situation:
    observed = seen(presence, *replicas, exits=exits)
    observed = replace(observed, members=members, missed=frozenset() if missed is None else frozenset({missed}))
    attempt = an_attempt(AttemptState.RUNNING, nodes="1:2", asked="1:2")
    return a_situation(a_job(spec=a_spec(topology={"nodes": "1:2"})), attempt, observed)


def lost_of(*replicas: ReplicaSighting, reported: dict[int, int] | None = None, **fields: Any) -> list[Event]:
    members = Members(reported=reported or {0: 1, 1: 1})
    s = a_group(a_replica(), *replicas, **{"members": members, **fields})
    decision = decide(s)
    if not isinstance(decision.action, NoteMembers):
        assert decision.action == Wait()
        return []
    return act_events.members(s, decision, decision.action)


def test_a_lost_replica_is_recorded_in_the_words_of_its_cluster() -> None:
    (event,) = lost_of(replace(GONE, end=ENDED, returns=True))
    assert (event.kind, event.at, event.attempt) == ("replica.lost", NOW, 1)
    assert event.sentence == "replica 1 was lost: pod p-1-x on n2 was deleted in the cluster, but not by us"
    assert event.evidence == {
        "replica": 1,
        "incarnation": 1,
        "words": "pod p-1-x on n2 was deleted",
        "failure": {"kind": "preempted", "message": DELETED.message, "repeated": False, "at_launch": False},
        "returns": True,
        "node": None,
        "rule": "note_members",
    }


def test_an_agent_that_is_gone_is_a_lost_replica_on_every_cluster_and_no_lost_node() -> None:
    (event,) = lost_of(GONE)
    assert event.sentence == f"replica 1 was lost: {GONE.evidence}"
    assert (event.evidence["node"], event.evidence["returns"]) == (None, False)


def test_a_group_that_the_cluster_does_not_show_as_running_has_lost_nobody() -> None:
    assert not lost_of(GONE, presence=Presence.UNKNOWN)


def test_a_node_is_lost_only_if_the_cluster_says_so() -> None:
    unknown = replace(a_replica(Liveness.UNKNOWN, 1), evidence="node n2 does not answer")
    silent = replace(unknown, node="n2", node_unreachable=True)
    assert not lost_of(silent), "it may still be in the group"
    (event,) = lost_of(silent, missed=1)
    assert event.sentence == "replica 1 was lost with node n2: node n2 does not answer"
    assert event.evidence["node"] == "n2"
    assert not lost_of(replace(silent, node_unreachable=False), missed=1)


def test_a_loss_is_recorded_once_and_only_of_an_agent_that_was_in_the_group() -> None:
    waits = replace(GONE, evidence="pod p-1-y has no node yet")
    assert not lost_of(waits, reported={0: 1}), "its agent has not begun"
    recorded = Members(reported={0: 1, 1: 1}, lost=frozenset({(1, 1)}))
    assert not lost_of(replace(GONE, end=ENDED), members=recorded)
    assert not lost_of(replace(GONE, end=ENDED), reported={0: 1, 1: 2}), "the cluster shows an earlier agent"
    again = replace(ENDED, incarnation=2, words="pod p-1-z on n2 was evicted")
    assert len(lost_of(replace(GONE, end=again), members=replace(recorded, reported={0: 1, 1: 2}))) == 1


@pytest.mark.parametrize(
    ("record", "kind"),
    [
        (an_exit(Outcome.SUCCEEDED), None),
        (an_exit(Outcome.PREEMPTED), FailureKind.PREEMPTED),
        (an_exit(Outcome.FAILED, FailureKind.NODE), FailureKind.NODE),
        (an_exit(Outcome.FAILED, FailureKind.RENDEZVOUS), FailureKind.PREEMPTED),  # it only lost its peers
    ],
    ids=["succeeded", "preempted", "unfit node", "cut off"],
)
def test_the_record_of_the_agent_says_how_it_left(record: ExitRecord, kind: FailureKind | None) -> None:
    events = lost_of(replace(GONE, end=ENDED), exits={1: record})
    assert [event.evidence["failure"]["kind"] for event in events] == ([] if kind is None else [kind.value])  # type: ignore[index]
    own = kind is FailureKind.NODE
    assert all(("a failure of kind node" in event.sentence) is own for event in events)


def test_a_replica_that_rejoined_is_recorded_before_the_next_loss() -> None:
    back = Return(replica=1, incarnation=2, generation=3, at=at(33), seconds=21.04, words=ENDED.words)
    again = replace(ENDED, incarnation=2)
    members = Members(reported={0: 1, 1: 2}, lost=frozenset({(1, 1)}), returns=(back,))
    first, second = lost_of(replace(GONE, end=again), members=members)
    assert lost_of(members=members) == [first], "it is recorded without another loss too"
    assert (first.kind, first.at) == ("replica.rejoined", at(33))
    assert first.sentence == "replica 1 rejoined the group after 21.0 s (pod p-1-x on n2 was deleted)"
    assert (first.evidence["generation"], first.evidence["seconds"]) == (3, 21.04)
    assert second.kind == "replica.lost"


# Who has rejoined, from the journals


def started(replica: int, incarnation: int, seconds: float = 0.0) -> Event:
    evidence: dict[str, object] = {"replica": replica, "incarnation": incarnation}
    return make_event("agent.started", at=at(seconds), attempt=1, generation=0, evidence=evidence)


def formed(generation: int, seconds: float, *replicas: int) -> list[Event]:
    return [
        make_event("generation.started", at=at(seconds), attempt=1, generation=generation, evidence={"replica": each})
        for each in replicas
    ]


def changed(kind: str, generation: int, at_s: float, took_s: float, replica: int = 0) -> Event:
    evidence: dict[str, object] = {"replica": replica, "seconds": took_s}
    return make_event(kind, at=at(at_s), attempt=1, generation=generation, evidence=evidence)


LOSS = make_event("replica.lost", at=at(11), attempt=1, evidence={"replica": 1, "incarnation": 1, "words": ENDED.words})
REJOINED = make_event("replica.rejoined", at=at(33), attempt=1, evidence={"replica": 1, "incarnation": 2})
FIRST = [started(0, 1), started(1, 1), started(2, 1), *formed(1, 1, 0, 1, 2)]
SHRUNK = [changed("group.shrunk", 2, 12, 1.5), *formed(2, 12, 0, 2)]
GREW = [changed("group.grew", 3, 32, 2.0), *formed(3, 32, 0, 2)]
LIVES = {0: [1], 1: [1, 2], 2: [1]}


def choose(events: Iterable[Event], kinds: Collection[str], replicas: Collection[int] | None) -> list[Event]:
    return [one for one in events if one.kind in kinds and (replicas is None or one.replica in replicas)]


def members_of(lives: Mapping[int, Sequence[int]], *events: Event) -> Members:
    return read_members(lives, lives, partial(choose, events))


def test_a_group_that_formed_with_a_later_incarnation_has_taken_the_replica_back() -> None:
    events = [*FIRST, *SHRUNK, started(1, 2, 30), *GREW, *formed(3, 31.5, 1)]
    members = members_of(LIVES, LOSS, *events)
    assert members.lost == {(1, 1)}
    assert members.reported == {0: 1, 1: 2, 2: 1}
    assert members.returns == (
        Return(replica=1, incarnation=2, generation=3, at=at(31.5), seconds=21.0, words=ENDED.words),
    )
    assert not members_of(LIVES, LOSS, REJOINED, *events).returns, "it is recorded"
    assert not members_of(LIVES, LOSS, *events[:-1]).returns, "its agent has not formed the group yet"
    both = {**LIVES, 2: [1, 2]}
    assert not members_of(both, LOSS, *FIRST, *SHRUNK, started(2, 2, 30)).returns, (
        "the group went on with the other one"
    )
    late = [*FIRST, started(1, 2, 30), *formed(1, 31.5, 1)]
    assert not members_of(LIVES, LOSS, *late).returns, "it reports no newer group"
    (unseen,) = members_of(LIVES, *events).returns
    assert (unseen.seconds, unseen.words) == (21.0, ""), "the service did not see the loss"


def test_only_events_that_may_tell_of_a_return_are_read() -> None:
    events = [LOSS, *FIRST, *SHRUNK, started(1, 2, 30), *GREW, *formed(3, 32, 1)]
    asked: list[Collection[int] | None] = []

    def read(kinds: Collection[str], replicas: Collection[int] | None) -> list[Event]:
        asked.append(replicas)
        return choose(events, kinds, replicas)

    assert read_members({0: [1], 1: [1]}, [2], read).reported == {0: 1, 1: 1}
    assert asked == []
    assert read_members({0: [1], 1: [1]}, [1], read).lost == {(1, 1)}
    assert asked == [None]
    assert read_members(LIVES, [], read).returns[0].seconds == 21.5
    assert asked == [None, None, {1}, None]
    events.append(REJOINED)
    assert not read_members(LIVES, [], read).returns
    assert asked == [None, None, {1}, None, None]


def test_a_replica_that_was_lost_twice_has_rejoined_twice() -> None:
    twice = [*FIRST, *SHRUNK, started(1, 2, 30), *GREW, *formed(3, 32, 1)]
    twice += [changed("group.shrunk", 4, 50, 1.0), *formed(4, 50, 0, 2), started(1, 3, 70)]
    twice += [changed("group.grew", 5, 73, 1.0), *formed(5, 73, 0, 1, 2)]
    found = members_of({**LIVES, 1: [1, 2, 3]}, LOSS, REJOINED, *twice).returns
    assert [(one.incarnation, one.generation, one.seconds) for one in found] == [(3, 5, 24.0)]


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Event], list[tuple[int, int, int]]]:
    """Draw a group of two to four replicas that are lost and replaced. Return its events and (replica, life, group)."""
    size = draw(st.integers(2, 4))
    lives, generation, now = dict.fromkeys(range(size), 1), 1, 0.0
    events = [started(each, 1) for each in range(size)]
    events += formed(1, 0, *range(size))
    expected = []
    for victim in draw(st.lists(st.integers(1, size - 1), max_size=5)):
        rest = [each for each in range(size) if each != victim]
        shrinks = draw(st.booleans())
        if shrinks:
            generation, now = generation + 1, now + draw(st.integers(1, 9))
            events += [changed("group.shrunk", generation, now, 1.0, each) for each in rest]
            events += formed(generation, now, *draw(st.permutations(rest)))
        lives[victim] += 1
        events.append(started(victim, lives[victim], now))
        generation, now = generation + 1, now + draw(st.integers(1, 99))
        kind = "group.grew" if shrinks else "restart.in_place"
        events += [changed(kind, generation, now, 0.5, each) for each in rest]
        events += formed(generation, now, *draw(st.permutations(range(size))))
        expected.append((victim, lives[victim], generation))
    return events, expected


@given(histories())
def test_every_replacement_that_forms_a_group_has_rejoined_once(
    history: tuple[list[Event], list[tuple[int, int, int]]],
) -> None:
    events, expected = history
    lives = {event.replica: [1] for event in events if event.replica is not None}
    for replica, life, _ in expected:
        lives[replica].append(life)
    found = members_of(lives, *events).returns
    assert sorted((one.replica, one.incarnation, one.generation) for one in found) == sorted(expected)
    assert all(one.seconds is not None and one.seconds >= 0 for one in found)


def test_agents_that_report_no_replica_are_left_out() -> None:
    nameless = make_event("generation.started", at=at(1), attempt=1, generation=1)
    assert [one.replica for one in read_participants([nameless, *formed(1, 1, 2)])] == [2]


@pytest.mark.parametrize("evidence", [{}, {"replica": 1}, {"incarnation": 1}, {"replica": 1, "incarnation": True}])
def test_an_event_without_a_replica_and_its_incarnation_names_no_agent(evidence: dict[str, object]) -> None:
    assert read_life(make_event("replica.lost", evidence=evidence)) is None
    assert read_life(make_event("replica.lost", evidence={"replica": 0, "incarnation": 1})) == (0, 1)


WILD = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.just({}) | st.just([])
ANY_EVENT = st.builds(
    make_event,
    st.sampled_from(("agent.started", "generation.started", "group.shrunk", "replica.lost", "replica.rejoined")),
    at=st.datetimes(timezones=st.just(UTC)),
    attempt=st.just(1),
    generation=st.none() | st.integers(-2, 4),
    evidence=st.dictionaries(st.sampled_from(("replica", "incarnation", "seconds", "words", "host")), WILD),
)


@given(st.lists(ANY_EVENT, max_size=18))
def test_members_are_readable_whatever_agents_report(events: list[Event]) -> None:
    """One unreadable attempt would stop the pass for all jobs."""
    members_of({0: [1], 1: [1, 2]}, *events)
