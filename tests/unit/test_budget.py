"""The cost of a failure and the pause after it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.domain.job.job import Job
from orchestrator.domain.observation.observation import Training
from orchestrator.domain.policy.budget import (
    BUDGET_OF,
    backoff_s,
    charge,
    find_cost,
    hopeless,
    mark_at_launch,
    mark_repeated,
    overlong,
    overspent,
)
from tests.unit.situations import NOW, a_job, a_spec, ago, an_attempt
from trainer.contract.failure import Failure, FailureKind, parse_failure, render_failure

TRAINED = Training(step=50, step_s=1.0, progress_at=NOW)


def spent_after(job: Job, failure: Failure, *, restarts: int = 0, ran_s: float = 1) -> dict[str, int]:
    return charge(job, an_attempt(started_at=ago(ran_s)), Training(restarts=restarts), failure, NOW).spent


def test_every_kind_of_failure_has_its_budget() -> None:
    assert set(BUDGET_OF) == set(FailureKind)


def test_a_taken_port_costs_nothing_and_another_failure_of_the_rendezvous_does() -> None:
    taken = Failure(kind=FailureKind.RENDEZVOUS, message="port 20000 is already in use (EADDRINUSE)")
    unformed = Failure(kind=FailureKind.RENDEZVOUS, message="no rendezvous store answers")
    assert spent_after(a_job(), taken) == {"port": 1}
    assert spent_after(a_job(), unformed) == {"node": 1}


def test_restarts_in_place_and_the_end_are_both_charged() -> None:
    failure = Failure(kind=FailureKind.NODE, message="gone")
    assert spent_after(a_job(), failure, restarts=2) == {"application": 2, "node": 1}


def test_a_long_healthy_run_refunds_the_budgets() -> None:
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
    failure = Failure(kind=FailureKind.PREEMPTED, message="preempted")
    charged = charge(a_job(), an_attempt(), Training(restarts=1, shrinks=2), failure, NOW)
    assert charged.spent == {"application": 1, "node": 2, "preemption": 1}


def test_only_progress_refunds_the_budgets() -> None:
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


def test_training_of_an_attempt_that_was_never_seen_to_run_refunds_nothing() -> None:
    """The attempt's journals report progress, but the service does not know when it started."""
    failure = Failure(kind=FailureKind.NODE, message="gone")
    unseen = charge(a_job(spent={"node": 2}), an_attempt(started_at=None), TRAINED, failure, NOW)
    assert unseen.spent == {"node": 3}


def test_a_taken_port_ends_no_job_and_a_spent_budget_does() -> None:
    taken = Failure(kind=FailureKind.RENDEZVOUS, message="EADDRINUSE")
    assert overspent(a_job(spent={"port": 99, "node": 99}), taken) is None
    gone = Failure(kind=FailureKind.NODE, message="gone")
    spec = a_spec(supervise={"budgets": {"node": 1}})
    assert overspent(a_job(spec=spec, spent={"node": 1}), gone) is None
    assert overspent(a_job(spec=spec, spent={"node": 2}), gone) == "the budget of 1 node failure is spent"


def test_the_same_error_at_the_same_step_in_the_next_attempt_is_recognised() -> None:
    error = Failure(kind=FailureKind.APPLICATION, message="KeyError: 7", rank=1, step=40)
    job = charge(a_job(), an_attempt(), Training(step=40), error, NOW)
    assert job.last_failure == error
    assert mark_repeated(job, error, ran_s=5).repeated
    assert not mark_repeated(
        job, Failure(kind=FailureKind.APPLICATION, message="KeyError: 7", step=41), ran_s=5
    ).repeated
    assert not mark_repeated(
        job, Failure(kind=FailureKind.APPLICATION, message="ValueError", step=40), ran_s=5
    ).repeated
    lost = Failure(kind=FailureKind.NODE, message="gone")
    after_a_loss = charge(job, an_attempt(), Training(step=40), lost, NOW)
    assert after_a_loss.last_failure == error, "a lost node between two equal errors does not hide them"
    assert not mark_repeated(a_job(), error, ran_s=5).repeated
    assert not mark_repeated(
        job, Failure(kind=FailureKind.APPLICATION, message="KeyError: 7", step=39), ran_s=5
    ).repeated


