"""One row per rule of `trainer.contract.restart_policy`."""

from __future__ import annotations

from dataclasses import replace

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


def setback(failure: Failure = ERROR, step: int | None = 10, ran_s: float = 5.0) -> Setback:
    return Setback(failure=failure, step=step, ran_s=ran_s)


def decide(*setbacks: Setback, restarts: int = 0, max_restarts: int = 3) -> RestartDecision:
    return decide_restart(RestartSituation(setbacks=setbacks, restarts=restarts, max_restarts=max_restarts))


def test_a_first_failure_is_restarted_within_the_budget() -> None:
    assert decide(setback()).restart


def test_a_missing_file_is_never_restarted() -> None:
    decision = decide(setback(replace(ERROR, kind=FailureKind.LAUNCH, message="no such script")))
    assert not decision.restart
    assert "no such script" in decision.sentence


def test_a_spent_budget_ends_the_attempt() -> None:
    assert not decide(setback(), restarts=3).restart
    assert "off" in decide(setback(), max_restarts=0).sentence


def test_the_same_error_without_a_step_between_is_given_up_and_told() -> None:
    decision = decide(setback(), setback(), restarts=1)
    assert not decision.restart
    assert "twice in a row with no step beyond 10" in decision.sentence


def test_the_same_error_after_progress_is_restarted() -> None:
    assert decide(setback(step=10), setback(step=11), restarts=1).restart


def test_going_back_to_a_snapshot_is_not_progress() -> None:
    assert not decide(setback(step=12), setback(step=11), restarts=1).restart


def test_another_error_at_the_same_step_is_restarted() -> None:
    assert decide(setback(), setback(replace(ERROR, message="KeyError: 'x'", traceback=None)), restarts=1).restart


def test_an_error_that_differs_by_numbers_only_is_the_same() -> None:
    other = replace(ERROR, message="ValueError: rank 0 read 4 bytes", rank=0, traceback=None)
    assert fingerprint(replace(ERROR, traceback=None)) == fingerprint(other)


def test_workers_that_report_no_steps_show_progress_by_staying_up() -> None:
    assert repeats(setback(step=None), setback(step=None, ran_s=59.0))
    assert not repeats(setback(step=None), setback(step=None, ran_s=61.0))


def test_kills_and_lost_peers_are_bounded_by_the_budget_alone() -> None:
    for failure in (KILLED, BEREFT):
        assert decide(setback(failure), setback(failure), restarts=1).restart
        assert not decide(setback(failure), setback(failure), restarts=3).restart
