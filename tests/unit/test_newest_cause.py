"""The newest cause names what was injected, in the generation and with the ranks that it struck."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.domain.accounting.chronicle import Chronicle, read_life
from orchestrator.domain.accounting.life import Kept
from orchestrator.domain.accounting.restarts import sum_restarts
from orchestrator.domain.explanation.newest_cause import find_newest_cause
from orchestrator.domain.job.attempt import Attempt, AttemptState
from orchestrator.domain.job.event import Event
from orchestrator.domain.job.job import JobState
from tests.builders import at, make_attempt, make_event, make_job
from trainer.contract.failure import Failure, FailureKind

AGENT_LOST = Failure(kind=FailureKind.NODE, message="the agent was killed")


@dataclass(frozen=True)
class Life:
    """One attempt: `killed` workers, each of which ends a generation that restarts in place, then perhaps its agent."""

    world_size: int
    killed: list[int]
    agent_dies: bool


lives = st.integers(1, 8).flatmap(
    lambda size: st.builds(
        Life, world_size=st.just(size), killed=st.lists(st.integers(0, size - 1), max_size=4), agent_dies=st.booleans()
    )
)


def record(number: int, life: Life) -> tuple[Attempt, list[Event]]:
    start, events = 100 * number, []
    for generation in range(1, len(life.killed) + 2):
        began = start + 10 * generation
        events.append(make("generation.started", began, number, generation, world_size=life.world_size))
        if generation <= len(life.killed):
            rank = life.killed[generation - 1]
            dead = {"kind": "unknown", "message": "the worker was killed", "signal": "SIGKILL", "rank": rank}
            others = [each for each in range(life.world_size) if each != rank]
            events.append(make("worker.failed", began + 5, number, generation, **dead, collateral_ranks=others))
    attempt = make_attempt(number=number, created_at=at(start))
    if life.agent_dies:
        attempt = make_attempt(
            number=number,
            created_at=at(start),
            ended_at=at(start + 90),
            state=AttemptState.FAILED,
            failure=AGENT_LOST,
        )
    return attempt, events


def make(event: str, seconds: int, attempt: int, generation: int, **evidence: object) -> Event:
    return make_event(event, at=at(seconds), attempt=attempt, generation=generation, evidence=evidence)


@given(st.lists(lives, min_size=1, max_size=3))
def test_the_newest_cause_is_the_newest_fault(whole: list[Life]) -> None:
    """All attempts but the last one end by the death of their agent."""
    whole = [Life(each.world_size, each.killed, True) for each in whole[:-1]] + whole[-1:]
    records = [record(number, life) for number, life in enumerate(whole, start=1)]
    chronicle = Chronicle(
        job=make_job(state=JobState.RUNNING),
        attempts=[attempt for attempt, _ in records],
        events=[event for _, events in records for event in events],
        kept={},
        heard_at={},
    )
    cause = find_newest_cause(chronicle, read_life(chronicle))
    struck = [number for number, life in enumerate(whole, start=1) if life.agent_dies or life.killed]
    if not struck:
        assert cause is None
        return
    assert cause is not None
    life = whole[struck[-1] - 1]
    generation = len(life.killed) + life.agent_dies
    dead = {cause.failure.rank, *cause.collateral_ranks} - {None}
    assert (cause.attempt, cause.generation, dead) == (struck[-1], generation, set(range(life.world_size)))
    assert cause.failure == AGENT_LOST if life.agent_dies else cause.failure.rank == life.killed[-1]


@pytest.mark.parametrize(
    ("restored", "sentence"),
    [
        ({"step": 97, "source": "survivor"}, "after step 97, from the memory of a surviving worker; no step repeated"),
        ({"step": 96, "source": "memory"}, "after step 96, from a copy in memory; 1 step repeated"),
        ({"step": 90, "source": "disk"}, "after step 90, from a snapshot; 7 steps repeated"),
        ({"step": 90}, "after step 90, from a snapshot; 7 steps repeated"),
        (None, None),
    ],
)
def test_a_cause_says_where_training_continued(restored: dict[str, object] | None, sentence: str | None) -> None:
    dead = {"kind": "unknown", "message": "the worker was killed", "signal": "SIGKILL", "rank": 0, "step": 97}
    events = [
        make("generation.started", 0, 1, 1, world_size=2),
        make("worker.failed", 5, 1, 1, **dead, collateral_ranks=[]),
        make("generation.started", 6, 1, 2, world_size=2),
    ]
    if restored is not None:
        events.append(make("restored", 7, 1, 2, **restored))
    attempts = [make_attempt(number=1, created_at=at(0))]
    chronicle = Chronicle(job=make_job(state=JobState.RUNNING), attempts=attempts, events=events, kept={}, heard_at={})
    cause = find_newest_cause(chronicle, read_life(chronicle))
    assert cause is not None
    assert (None if cause.continued is None else str(cause.continued)) == sentence


@pytest.mark.parametrize(("first_at", "end"), [(8.25, "; next step 3.2 s after the failure"), (4.0, ""), (None, "")])
def test_a_cause_says_how_long_the_next_step_took(first_at: float | None, end: str) -> None:
    """Without a step, and if the clocks of the nodes differ, it is not known."""
    dead = {"kind": "unknown", "message": "the worker was killed", "signal": "SIGKILL", "rank": 0, "step": 97}
    events = [
        make("generation.started", 0, 1, 1, world_size=2),
        make("worker.failed", 5, 1, 1, **dead, collateral_ranks=[]),
        make("generation.started", 6, 1, 2, world_size=2),
        make("restored", 7, 1, 2, step=97, source="survivor"),
    ]
    kept = {} if first_at is None else {(1, 2): Kept(steps=2, first_at=at(first_at), last_at=at(20))}
    attempts = [make_attempt(number=1, created_at=at(0))]
    chronicle = Chronicle(
        job=make_job(state=JobState.RUNNING), attempts=attempts, events=events, kept=kept, heard_at={}
    )
    cause = find_newest_cause(chronicle, read_life(chronicle))
    assert cause is not None
    assert str(cause.continued) == f"after step 97, from the memory of a surviving worker; no step repeated{end}"


@pytest.mark.parametrize(("step", "said"), [(497, "; 33 steps repeated"), (None, "")])
def test_after_a_lost_node_the_repeated_steps_are_those_since_the_survivors_newest(step: int | None, said: str) -> None:
    """Without the survivors' step they are not known."""
    events = [
        make("generation.started", 0, 1, 1, world_size=2),
        make("restored", 1, 1, 1, step=400, source="disk"),
        make("peer.lost", 5, 1, 1, replicas=[1], step=step),
        make("group.shrunk", 5, 1, 2, sentence="the group lost 10.0.0.2"),
        make("generation.started", 6, 1, 2, world_size=1),
        make("restored", 7, 1, 2, step=464, source="disk"),
    ]
    attempts = [make_attempt(number=1, created_at=at(0))]
    chronicle = Chronicle(job=make_job(state=JobState.RUNNING), attempts=attempts, events=events, kept={}, heard_at={})
    (restarts,) = sum_restarts(read_life(chronicle), ())
    assert (restarts.repeated, restarts.unknown) == ((33, 0) if step else (0, 1))
    cause = find_newest_cause(chronicle, read_life(chronicle))
    assert cause is None or str(cause.continued) == f"after step 464, from a snapshot{said}"


