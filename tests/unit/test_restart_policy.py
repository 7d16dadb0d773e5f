"""One row per rule of `trainer.contract.restart_policy`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from trainer.contract.failure import Failure, FailureKind
from trainer.contract.restart_policy import (
    RestartDecision,
    RestartSituation,
    Setback,
    decide_restart,
    fingerprint,
    repeats,
)

ERROR = Failure(
    kind=FailureKind.APPLICATION,
    message="ValueError: rank 3 read 17 bytes",
    rank=3,
    exit_code=1,
    traceback='Traceback (most recent call last):\n  File "a.py", line 4, in main\nValueError: rank 3 read 17 bytes',
)
KILLED = Failure(kind=FailureKind.UNKNOWN, message="the worker was killed by SIGKILL", signal="SIGKILL", exit_code=-9)
BEREFT = replace(ERROR, message="RuntimeError: Connection closed by peer [127.0.0.1]:51", traceback=None)


def setback(failure: Failure = ERROR, step: int | None = 10, ran_s: float = 5.0, *, charged: bool = True) -> Setback:
    return Setback(failure=failure, step=step, ran_s=ran_s, charged=charged)


def decide(
    *setbacks: Setback, max_restarts: int = 3, refund_after_s: float = 3600.0, may_shrink: bool = False
) -> RestartDecision:
    return decide_restart(
        RestartSituation(
            setbacks=setbacks, max_restarts=max_restarts, refund_after_s=refund_after_s, may_shrink=may_shrink
        )
    )


def kills(*steps: int, **options: Any) -> list[Setback]:
    """Kills, each after some progress, so that only the budget bounds them."""
    return [setback(KILLED, step, **options) for step in steps]


def test_a_first_failure_is_restarted_within_the_budget() -> None:
    assert decide(setback()).restart


def test_a_missing_file_is_never_restarted() -> None:
    decision = decide(setback(replace(ERROR, kind=FailureKind.LAUNCH, message="no such script")))
    assert not decision.restart
    assert "no such script" in decision.sentence


def test_a_spent_budget_ends_the_attempt() -> None:
    assert decide(*kills(1, 2, 3)).restart
    assert not decide(*kills(1, 2, 3, 4)).restart
    assert "off" in decide(setback(), max_restarts=0).sentence


def test_the_same_error_without_a_step_between_is_given_up_and_told() -> None:
    decision = decide(setback(), setback())
    assert not decision.restart
    assert "twice in a row at step 11, with no step beyond 10" in decision.sentence
    decision = decide(setback(step=None, ran_s=2.0), setback(step=None, ran_s=41.3))
    assert "twice in a row, the second time after 41 s, and no step was reported: " in decision.sentence
    decision = decide(setback(step=None, ran_s=2.0), replace(setback(step=None, ran_s=8.0), silent_s=8.1))
    assert "the second time after 0 s" in decision.sentence


def test_the_same_error_after_progress_is_restarted() -> None:
    assert decide(setback(step=10), setback(step=11)).restart


def test_going_back_to_a_snapshot_is_not_progress() -> None:
    assert not decide(setback(step=12), setback(step=11)).restart


def test_another_error_at_the_same_step_is_restarted() -> None:
    assert decide(setback(), setback(replace(ERROR, message="KeyError: 'x'", traceback=None))).restart


def test_an_error_that_differs_by_numbers_only_is_the_same() -> None:
    other = replace(ERROR, message="ValueError: rank 0 read 4 bytes", rank=0, traceback=None)
    assert fingerprint(replace(ERROR, traceback=None)) == fingerprint(other)


def test_workers_that_report_no_steps_show_progress_by_staying_up() -> None:
    assert repeats(setback(step=None), setback(step=None, ran_s=59.0))
    assert not repeats(setback(step=None), setback(step=None, ran_s=61.0))


@pytest.mark.parametrize(
    ("ran_s", "silent_s", "repeated"), [(9000.0, None, True), (959.0, 900.0, True), (961.0, 900.0, False)]
)
def test_a_hang_repeats_unless_the_workers_are_known_to_have_run_before_it(ran_s, silent_s, repeated) -> None:
    hang = Failure(kind=FailureKind.HANG, message="no worker did anything", rank=1)
    assert repeats(setback(hang, None), Setback(failure=hang, step=None, ran_s=ran_s, silent_s=silent_s)) is repeated


def test_kills_and_lost_peers_are_bounded_by_the_budget_alone() -> None:
    for failure in (KILLED, BEREFT):
        assert decide(setback(failure), setback(failure)).restart
        assert not decide(*[setback(failure)] * 4).restart


def test_an_hour_of_progress_refunds_the_restarts_before_it() -> None:
    early = kills(1, 2, 3)
    assert not decide(*early, setback(KILLED, 900, ran_s=3599.0)).restart
    decision = decide(*early, setback(KILLED, 900, ran_s=3600.0))
    assert decision.restart
    assert decision.sentence == "restart 1 of at most 3 in place"
    assert not decide(*early, setback(KILLED, 900, ran_s=3600.0), *kills(901, 902, 903)).restart
    assert not decide(*early, setback(KILLED, 900, ran_s=9e9), refund_after_s=0.0).restart


def test_an_hour_without_a_step_refunds_nothing() -> None:
    assert not decide(*kills(1, 2, 3), setback(KILLED, 3, ran_s=7200.0)).restart


def test_an_hour_that_ended_in_a_hang_before_the_first_step_refunds_nothing() -> None:
    silent = Failure(kind=FailureKind.HANG, message="silent")
    hangs = [Setback(failure=silent, step=None, ran_s=7200.0) for _ in range(4)]
    assert not decide(*hangs).restart


def test_a_lost_peer_reforms_an_elastic_group_even_when_the_budget_is_spent() -> None:
    spent = kills(1, 2, 3)
    assert decide(*spent, setback(BEREFT), may_shrink=True).restart
    assert not decide(*spent, setback(BEREFT), may_shrink=False).restart
    assert not decide(*spent, setback(KILLED), may_shrink=True).restart


def test_a_shrunk_group_has_spent_nothing_and_one_that_came_back_whole_has() -> None:
    shrunk, whole = (setback(BEREFT, charged=charged) for charged in (False, True))
    assert decide(*[shrunk] * 9, setback(BEREFT), may_shrink=True, max_restarts=0).restart
    assert decide(*[shrunk] * 9, setback(KILLED), max_restarts=1).restart
    assert not decide(whole, setback(BEREFT), may_shrink=True, max_restarts=0).restart
