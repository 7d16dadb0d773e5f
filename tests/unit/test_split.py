"""A step's time in words."""

from __future__ import annotations

import pytest

from orchestrator.domain.accounting.step_time import describe_split


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"step_s": 2.0, "compute_s": 1.8, "data_s": 0.04}, "computing 90%, data 2%"),
        ({"compute_s": 1.8}, ""),
        ({"step_s": 0.0, "compute_s": 0.0}, ""),
    ],
)
def test_shares_are_of_the_step(values: dict[str, float], words: str) -> None:
    assert describe_split(values) == words
