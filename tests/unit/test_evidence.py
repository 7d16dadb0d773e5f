"""What each source of evidence shows, and whether an attempt may end on it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest

from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.job import Desired, JobState
from orchestrator.domain.observation.observation import Liveness, Observation, Presence, ReplicaSighting
from orchestrator.domain.policy.decide import decide
from orchestrator.domain.policy.decision import Decision, EndAttempt
from orchestrator.domain.policy.evidence import Source, permits_end, weigh
from orchestrator.supervisor.act import Actor
from tests.unit.situations import a_job, a_replica, a_situation, a_spec, ago, an_attempt, an_exit, seen
from trainer.contract.exit_record import ExitRecord, Outcome
from trainer.contract.failure import FailureKind

A, D, U = Liveness.ALIVE, Liveness.DEAD, Liveness.UNKNOWN


@pytest.mark.parametrize(
    ("presence", "liveness", "expected"),
    [
        (Presence.RUNNING, (A, A), (A, A)),
        (Presence.RUNNING, (A, D), (A, A)),
        (Presence.PENDING, (), (A, U)),
        (Presence.GONE, (D, D), (D, D)),
        (Presence.UNKNOWN, (D, U), (U, U)),
        (Presence.ABSENT, (), (D, U)),
    ],
)
def test_scheduler_and_agents_are_weighed_separately(
    presence: Presence, liveness: tuple[Liveness, ...], expected: tuple[Liveness, Liveness]
) -> None:
    replicas = [a_replica(each, number) for number, each in enumerate(liveness)]
    evidence = weigh(a_situation(a_job(), an_attempt(nodes="2"), seen(presence, *replicas)))
    assert (evidence[Source.SCHEDULER], evidence[Source.AGENTS]) == expected


def test_progress_is_alive_within_the_limit_then_dead_and_unknown_without_a_report() -> None:
    for progress_at, expected in ((ago(1), A), (ago(611), D), (None, U)):
        s = a_situation(a_job(), an_attempt(), seen(Presence.RUNNING, a_replica(), progress_at=progress_at))
        assert weigh(s)[Source.PROGRESS] is expected


def test_exit_records_are_conclusive_once_every_replica_left_one() -> None:
    one, both = {0: an_exit(Outcome.SUCCEEDED)}, {0: an_exit(Outcome.SUCCEEDED), 1: an_exit(Outcome.SUCCEEDED)}
    for exits, expected in ((None, U), (one, A), (both, D)):
        s = a_situation(a_job(), an_attempt(nodes="2"), seen(Presence.RUNNING, exits=exits))
        assert weigh(s)[Source.EXITS] is expected


def test_an_attempt_that_is_not_live_has_no_evidence() -> None:
    assert weigh(a_situation(a_job(), an_attempt(AttemptState.LOST))) == {}


def all_observations() -> Iterator[Observation]:
    """Every combination of what two replicas, their records and their reports may show."""
    outcomes = (Outcome.SUCCEEDED, Outcome.FAILED, Outcome.PREEMPTED, Outcome.CANCELLED, Outcome.REFUSED)
    records = [an_exit(each, FailureKind.APPLICATION if each is Outcome.FAILED else None) for each in outcomes]
    pairs = [(a_replica(first), a_replica(second, 1)) for first, second in itertools.product(Liveness, repeat=2)]
    for presence in Presence:
        replicas: Sequence[tuple[ReplicaSighting, ...]] = (
            [()] if presence in (Presence.ABSENT, Presence.PENDING) else pairs
        )
        exits: Sequence[dict[int, ExitRecord]] = (
            [{}] if presence is Presence.ABSENT else [{}, *({0: record} for record in records)]
        )
        for those, left, progress_at in itertools.product(replicas, exits, (ago(1), ago(999), None)):
            yield seen(presence, *those, exits=left, progress_at=progress_at)


def test_no_decision_ends_an_attempt_without_a_source_that_says_dead_or_with_a_living_agent() -> None:
    spec = a_spec(topology={"nodes": "1:2"}, supervise={"max_runtime_s": 50})
    requests = (Desired(), Desired(cancelled=True), Desired(suspended=True), Desired(retry_number=1))
    jobs = [a_job(JobState.RUNNING, spec=spec, desired=request) for request in requests]
    states = (AttemptState.INTENDED, AttemptState.SUBMITTED, AttemptState.RUNNING)
    attempts = [
        an_attempt(state, nodes="1:2", stopping_since=since)
        for state, since in itertools.product(states, (None, ago(1), ago(99)))
    ]
    ended = 0
    for observation, attempt, job in itertools.product(all_observations(), attempts, jobs):
        s = a_situation(job, attempt, observation)
        if isinstance(decide(s).action, EndAttempt):
            ended += 1
            assert permits_end(weigh(s)), s
    assert ended > 100


@pytest.mark.parametrize(
    "observation",
    [
        seen(Presence.GONE, a_replica(A), exits={0: an_exit(Outcome.SUCCEEDED)}),
        seen(Presence.UNKNOWN, a_replica(U), progress_at=ago(9999)),
        None,
    ],
)
def test_the_actor_refuses_a_rule_that_ends_an_attempt_without_evidence(observation: Observation | None) -> None:
    actor = Actor(*(cast(Any, None) for _ in range(4)), ports=range(1))
    wrong = Decision(action=EndAttempt(AttemptState.LOST, JobState.RECOVERING), sentence="it is gone", rule="wrong")
    with pytest.raises(AssertionError, match="rule wrong ends an attempt on no evidence"):
        actor.act(a_situation(a_job(), an_attempt(), observation), wrong, ())
