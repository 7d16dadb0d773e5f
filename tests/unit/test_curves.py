"""When two loss curves are the same."""

from __future__ import annotations

import math

from orchestrator.cli.loss_curves import Comparison, compare_curves

FALLING = {1: 5.0, 2: 4.0, 3: 3.0}


def problems(compared: Comparison) -> list[str]:
    return list(compared.problems(tolerance=1e-6, least_fall=1.0))


def test_equal_curves_that_fall_have_no_problem() -> None:
    assert problems(compare_curves(FALLING, FALLING, steps=3)) == []


def test_the_largest_difference_is_told_with_its_step() -> None:
    compared = compare_curves(FALLING, {**FALLING, 2: 4.5}, steps=3)
    assert (compared.largest, compared.step) == (0.5, 2)
    assert problems(compared) == ["the curves differ by 0.5 at step 2, by more than 1e-06"]


def test_a_loss_that_is_no_number_is_a_difference() -> None:
    assert "nan at step 2" in problems(compare_curves(FALLING, {**FALLING, 2: math.nan}, steps=3))[0]


def test_a_missing_step_is_no_agreement() -> None:
    assert problems(compare_curves(FALLING, {1: 5.0, 3: 3.0}, steps=3)) == ["there is no loss for 1 steps, such as 2"]


def test_a_curve_that_does_not_fall_proves_nothing() -> None:
    flat = dict.fromkeys(range(1, 4), 5.0)
    assert problems(compare_curves(flat, flat, steps=3)) == ["the loss fell by 0.000 nats, not by more than 1"]
