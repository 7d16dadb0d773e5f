"""Submissions that the cluster does not permit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.job import Desired, JobState
from orchestrator.domain.observation.observation import Presence
from orchestrator.domain.policy.decide import decide
from orchestrator.domain.policy.decision import EndAttempt, Submit, Wait
from orchestrator.domain.policy.situation import Situation
from tests.unit.situations import a_job, a_situation, ago, an_attempt, seen

WORDS = "jobs.batch is forbidden"


def situation(
    created_s: float, tried_s: float, *, permitted: bool = False, desired: Desired | None = None
) -> Situation:
    attempt = an_attempt(
        AttemptState.INTENDED,
        created_at=ago(created_s),
        tried_at=ago(tried_s),
        started_at=None,
        not_permitted=None if permitted else WORDS,
    )
    job = a_job(JobState.STARTING, desired=desired or Desired())
    return a_situation(job, attempt, seen(Presence.ABSENT), submit_timeout_s=70, repeat_s=10)


@pytest.mark.parametrize(
    ("created_s", "tried_s", "again"),
    [(9, 9, False), (10, 10, True), (39, 19, False), (40, 20, True), (3600, 59, False), (3600, 60, True)],
)
def test_a_submission_is_repeated_after_growing_pauses_of_at_most_a_minute(
    created_s: float, tried_s: float, again: bool
) -> None:
    decision = decide(situation(created_s, tried_s))
    assert isinstance(decision.action, Submit if again else Wait)
    if not again:
        assert decision.sentence == f"waits: {WORDS}"
        assert decision.look_again_at is not None


@pytest.mark.parametrize(
    ("desired", "stands"),
    [
        (Desired(number=1, cancelled=True), JobState.CANCELLED),
        (Desired(number=1, suspended=True), JobState.SUSPENDED),
    ],
)
def test_cancel_and_suspend_take_effect_at_once_if_nothing_was_submitted(desired: Desired, stands: JobState) -> None:
    decision = decide(situation(2, 1, desired=desired))
    assert decision.action == EndAttempt(AttemptState.CANCELLED, stands)
    under_way = decide(situation(2, 1, permitted=True, desired=desired))
    assert not isinstance(under_way.action, EndAttempt)


def test_a_submission_that_was_accepted_after_all_is_stopped_first() -> None:
    s = situation(2, 1, desired=Desired(number=1, cancelled=True))
    assert s.live is not None
    running = replace(s, live=replace(s.live, seen=seen(Presence.RUNNING)))
    assert not isinstance(decide(running).action, EndAttempt)
