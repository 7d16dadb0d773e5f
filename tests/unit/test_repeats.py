"""The log of failures that repeat."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from structlog.testing import capture_logs

from orchestrator.supervisor.repeats import Repeats

NOON = datetime(2026, 11, 25, 12, tzinfo=UTC)


def minutes_told(reasons: list[str], *, every_s: float) -> list[float]:
    """The minutes at which a line was logged, for a failure every `every_s` seconds."""
    repeats, told = Repeats(), []
    for count, reason in enumerate(reasons):
        with capture_logs() as logs:
            repeats.warn("job left", reason, NOON + timedelta(seconds=count * every_s), job="train-1")
        told += [count * every_s / 60] * len(logs)
    return told


def test_a_repeated_failure_is_logged_after_doubling_pauses() -> None:
    assert minutes_told(["refused"] * 120 * 10, every_s=30) == [
        0,
        1,
        3,
        7,
        15,
        31,
        63,
        123,
        183,
        243,
        303,
        363,
        423,
        483,
        543,
    ]


def test_failures_that_differ_in_numbers_are_the_same() -> None:
    assert minutes_told([f"nothing was heard for {count} s" for count in range(180)], every_s=1) == [0, 1]


def test_another_failure_is_logged_at_once() -> None:
    assert minutes_told(["refused", "refused", "no answer", "no answer"], every_s=1) == [0, 2 / 60]


def test_each_job_has_its_own_line() -> None:
    repeats = Repeats()
    with capture_logs() as logs:
        for job in ("a", "b", "a", "b"):
            repeats.warn("job left", "refused", NOON, job=job)
    assert [each["job"] for each in logs] == ["a", "b"]


def test_a_line_counts_the_failures_since_the_last_one() -> None:
    repeats = Repeats()
    with capture_logs() as logs:
        for second in range(61):
            repeats.warn("job left", "refused", NOON + timedelta(seconds=second), job="a")
    assert [each.get("times") for each in logs] == [None, 60]


def test_after_a_lull_the_pauses_begin_anew() -> None:
    repeats = Repeats()
    with capture_logs() as logs:
        for seconds in (0, 301, 361):
            repeats.warn("job left", "refused", NOON + timedelta(seconds=seconds), job="a")
    assert [each.get("times") for each in logs] == [None, None, 1]


def test_a_lull_or_a_clock_that_was_set_back_starts_again() -> None:
    assert minutes_told(["refused"] * 3, every_s=301) == [0, 301 / 60, 602 / 60]
    repeats = Repeats()
    with capture_logs() as logs:
        repeats.warn("job left", "refused", NOON, job="a")
        repeats.warn("job left", "refused", NOON - timedelta(hours=5), job="a")
    assert len(logs) == 2
