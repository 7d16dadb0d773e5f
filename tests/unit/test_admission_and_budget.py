"""Who may start, what a failure costs, how long to wait."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.domain.admission import admit, demand
from orchestrator.domain.budget import BUDGET_OF, backoff_s, charge, overspent
from orchestrator.domain.job import Job, JobState
from orchestrator.domain.observation import Training
from tests.unit.situations import NOW, a_job, a_spec, ago, an_attempt
from trainer.contract.failure import Failure, FailureKind


def a_waiting_job(name: str, workers: int, *, priority: int = 0, age: float = 0) -> Job:
    spec = a_spec(topology={"workers_per_node": workers}, priority=priority)
    return replace(a_job(JobState.QUEUED, spec=spec), id=name, created_at=ago(age))


def test_jobs_start_in_their_order_while_slots_last() -> None:
    jobs = [a_waiting_job("late", 2, age=1), a_waiting_job("early", 2, age=2)]
    verdicts = admit(jobs, slots=3, gpus_per_node=0)
    assert verdicts["early"].admitted
    assert not verdicts["late"].admitted
    assert "waits for 2 of 3 slots; 1 free now" in verdicts["late"].sentence


def test_a_small_job_does_not_overtake_a_large_one_for_ever() -> None:
    jobs = [a_waiting_job("large", 4, age=2), a_waiting_job("small", 1, age=1)]
    holder = replace(a_job(JobState.RUNNING), id="holder")
    verdicts = admit([*jobs, holder], slots=4, gpus_per_node=0)
    assert not verdicts["large"].admitted
    assert verdicts["small"].sentence == "waits behind large, which waits for slots"


def test_a_higher_priority_goes_first() -> None:
    jobs = [a_waiting_job("early", 2, age=9), a_waiting_job("urgent", 2, priority=5)]
    assert admit(jobs, slots=2, gpus_per_node=0)["urgent"].admitted


def test_a_recovering_job_keeps_its_slots() -> None:
    holder = replace(a_job(JobState.RECOVERING, spec=a_spec(topology={"workers_per_node": 2})), id="holder")
    assert not admit([holder, a_waiting_job("next", 1)], slots=2, gpus_per_node=0)["next"].admitted


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(-2, 2), st.sampled_from(list(JobState))), max_size=12),
    st.integers(1, 8),
)
def test_admitted_and_running_jobs_never_exceed_the_slots(jobs: list[tuple[int, int, JobState]], slots: int) -> None:
    everyone = [
        replace(a_waiting_job(f"job-{index}", workers, priority=priority), state=state)
        for index, (workers, priority, state) in enumerate(jobs)
    ]
    held = sum(demand(job, 0) for job in everyone if job.state.holds_slots)
    verdicts = admit(everyone, slots=slots, gpus_per_node=0)
    taken = sum(demand(job, 0) for job in everyone if job.id in verdicts and verdicts[job.id].admitted)
    assert taken <= max(0, slots - held)
    assert set(verdicts) == {job.id for job in everyone if job.state is JobState.QUEUED}


def spent_after(job: Job, failure: Failure, *, restarts: int = 0, ran_s: float = 1) -> dict[str, int]:
    return charge(job, an_attempt(started_at=ago(ran_s)), Training(restarts=restarts), failure, NOW).spent


def test_every_kind_of_failure_has_its_budget() -> None:
    assert set(BUDGET_OF) == set(FailureKind)


def test_a_taken_port_costs_nothing_and_another_trouble_of_the_rendezvous_does() -> None:
    taken = Failure(kind=FailureKind.RENDEZVOUS, message="port 20000 is already in use (EADDRINUSE)")
    unformed = Failure(kind=FailureKind.RENDEZVOUS, message="no rendezvous store answers")
    assert spent_after(a_job(), taken) == {}
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
