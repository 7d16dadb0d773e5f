"""What a failure costs: the table from its kind to a budget, and how long to wait before the next attempt.

The table is published in docs/failures.md.
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

# Which budget of the job's spec pays for an ended attempt.
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
    FailureKind.RENDEZVOUS: "node",  # but a taken port costs nothing, see budget_of
}

# A failure of these kinds that ends an attempt before any worker of the job has begun is a failure to launch. A lost
# node, a preemption and a failed rendezvous are not: the next attempt may find other nodes, or the same ones healthy.
_OF_A_LAUNCH = frozenset({FailureKind.LAUNCH, FailureKind.INFRASTRUCTURE, FailureKind.UNKNOWN})

# An attempt of a program that tells no steps counts as fruitful when it lived this long.
FRUITFUL_S = 60.0
# The farthest step of a job whose workers have begun, and have told no step.
BEFORE_ANY_STEP = -1
# At most so many failures cost nothing in each `refund_after_s` of kept training.
EARNED_AT_MOST = 10
# Taken ports are counted beside the budgets: after a few in a row it is no bad luck any more, and a pause is due.
_PORTS, _PORTS_AT_ONCE = "port", 3


def budget_of(failure: Failure) -> str | None:
    """The budget that pays for a failure; None for a taken port, since the next attempt takes the next one."""
    if is_taken_port(failure):
        return None
    return "launch" if failure.at_launch else BUDGET_OF[failure.kind]


def mark_at_launch(job: Job, failure: Failure, *, began: bool) -> Failure:
    """The failure, marked as one at launch if the attempt ended before any worker had begun. `began`: a worker had.

    A job whose workers have begun can start. An outage during its next attempts is no reason to give it up early.
    """
    return replace(failure, at_launch=not began and job.farthest_step is None and failure.kind in _OF_A_LAUNCH)


def charge(job: Job, attempt: Attempt, training: Training, failure: Failure | None, now: datetime) -> Job:
    """The job with its account after an attempt that ends now: what is spent, and when the next attempt may start."""
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
    """What the attempt costs, by budget.

    A restart in place counts as a failure of the application, a shrink as one of a node, the end as one of its own
    class. An end by a time limit costs nothing if the attempt kept steps. An attempt that earned its charge back costs
    nothing at all.
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


def recognise(job: Job, failure: Failure, *, ran_s: float) -> Failure:
    """The failure, marked as repeated where an attempt before ended with the same error at the same step."""
    last = job.last_failure
    if last is None or last.step != failure.step:
        return failure
    before = Setback(failure=last, step=last.step, ran_s=0.0)
    again = repeats(before, Setback(failure=failure, step=failure.step, ran_s=ran_s))
    return replace(failure, repeated=failure.repeated or again)


def _remembered(job: Job, training: Training, failure: Failure | None, ran_s: float) -> Failure | None:
    """The last failure of the application, until an attempt gets beyond it."""
    if failure is not None and budget_of(failure) == "application":
        return failure
    last = job.last_failure
    if last is None or (training.step is None and ran_s >= FRUITFUL_S):
        return None
    return None if training.step is not None and training.step > (last.step or 0) else last


def _refunded(job: Job, attempt: Attempt, training: Training, failure: Failure | None, ran_s: float) -> bool:
    """Whether the attempt made progress for `refund_after_s`, and got farther than any before it.

    Of a program that tells no steps, whether it ran so long, unless it hung: then nobody knows for how long it did.
    """
    if training.step_s is None or training.progress_at is None or attempt.started_at is None:
        hung = failure is not None and failure.kind is FailureKind.HANG
        return not hung and ran_s >= job.spec.supervise.refund_after_s
    healthy_s = (training.progress_at - attempt.started_at).total_seconds()
    farther = job.farthest_step is None or (training.step or 0) > job.farthest_step
    return farther and healthy_s >= job.spec.supervise.refund_after_s


def _measure_kept_s(job: Job, attempt: Attempt, training: Training, now: datetime) -> float | None:
    """Seconds of training that the attempt keeps, by its newest snapshot; None if no snapshot keeps new steps.

    New steps are later than the step that the attempt began with, and than every earlier snapshot of the job: steps
    that are repeated because a snapshot was damaged do not count twice. Times are of the agents' clocks, because
    journals that were written during an outage of the service arrive all at once. At most the attempt's time by our
    clock.
    """
    before = max(training.began_step or 0, job.kept_step or 0)
    if training.kept_step is None or training.kept_step <= before:
        return None
    if training.kept_at is None or training.formed_at is None:
        return 0.0
    return min(max(0.0, (training.kept_at - training.formed_at).total_seconds()), _measure_ran_s(attempt, now))


def _earns_back(job: Job, kept_s: float, ran_s: float, *, failures: int) -> bool:
    """Whether an attempt costs nothing because of the training that it keeps: at least half of its time, and at least a
    tenth of `refund_after_s` for each of its failures, those in place too.

    So a job that fails after every snapshot keeps at least half of its time, and fails at most ten times in each
    `refund_after_s` of kept training. A job that fails faster is charged.
    """
    least_s = max(1, failures) * job.spec.supervise.refund_after_s / EARNED_AT_MOST
    return kept_s >= ran_s - kept_s and kept_s >= least_s


def _measure_ran_s(attempt: Attempt, now: datetime) -> float:
    return 0.0 if attempt.started_at is None else (now - attempt.started_at).total_seconds()


def hopeless(job: Job, failure: Failure) -> str | None:
    """Why no further attempt can fix it: the program is missing, has had its time, or failed the same way twice."""
    if failure.kind is FailureKind.LAUNCH:
        return "another attempt would not help"
    if failure == overlong(job):
        return "the limit is the owner's own"
    return "the same error twice in a row" if failure.repeated and budget_of(failure) == "application" else None


def overlong(job: Job) -> Failure:
    """The failure of an attempt that its owner's own limit ended; a scheduler's limit costs a budget instead."""
    limit = job.spec.supervise.max_runtime_s
    return Failure(kind=FailureKind.TIMEOUT, message=f"it ran longer than max_runtime_s = {limit or 0:g}")


def overspent(job: Job, failure: Failure) -> str | None:
    """The sentence that ends the job, or None while its budget for such a failure lasts."""
    budget = budget_of(failure)
    if budget is None:
        return None
    limit = getattr(job.spec.supervise.budgets, budget)
    if limit is None or job.spent.get(budget, 0) <= limit:
        return None
    return f"the budget of {counted(limit, f'{budget} failure')} is spent"


def backoff_s(job: Job, attempt_number: int) -> float:
    """Seconds before the next attempt: none after an attempt that trained, then doubling, with up to a tenth of jitter.

    The jitter comes from job and attempt, so that the jobs of one outage spread and a decision stays repeatable.
    """
    if job.fruitless == 0:
        return 0.0
    first, last = job.spec.supervise.backoff_s
    base = min(last, first * 2.0 ** min(job.fruitless - 1, 30))
    return base * (1 + 0.1 * (zlib.crc32(f"{job.id}/{attempt_number}".encode()) % 1000) / 1000)


def longest_backoff(job: Job) -> timedelta:
    """A pause that ends later than this was set by a clock that has been set back since."""
    return timedelta(seconds=1.1 * job.spec.supervise.backoff_s[1] + 1)