def test_an_error_is_forgotten_once_an_attempt_gets_beyond_it() -> None:
    error = Failure(kind=FailureKind.APPLICATION, message="KeyError: 7", step=40)
    job = charge(a_job(), an_attempt(), Training(step=40), error, NOW)
    lost = Failure(kind=FailureKind.NODE, message="gone")
    assert charge(job, an_attempt(), Training(step=41), lost, NOW).last_failure is None
    assert charge(job, an_attempt(started_at=ago(61)), Training(), lost, NOW).last_failure is None
    assert charge(job, an_attempt(started_at=ago(59)), Training(), lost, NOW).last_failure == error


def test_repeated_progress_refunds_nothing() -> None:
    """Otherwise a job that stalls at the same step an hour after each restore would never end."""
    hang = Failure(kind=FailureKind.HANG, message="silent")
    again = Training(step=40, step_s=1.0, progress_at=ago(10))
    job = a_job(spent={"hang": 2}, farthest_step=40)
    assert charge(job, an_attempt(started_at=ago(4000)), again, hang, NOW).spent == {"hang": 3}
    farther = Training(step=41, step_s=1.0, progress_at=ago(10))
    charged = charge(job, an_attempt(started_at=ago(4000)), farther, hang, NOW)
    assert (charged.spent, charged.farthest_step) == ({"hang": 1}, 41)


def test_a_hang_before_the_first_step_refunds_nothing() -> None:
    """The time until it is noticed may exceed `refund_after_s`."""
    hang = Failure(kind=FailureKind.HANG, message="silent")
    assert spent_after(a_job(spent={"hang": 2}), hang, ran_s=1e6) == {"hang": 3}


def test_ports_that_are_taken_again_and_again_lead_to_a_pause() -> None:
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
        "it is a port of the program"
    )


def leaving(step: int, *, kept_s: float, began: int | None = None, **fields: Any) -> Training:
    """An attempt that started ten thousand seconds ago, with a newest snapshot of `step` after `kept_s` of training."""
    at = ago(10_000 - kept_s)
    usual = {"step": step, "step_s": 1.0, "progress_at": at, "kept_step": step, "kept_at": at}
    usual |= {"formed_at": ago(10_000), "snapshots": 1}
    return Training(began_step=began, **{**usual, **fields})


def after(job: Job, training: Training, failure: Failure | None, *, ran_s: float) -> Job:
    return charge(job, an_attempt(started_at=ago(10_000)), training, failure, ago(10_000 - ran_s))


DEADLINE = Failure(kind=FailureKind.TIMEOUT, message="it ended near its time limit of 120 s")


def test_a_time_limit_that_leaves_a_newer_snapshot_costs_nothing_however_often() -> None:
    job = a_job()
    for number in range(1, 30):
        training = leaving(10 * number, kept_s=40, began=10 * (number - 1) or None)
        job = after(job, training, DEADLINE, ran_s=70)
        assert job.spent == {}
        assert overspent(job, DEADLINE) is None
        assert (job.kept_step, job.fruitless) == (10 * number, 0)


def test_a_time_limit_that_leaves_nothing_new_costs_a_hang() -> None:
    nothing = Training(step=15, step_s=1.0, began_step=10)
    again = leaving(10, kept_s=40, began=10)
    damaged = leaving(20, kept_s=40, began=10)
    assert after(a_job(), nothing, DEADLINE, ran_s=70).spent == {"hang": 1}
    assert after(a_job(), again, DEADLINE, ran_s=70).spent == {"hang": 1}
    assert after(a_job(kept_step=20), damaged, DEADLINE, ran_s=70).spent == {"hang": 1}, "these steps were kept before"
    assert after(a_job(), leaving(20, kept_s=40, restarts=2), DEADLINE, ran_s=70).spent == {"application": 2}


@pytest.mark.parametrize("kind", sorted(set(FailureKind) - {FailureKind.TIMEOUT}))
def test_kept_steps_earn_back_the_charge_of_every_kind(kind: FailureKind) -> None:
    failure, spent = Failure(kind=kind, message="x"), {BUDGET_OF[kind]: 1}
    kept = leaving(500, kept_s=360)
    assert after(a_job(spent=spent), kept, failure, ran_s=720).spent == spent
    for training, ran_s in ((kept, 721), (leaving(500, kept_s=359), 400), (replace(kept, kept_step=None), 720)):
        assert after(a_job(spent=spent), training, failure, ran_s=ran_s).spent[BUDGET_OF[kind]] > 1


