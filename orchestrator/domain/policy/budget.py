"""What a failure costs: its budget, and the pause before the next attempt.

docs/failures.md publishes the table.
"""

from __future__ import annotations

import zlib
from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta

from orchestrator.domain.counted import counted
from orchestrator.domain.job.attempt import Attempt
from orchestrator.domain.job.job import Job
from orchestrator.domain.observation.observation import Training
from trainer.contract.failure import Failure, FailureKind, is_taken_port
from trainer.contract.restart_policy import Setback, repeats

# The budget of the job's spec that a failure is charged to.
BUDGET_OF: dict[FailureKind, str] = {
    FailureKind.APPLICATION: "application",
    FailureKind.DEVICE_OOM: "application",
    FailureKind.HOST_OOM: "application",
    FailureKind.NUMERIC: "application",
    FailureKind.UNKNOWN: "application",
    FailureKind.LAUNCH: "launch",
    FailureKind.HANG: "hang",
    FailureKind.TIMEOUT: "hang",
    FailureKind.NODE: "node",
    FailureKind.INFRASTRUCTURE: "node",
    FailureKind.STORAGE: "storage",
    FailureKind.PREEMPTED: "preemption",
    FailureKind.RENDEZVOUS: "node",  # a taken port costs nothing, see budget_of
}

# A failure of these kinds is a failure to launch if it ends an attempt before any worker of the job has begun. A lost
# node, a preemption or a failed rendezvous is not, because the next attempt may get other nodes.
_OF_A_LAUNCH = frozenset({FailureKind.LAUNCH, FailureKind.INFRASTRUCTURE, FailureKind.UNKNOWN})

# An attempt of a program that reports no steps counts as fruitful if it ran this long.
FRUITFUL_S = 60.0
# The farthest step of a job whose workers have begun and have reported no step.
BEFORE_ANY_STEP = -1
# The most failures that cost nothing in each `refund_after_s` of kept training.
EARNED_AT_MOST = 10
# Taken ports are counted beside the budgets. After a few in a row the next attempt waits.
_PORTS, _PORTS_AT_ONCE = "port", 3


def budget_of(failure: Failure) -> str | None:
    """Return the budget that a failure is charged to. None for a taken port; the next attempt uses the next port."""
    if is_taken_port(failure):
        return None
    return "launch" if failure.at_launch else BUDGET_OF[failure.kind]


def mark_at_launch(job: Job, failure: Failure, *, began: bool) -> Failure:
    """Mark the failure as one at launch if no worker had begun, in this attempt (`began`) or in an earlier one.

    A job whose workers have once begun can start, so an outage during a later attempt must not end it early.
    """
    return replace(failure, at_launch=not began and job.farthest_step is None and failure.kind in _OF_A_LAUNCH)


def charge(job: Job, attempt: Attempt, training: Training, failure: Failure | None, now: datetime) -> Job:
    """Charge the job for an attempt that ends now, and set when the next attempt may start."""
    ran_s, kept_s = _measure_ran_s(attempt, now), _measure_kept_s(job, attempt, training, now)
    all_kept_s = job.kept_s + (kept_s or 0.0)
    enough = all_kept_s >= job.spec.supervise.refund_after_s
    refunded = enough or _refunded(job, attempt, training, failure, ran_s)
    spent = Counter({} if refunded else job.spent) + find_cost(job, attempt, training, failure, now)
    taken_port = failure is not None and is_taken_port(failure)
    free = failure is None or (taken_port and spent[_PORTS] <= _PORTS_AT_ONCE)
    fruitful = free or training.step_s is not None or ran_s >= FRUITFUL_S
    charged = replace(
        job,
        spent=dict(spent),
        fruitless=0 if fruitful else job.fruitless + 1,
        last_failure=_remembered(job, training, failure, ran_s),
        farthest_step=_farthest(job, training),
        kept_step=job.kept_step if kept_s is None else training.kept_step,
        kept_s=0.0 if refunded else all_kept_s,
    )
    return replace(charged, retry_at=now + timedelta(seconds=backoff_s(charged, attempt.key.number)))


def find_cost(job: Job, attempt: Attempt, training: Training, failure: Failure | None, now: datetime) -> Counter[str]:
    """Return what the attempt costs, by budget.

    Each restart in place costs one application failure, each shrink one node failure, and the end one failure of its
    own kind. An end by a time limit costs nothing if a snapshot kept steps. An attempt that earned its charge back
    costs nothing.
    """
    kept_s = _measure_kept_s(job, attempt, training, now)
    cost = Counter({_PORTS: 1} if failure is not None and is_taken_port(failure) else {})
    failures = training.restarts + training.shrinks + (failure is not None)
    if kept_s is not None and _earns_back(job, kept_s, _measure_ran_s(attempt, now), failures=failures):
        return cost
    cost += Counter(application=training.restarts, node=training.shrinks)
    budget = None if failure is None else budget_of(failure)
    if failure is not None and budget is not None and not (failure.kind is FailureKind.TIMEOUT and kept_s is not None):
        cost[budget] += 1
    return cost


