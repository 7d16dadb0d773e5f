"""A preflight's verdicts on its measurements."""

from __future__ import annotations

import pytest

from trainer.contract.verdict import (
    Outcome,
    Ping,
    Verdict,
    bus_bandwidth,
    clock_offset,
    judge_clocks,
    parse_verdict,
    render_verdict,
)


def test_the_quickest_ping_tells_the_offset() -> None:
    slow = Ping(asked_at=10.0, heard_at=13.9, answered_at=14.0)  # delayed on the way to the peer
    quick = Ping(asked_at=20.0, heard_at=22.01, answered_at=20.02)
    assert clock_offset([slow, quick]) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("offsets", "outcome"),
    [
        ({}, Outcome.SKIPPED),
        ({"b": 0.01, "c": -0.02}, Outcome.OK),
        ({"b": 0.01, "c": -0.2}, Outcome.WARN),
        ({"b": 7200.0}, Outcome.FAIL),
    ],
)
def test_clocks_are_judged_by_the_worst(offsets: dict[str, float], outcome: Outcome) -> None:
    assert judge_clocks(offsets).outcome is outcome


def test_the_worst_clock_is_named() -> None:
    assert "-200.0 ms, on c" in judge_clocks({"b": 0.15, "c": -0.2}).sentence


def test_bus_bandwidth_is_that_of_nccl_tests() -> None:
    assert bus_bandwidth(1_000_000_000, 1.0, 8) == pytest.approx(1.75e9)
    assert bus_bandwidth(1_000_000_000, 1.0, 2) == pytest.approx(1.0e9)


def test_a_verdict_is_read_from_its_line_in_a_log() -> None:
    verdict = Verdict(check="names", outcome=Outcome.WARN, sentence="a knows\nno name")
    line = f"[0] {render_verdict(verdict)}"
    assert parse_verdict(line) == Verdict(check="names", outcome=Outcome.WARN, sentence="a knows no name")
    assert parse_verdict("preflight: names perhaps: x") is None