def test_a_failed_attempt_takes_the_ranks_that_the_report_on_its_last_generation_names() -> None:
    dead = {"kind": "unknown", "message": "the worker was killed", "signal": "SIGKILL", "rank": 0}
    events = [
        make("generation.started", 0, 1, 1, world_size=3),
        make("worker.failed", 5, 1, 1, **dead, collateral_ranks=[2]),
    ]
    failed = make_attempt(number=1, created_at=at(0), ended_at=at(9), state=AttemptState.FAILED, failure=AGENT_LOST)
    chronicle = Chronicle(job=make_job(), attempts=[failed], events=events, kept={}, heard_at={})
    cause = find_newest_cause(chronicle, read_life(chronicle))
    assert cause is not None
    assert (cause.generation, cause.collateral_ranks) == (1, (2,))


def test_training_does_not_continue_from_an_attempt_without_a_generation() -> None:
    failed = make_attempt(number=1, created_at=at(0), ended_at=at(9), state=AttemptState.FAILED, failure=AGENT_LOST)
    events = [
        make("generation.started", 20, 2, 1, world_size=2),
        make("restored", 21, 2, 1, step=90, source="disk"),
    ]
    attempts = [failed, make_attempt(number=2, created_at=at(10))]
    chronicle = Chronicle(job=make_job(state=JobState.RUNNING), attempts=attempts, events=events, kept={}, heard_at={})
    cause = find_newest_cause(chronicle, read_life(chronicle))
    assert cause is not None
    assert (cause.attempt, cause.continued) == (1, None)


def test_only_the_steps_of_the_lost_generation_are_repeated_by_its_failure() -> None:
    """Generation 1 reached step 97. Generation 2 began at step 90 and was lost before another step."""
    dead = {"kind": "unknown", "message": "the worker was killed", "signal": "SIGKILL", "rank": 0}
    events = [
        make("generation.started", 0, 1, 1, world_size=2),
        make("worker.failed", 5, 1, 1, **dead, step=97),
        make("generation.started", 6, 1, 2, world_size=2),
        make("restored", 7, 1, 2, step=90, source="disk"),
        make("worker.failed", 8, 1, 2, **dead),
        make("generation.started", 9, 1, 3, world_size=2),
        make("restored", 10, 1, 3, step=90, source="memory"),
    ]
    attempts = [make_attempt(number=1, created_at=at(0))]
    chronicle = Chronicle(job=make_job(state=JobState.RUNNING), attempts=attempts, events=events, kept={}, heard_at={})
    cause = find_newest_cause(chronicle, read_life(chronicle))
    assert cause is not None
    assert str(cause.continued) == "after step 90, from a copy in memory; no step repeated"