def test_failures_in_place_have_to_be_earned_back_too() -> None:
    """Otherwise a job that hangs for two minutes after every few seconds of work would never end."""
    hang = Failure(kind=FailureKind.HANG, message="silent for 130 s")
    hung = leaving(4, kept_s=3 * 135, restarts=3)
    assert after(a_job(), hung, hang, ran_s=4 * 135).spent == {"application": 3, "hang": 1}
    assert after(a_job(), leaving(4, kept_s=4 * 360, restarts=2, shrinks=1), hang, ran_s=4 * 400).spent == {}


def test_a_job_that_crashes_after_each_snapshot_ends() -> None:
    """The job makes progress but fails too often."""
    job, crash = a_job(), Failure(kind=FailureKind.APPLICATION, message="KeyError")
    for number in range(1, 5):
        assert overspent(job, crash) is None
        job = after(job, leaving(number, kept_s=60), crash, ran_s=65)
    assert overspent(job, crash) == "the budget of 3 application failures is spent"


def test_kept_training_adds_up_over_attempts_and_refunds_the_budgets() -> None:
    """With a time limit of half an hour, no attempt lasts `refund_after_s`."""
    job = after(a_job(), Training(), Failure(kind=FailureKind.APPLICATION, message="x"), ran_s=5)
    assert job.spent == {"application": 1}
    job = after(job, leaving(10, kept_s=1790), DEADLINE, ran_s=1800)
    assert (job.spent, job.kept_s) == ({"application": 1}, 1790)
    unrequested = after(job, Training(step=10, kept_step=10, kept_at=ago(1)), None, ran_s=100)
    assert unrequested.kept_s == 1790, "nothing new was kept"
    job = after(job, leaving(20, kept_s=1810), DEADLINE, ran_s=1830)
    assert (job.spent, job.kept_s) == ({}, 0)


def test_training_during_an_outage_of_the_service_counts_by_the_agents_clocks() -> None:
    """The service was away for two hours; five minutes of training were read when it came back."""
    crash = Failure(kind=FailureKind.APPLICATION, message="KeyError")
    charged = after(a_job(), leaving(10, kept_s=300), crash, ran_s=7200)
    assert (charged.kept_s, charged.spent) == (300, {"application": 1})
    wild = after(a_job(), leaving(10, kept_s=9000, progress_at=ago(9_600)), crash, ran_s=400)
    assert wild.kept_s == 400, "no longer than it ran"


def test_steps_of_an_attempt_that_was_never_seen_to_run_are_kept_and_earn_nothing() -> None:
    unseen = charge(a_job(), an_attempt(started_at=None), leaving(10, kept_s=4000), DEADLINE, NOW)
    assert (unseen.spent, unseen.kept_step, unseen.kept_s) == ({}, 10, 0)


@pytest.mark.parametrize("unknown", ["formed_at", "kept_at"])
def test_steps_that_took_an_unknown_time_are_kept_and_earn_nothing(unknown: str) -> None:
    charged = after(a_job(), leaving(10, kept_s=4000, **{unknown: None}), DEADLINE, ran_s=5000)
    assert (charged.spent, charged.kept_step, charged.kept_s) == ({}, 10, 0)


steps = st.one_of(st.none(), st.integers(0, 100))
seconds = st.floats(0, 9_000)


@given(
    st.dictionaries(st.sampled_from(sorted(set(BUDGET_OF.values()))), st.integers(0, 4)),
    steps,
    steps,
    st.integers(1, 101),
    seconds,
    seconds,
)
def test_an_attempt_that_kept_steps_never_lowers_a_budget_for_a_deadline(
    spent: dict[str, int], had: int | None, began: int | None, new: int, kept_s: float, lost_s: float
) -> None:
    step = max(had or 0, began or 0) + new
    job = a_job(spent=spent, kept_step=had)
    charged = after(job, leaving(step, kept_s=kept_s, began=began), DEADLINE, ran_s=kept_s + lost_s)
    assert all(count <= spent.get(budget, 0) for budget, count in charged.spent.items())
    assert overspent(job, DEADLINE) is not None or overspent(charged, DEADLINE) is None


