"""When the step of a job without a script counts as over."""

from __future__ import annotations

from orchestrator.backends.slurm.steps import Steps
from orchestrator.domain.errors import BackendUnavailable

SETTLE_S = 30.0


class Listings:
    """Answers in order: the ids of the jobs that run a step, or None for no answer."""

    def __init__(self, *answers: set[int] | None) -> None:
        self.left = list(answers)
        self.steps = Steps(ask=self._ask, settle_s=SETTLE_S)

    def over(self, now: float, number: int = 12, *, listed_at: float | None = None) -> bool:
        return self.steps.are_over(number, listed_at=now if listed_at is None else listed_at, now=now)

    def _ask(self) -> frozenset[int]:
        answer = self.left.pop(0)
        if answer is None:
            raise BackendUnavailable("no answer")
        return frozenset(answer)


def test_a_step_is_over_after_records_had_time_to_appear() -> None:
    listings = Listings({12, 13}, {13}, set(), set())
    assert [listings.over(now) for now in (0, 10, 10 + SETTLE_S - 1, 10 + SETTLE_S)] == [False, False, False, True]


def test_no_answer_proves_nothing() -> None:
    listings = Listings(set(), None, set())
    assert [listings.over(now) for now in (0, SETTLE_S, SETTLE_S + 5)] == [False, False, True]


def test_a_step_that_is_listed_again_starts_the_wait_anew() -> None:
    listings = Listings(set(), {12}, set())
    assert [listings.over(now) for now in (0, SETTLE_S - 1, SETTLE_S)] == [False, False, False]


def test_slurm_is_asked_once_for_each_listing_of_jobs() -> None:
    listings = Listings(set(), set())
    assert not listings.over(5, 12, listed_at=4)
    assert not listings.over(6, 13, listed_at=4)
    assert len(listings.left) == 1
    assert not listings.over(7, 14, listed_at=7)
    assert listings.left == []
