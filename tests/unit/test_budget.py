"""What a failure costs, and how long to wait after it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.domain.budget import BUDGET_OF, backoff_s, charge, overspent, recognise
from orchestrator.domain.job import Job
from orchestrator.domain.observation import Training
from tests.unit.situations import NOW, a_job, a_spec, ago, an_attempt
from trainer.contract.failure import Failure, FailureKind

TRAINED = Training(step=50, step_s=1.0, progress_at=NOW)


def spent_after(job: Job, failure: Failure, *, restarts: int = 0, ran_s: float = 1) -> dict[str, int]:
    return charge(job, an_attempt(started_at=ago(ran_s)), Training(restarts=restarts), failure, NOW).spent


def test_every_kind_of_failure_has_its_budget() -> None:
    assert set(BUDGET_OF) == set(FailureKind)


def test_a_taken_port_costs_nothing_and_another_trouble_of_the_rendezvous_does() -> None:
    taken = Failure(kind=FailureKind.RENDEZVOUS, message="port 20000 is already in use (EADDRINUSE)")
    unformed = Failure(kind=FailureKind.RENDEZVOUS, message="no rendezvous store answers")
    assert spent_after(a_job(), taken) == {"port": 1}
    assert spent_after(a_job(), unformed) == {"node": 1}


def test_restarts_in_place_and_the_end_are_both_paid() -> None:
    failure = Failure(kind=FailureKind.NODE, message="gone")
    assert spent_after(a_job(), failure, restarts=2) == {"application": 2, "node": 1}


def test_a_long_healthy_run_gives_back_what_was_spent_before() -> None:
    job = a_job(spent={"application": 3})
    failure = Failure(kind=FailureKind.APPLICATION, message="x")
    assert spent_after(job, failure, ran_s=3600) == {"application": 1}
    assert spent_after(job, failure, ran_s=3599) == {"application": 4}


def test_no_limit_is_never_overspent() -> None:
    spec = a_spec(supervise={"budgets": {"application": None}})
    failure = Failure(kind=FailureKind.APPLICATION, message="x")
    assert overspent(a_job(spec=spec, spent={"application": 10**6}), failure) is None


@given(st.integers(1, 60))
def test_back_off_grows_to_its_limit_and_spreads_by_a_tenth(fruitless: int) -> None:
    pause = backoff_s(a_job(fruitless=fruitless), 7)
    base = min(300, 5 * 2 ** (fruitless - 1))
    assert base <= pause <= base * 1.1


def test_an_attempt_that_trained_is_followed_at_once_and_a_fruitless_one_after_a_pause() -> None:
    failure = Failure(kind=FailureKind.NODE, message="gone")
    short = an_attempt(started_at=ago(5))
    trained = charge(a_job(fruitless=3), short, Training(step=51, step_s=0.1), failure, NOW)
    assert (trained.fruitless, trained.retry_at) == (0, NOW)
    restored_only = charge(a_job(), short, Training(step=50), failure, NOW)
    assert restored_only.fruitless == 1
    assert restored_only.retry_at is not None
    assert (restored_only.retry_at - NOW).total_seconds() >= 5
    assert charge(a_job(), an_attempt(started_at=ago(61)), Training(), failure, NOW).fruitless == 0
    ended_by_us = charge(a_job(fruitless=3), short, Training(step=50), None, NOW)
    assert (ended_by_us.fruitless, ended_by_us.spent) == (0, {})


def test_a_group_that_shrank_is_charged_to_the_nodes() -> None:
    failure = Failure(kind=FailureKind.PREEMPTED, message="told to go")
    charged = charge(a_job(), an_attempt(), Training(restarts=1, shrinks=2), failure, NOW)
    assert charged.spent == {"application": 1, "node": 2, "preemption": 1}


def test_only_progress_gives_back_what_was_spent() -> None:
    """An attempt that stalled for an hour was not healthy for an hour."""
    failure = Failure(kind=FailureKind.HANG, message="silent")
    stalled = Training(step_s=1.0, progress_at=ago(3590))
    assert charge(a_job(spent={"hang": 2}), an_attempt(started_at=ago(3700)), stalled, failure, NOW).spent == {
        "hang": 3
    }
    healthy = Training(step_s=1.0, progress_at=ago(10))
    assert charge(a_job(spent={"hang": 2}), an_attempt(started_at=ago(3700)), healthy, failure, NOW).spent == {
        "hang": 1
    }


def test_what_trained_before_anybody_saw_its_agent_gives_nothing_back() -> None:
    """Its journals tell of progress, but not since when it ran."""
    failure = Failure(kind=FailureKind.NODE, message="gone")
    unseen = charge(a_job(spent={"node": 2}), an_attempt(started_at=None), TRAINED, failure, NOW)
    assert unseen.spent == {"node": 3}


def test_a_taken_port_ends_no_job_and_a_spent_budget_does() -> None:
    taken = Failure(kind=FailureKind.RENDEZVOUS, message="EADDRINUSE")
    assert overspent(a_job(spent={"port": 99, "node": 99}), taken) is None
    gone = Failure(kind=FailureKind.NODE, message="gone")
    spec = a_spec(supervise={"budgets": {"node": 1}})
    assert overspent(a_job(spec=spec, spent={"node": 1}), gone) is None
    assert overspent(a_job(spec=spec, spent={"node": 2}), gone) == "its budget of 1 node failure is spent"


def test_the_same_error_at_the_same_step_in_the_next_attempt_is_recognised() -> None:
    error = Failure(kind=FailureKind.APPLICATION, message="KeyError: 7", rank=1, step=40)
    job = charge(a_job(), an_attempt(), Training(step=40), error, NOW)
    assert job.last_failure == error
    assert recognise(job, error, ran_s=5).repeated
    assert not recognise(job, Failure(kind=FailureKind.APPLICATION, message="KeyError: 7", step=41), ran_s=5).repeated
    assert not recognise(job, Failure(kind=FailureKind.APPLICATION, message="ValueError", step=40), ran_s=5).repeated
    lost = Failure(kind=FailureKind.NODE, message="gone")
    after_a_loss = charge(job, an_attempt(), Training(step=40), lost, NOW)
    assert after_a_loss.last_failure == error, "a lost node between two equal errors does not hide them"
    assert not recognise(a_job(), error, ran_s=5).repeated
    assert not recognise(job, Failure(kind=FailureKind.APPLICATION, message="KeyError: 7", step=39), ran_s=5).repeated


def test_an_error_that_an_attempt_got_beyond_is_forgotten() -> None:
    error = Failure(kind=FailureKind.APPLICATION, message="KeyError: 7", step=40)
    job = charge(a_job(), an_attempt(), Training(step=40), error, NOW)
    lost = Failure(kind=FailureKind.NODE, message="gone")
    assert charge(job, an_attempt(), Training(step=41), lost, NOW).last_failure is None
    assert charge(job, an_attempt(started_at=ago(61)), Training(), lost, NOW).last_failure is None
    assert charge(job, an_attempt(started_at=ago(59)), Training(), lost, NOW).last_failure == error


def test_progress_that_was_made_before_refunds_nothing() -> None:
    """A job that stalls at the same step an hour after each restore would go on for ever."""
    hang = Failure(kind=FailureKind.HANG, message="silent")
    again = Training(step=40, step_s=1.0, progress_at=ago(10))
    job = a_job(spent={"hang": 2}, farthest_step=40)
    assert charge(job, an_attempt(started_at=ago(4000)), again, hang, NOW).spent == {"hang": 3}
    farther = Training(step=41, step_s=1.0, progress_at=ago(10))
    charged = charge(job, an_attempt(started_at=ago(4000)), farther, hang, NOW)
    assert (charged.spent, charged.farthest_step) == ({"hang": 1}, 41)


def test_a_hang_before_the_first_step_refunds_nothing() -> None:
    """Its deadline alone may be longer than what counts as healthy progress."""
    hang = Failure(kind=FailureKind.HANG, message="silent")
    assert spent_after(a_job(spent={"hang": 2}), hang, ran_s=1e6) == {"hang": 3}


def test_a_port_that_is_taken_again_and_again_is_tried_after_a_pause() -> None:
    taken = Failure(kind=FailureKind.RENDEZVOUS, message="port 20000 is already in use (EADDRINUSE)")
    job = a_job()
    for count in (1, 2, 3):
        job = charge(job, an_attempt(started_at=ago(5)), Training(), taken, NOW)
        assert (job.spent, job.retry_at) == ({"port": count}, NOW)
    job = charge(job, an_attempt(started_at=ago(5)), Training(), taken, NOW)
    assert job.fruitless == 1
    assert overspent(job, taken) is None
    own = Failure(kind=FailureKind.RENDEZVOUS, message="EADDRINUSE", rank=0)
    assert charge(a_job(), an_attempt(started_at=ago(5)), Training(), own, NOW).spent == {"node": 1}, (
        "a program's own port is not ours"
    )
