"""The small curves of the list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import pytest

from orchestrator.dashboard import sparks
from orchestrator.dashboard.sparks import Sparks
from orchestrator.queries.job_queries import Queries


class Losses:
    """A loss for each step of every job except `quiet`."""

    def __init__(self) -> None:
        self.asked: list[dict[str, int]] = []

    def losses(self, ends: Mapping[str, int], *, points: int) -> Mapping[str, Sequence[float]]:
        self.asked.append(dict(ends))
        return {job_id: [1.0 / (1 + step) for step in range(end)] for job_id, end in ends.items() if job_id != "quiet"}


@pytest.fixture
def losses() -> Losses:
    return Losses()


@pytest.fixture
def drawn(losses: Losses) -> Sparks:
    return Sparks(cast("Queries", losses))


def ends(steps: Mapping[str, int], loss: float = 0.5) -> dict[str, tuple[int, float]]:
    return {job_id: (step, loss) for job_id, step in steps.items()}


def test_a_curve_is_drawn_again_after_another_step(losses: Losses, drawn: Sparks) -> None:
    first = drawn.draw(ends({"a": 2, "b": 3}))
    assert first["a"].count(",") == 2
    assert drawn.draw(ends({"a": 2, "b": 3})) == first
    assert drawn.draw(ends({"a": 4, "b": 3}))["a"].count(",") == 4
    assert losses.asked == [{"a": 2, "b": 3}, {"a": 4}]


def test_a_curve_is_drawn_again_for_another_loss_at_the_same_step(losses: Losses, drawn: Sparks) -> None:
    drawn.draw(ends({"a": 2}))
    drawn.draw(ends({"a": 2}, loss=0.4))
    assert losses.asked == [{"a": 2}, {"a": 2}]


def test_jobs_with_fewer_than_two_losses_have_no_curve(drawn: Sparks) -> None:
    assert drawn.draw(ends({"young": 1, "quiet": 9, "a": 2})).keys() == {"a"}
    assert drawn.draw(ends({"young": 1, "quiet": 9, "a": 2})).keys() == {"a"}


def test_the_number_of_cached_curves_is_bounded(losses: Losses, drawn: Sparks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparks, "_KEPT", 2)
    for _ in range(2):
        assert drawn.draw(ends({"a": 2, "b": 2, "c": 2})).keys() == {"a", "b", "c"}
    drawn.draw(ends({"d": 2}))
    drawn.draw(ends({"d": 2}))
    assert losses.asked[1:] == [{"d": 2}]