def _farthest(job: Job, training: Training) -> int | None:
    began = None if training.formed_at is None else BEFORE_ANY_STEP
    return max((step for step in (job.farthest_step, training.step, began) if step is not None), default=None)


def mark_repeated(job: Job, failure: Failure, *, ran_s: float) -> Failure:
    """Mark the failure as repeated if the attempt before it ended with the same error at the same step."""
    last = job.last_failure
    if last is None or last.step != failure.step:
        return failure
    before = Setback(failure=last, step=last.step, ran_s=0.0)
    again = repeats(before, Setback(failure=failure, step=failure.step, ran_s=ran_s))
    return replace(failure, repeated=failure.repeated or again)


def _remembered(job: Job, training: Training, failure: Failure | None, ran_s: float) -> Failure | None:
    """Return the last failure of the application, until an attempt gets beyond it."""
    if failure is not None and budget_of(failure) == "application":
        return failure
    last = job.last_failure
    if last is None or (training.step is None and ran_s >= FRUITFUL_S):
        return None
    return None if training.step is not None and training.step > (last.step or 0) else last


def _refunded(job: Job, attempt: Attempt, training: Training, failure: Failure | None, ran_s: float) -> bool:
    """Whether the attempt made progress for `refund_after_s` and got farther than any attempt before it.

    A program that reports no steps only has to run so long. It must not have hung, because it may have done nothing.
    """
    if training.step_s is None or training.progress_at is None or attempt.started_at is None:
        hung = failure is not None and failure.kind is FailureKind.HANG
        return not hung and ran_s >= job.spec.supervise.refund_after_s
    healthy_s = (training.progress_at - attempt.started_at).total_seconds()
    farther = job.farthest_step is None or (training.step or 0) > job.farthest_step
    return farther and healthy_s >= job.spec.supervise.refund_after_s


def _measure_kept_s(job: Job, attempt: Attempt, training: Training, now: datetime) -> float | None:
    """Return seconds of training that the attempt's newest snapshot keeps. None if no snapshot keeps new steps.

    New steps are later than the attempt's first step and than every earlier snapshot of the job, so that steps repeated
    after a damaged snapshot do not count twice. Times are those of the agents' clocks, because journals written during
    an outage of the service arrive all at once. The result is at most the attempt's time by the service's clock.
    """
    before = max(training.began_step or 0, job.kept_step or 0)
    if training.kept_step is None or training.kept_step <= before:
        return None
    if training.kept_at is None or training.formed_at is None:
        return 0.0
    return min(max(0.0, (training.kept_at - training.formed_at).total_seconds()), _measure_ran_s(attempt, now))


def _earns_back(job: Job, kept_s: float, ran_s: float, *, failures: int) -> bool:
    """Whether the training that an attempt keeps pays for its failures.

    It has to keep at least half of its time, and a tenth of `refund_after_s` for each failure, including those in
    place. So a job that is never charged fails at most ten times in each `refund_after_s` of kept training.
    """
    least_s = max(1, failures) * job.spec.supervise.refund_after_s / EARNED_AT_MOST
    return kept_s >= ran_s - kept_s and kept_s >= least_s


def _measure_ran_s(attempt: Attempt, now: datetime) -> float:
    return 0.0 if attempt.started_at is None else (now - attempt.started_at).total_seconds()


def hopeless(job: Job, failure: Failure) -> str | None:
    """Return why another attempt cannot help, or None."""
    if failure.kind is FailureKind.LAUNCH:
        return "another attempt would not help"
    if failure == overlong(job):
        return "the owner set this limit"
    return (
        "the same error occurred twice in a row" if failure.repeated and budget_of(failure) == "application" else None
    )


def overlong(job: Job) -> Failure:
    """Return the failure of an attempt that exceeded the owner's own limit. A scheduler's limit costs a budget."""
    limit = job.spec.supervise.max_runtime_s
    return Failure(kind=FailureKind.TIMEOUT, message=f"it ran longer than max_runtime_s = {limit or 0:g}")


def overspent(job: Job, failure: Failure) -> str | None:
    """Return the reason to end the job, or None while its budget for this failure lasts."""
    budget = budget_of(failure)
    if budget is None:
        return None
    limit = getattr(job.spec.supervise.budgets, budget)
    if limit is None or job.spent.get(budget, 0) <= limit:
        return None
    return f"the budget of {counted(limit, f'{budget} failure')} is spent"


def backoff_s(job: Job, attempt_number: int) -> float:
    """Return the pause before the next attempt: 0 after one that trained or ran for long, then doubling, plus jitter.

    The jitter, up to 10 %, is computed from job and attempt. It spreads the jobs of one outage and keeps decisions
    repeatable.
    """
    if job.fruitless == 0:
        return 0.0
    first, last = job.spec.supervise.backoff_s
    base = min(last, first * 2.0 ** min(job.fruitless - 1, 30))
    return base * (1 + 0.1 * (zlib.crc32(f"{job.id}/{attempt_number}".encode()) % 1000) / 1000)


def longest_backoff(job: Job) -> timedelta:
    """Return the longest pause. One that ends later was set before the clock was set back."""
    return timedelta(seconds=1.1 * job.spec.supervise.backoff_s[1] + 1)