@given(st.lists(st.tuples(st.booleans(), seconds, seconds), max_size=60))
def test_failures_that_cost_nothing_lose_at_most_half_of_the_time_and_are_at_most_ten_in_each_kept_hour(
    attempts: list[tuple[bool, float, float]],
) -> None:
    job, crash = a_job(), Failure(kind=FailureKind.HANG, message="silent")
    free: list[tuple[float, float]] = []
    for number, (keeps, kept_s, lost_s) in enumerate(attempts, start=1):
        training = leaving(number, kept_s=kept_s) if keeps else Training()
        cost = find_cost(job, an_attempt(started_at=ago(10_000)), training, crash, ago(10_000 - kept_s - lost_s))
        job = after(job, training, crash, ran_s=kept_s + lost_s)
        if not cost:
            free.append((kept_s, lost_s))
    refund_s = job.spec.supervise.refund_after_s
    assert sum(lost_s for _, lost_s in free) <= sum(kept_s for kept_s, _ in free) + 1e-3
    assert len(free) <= 10 * sum(kept_s for kept_s, _ in free) / refund_s + 1e-6


@pytest.mark.parametrize("kind", [FailureKind.INFRASTRUCTURE, FailureKind.UNKNOWN, FailureKind.LAUNCH])
def test_a_failure_before_any_worker_began_is_charged_to_launches(kind: FailureKind) -> None:
    failure = mark_at_launch(a_job(), Failure(kind=kind, message="its image cannot be pulled"), began=False)
    assert spent_after(a_job(), failure) == {"launch": 1}
    assert overspent(a_job(spent={"launch": 4}), failure) == "the budget of 3 launch failures is spent"
    assert parse_failure(render_failure(failure)) == failure


@pytest.mark.parametrize(
    ("kind", "budget"),
    [
        (FailureKind.NODE, "node"),
        (FailureKind.PREEMPTED, "preemption"),
        (FailureKind.RENDEZVOUS, "node"),
        (FailureKind.HANG, "hang"),
        (FailureKind.TIMEOUT, "hang"),
        (FailureKind.STORAGE, "storage"),
        (FailureKind.HOST_OOM, "application"),
    ],
)
def test_an_early_failure_of_these_kinds_is_no_failure_to_launch(kind: FailureKind, budget: str) -> None:
    failure = Failure(kind=kind, message="early")
    assert mark_at_launch(a_job(), failure, began=False) == failure
    assert spent_after(a_job(), failure) == {budget: 1}


def test_an_outage_after_a_job_has_trained_is_no_failure_to_launch() -> None:
    failure = Failure(kind=FailureKind.INFRASTRUCTURE, message="its image cannot be pulled")
    assert mark_at_launch(a_job(), failure, began=True) == failure
    trained = a_job(farthest_step=400)
    assert mark_at_launch(trained, failure, began=False) == failure
    assert spent_after(trained, failure) == {"node": 1}


def test_an_outage_after_the_workers_of_a_silent_program_began_is_no_failure_to_launch() -> None:
    outage = Failure(kind=FailureKind.INFRASTRUCTURE, message="its agent was never seen")
    silent = charge(a_job(), an_attempt(started_at=ago(900)), Training(formed_at=ago(890)), outage, NOW)
    assert mark_at_launch(silent, outage, began=False) == outage
    again = charge(silent, an_attempt(started_at=ago(4000)), Training(formed_at=ago(3990)), outage, NOW)
    assert again.spent == {"node": 1}, "the earlier charge is still refunded"


@pytest.mark.parametrize(
    ("kind", "repeated", "reason"),
    [
        (FailureKind.LAUNCH, False, "another attempt would not help"),
        (FailureKind.APPLICATION, True, "the same error occurred twice in a row"),
        (FailureKind.APPLICATION, False, None),
        (FailureKind.NODE, True, None),
    ],
)
def test_another_attempt_cannot_help_a_launch_or_an_error_that_occurred_twice(
    kind: FailureKind, repeated: bool, reason: str | None
) -> None:
    assert hopeless(a_job(), Failure(kind=kind, message="x", repeated=repeated)) == reason


def test_another_attempt_cannot_help_a_job_that_ran_as_long_as_its_owner_allows() -> None:
    job = a_job(spec=a_spec(supervise={"max_runtime_s": 100}))
    assert hopeless(job, overlong(job)) == "the owner set this limit"
    assert hopeless(job, DEADLINE) is None
