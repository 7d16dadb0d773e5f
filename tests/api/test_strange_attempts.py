"""A stranger who names an attempt that no database can look for is a stranger like any other."""

from __future__ import annotations

import pytest

from orchestrator.api.agents import find_attempt, parse_attempt

NUMBERS = (2**31, 9_999_999_999)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_number_beyond_the_columns_is_no_attempts(number: int) -> None:
    """PostgreSQL answered `integer out of range`: a 500 with 6 kB of log for each request, and no guess was counted."""
    assert parse_attempt(f"job-1/{number}") is None
    assert find_attempt(f'{{"job_id": "job-1", "attempt": {number}}}'.encode()) is None


def test_the_greatest_number_is_one() -> None:
    found = parse_attempt(f"job-1/{2**31 - 1}")
    assert found is not None
    assert found.number == 2**31 - 1
