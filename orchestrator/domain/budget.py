"""What a failure costs: the table from its kind to a budget, and how long to wait before the next attempt."""

from __future__ import annotations

import zlib
from dataclasses import replace
from datetime import datetime, timedelta

from orchestrator.domain.attempt import Attempt
from orchestrator.domain.job import Job
from orchestrator.domain.observation import Training
from trainer.contract.failure import Failure, FailureKind, is_taken_port

# Which budget of the job's spec pays for an ended attempt.
BUDGET_OF: dict[FailureKind, str] = {
    FailureKind.APPLICATION: "application",
    FailureKind.DEVICE_OOM: "application",
    FailureKind.HOST_OOM: "application",
    FailureKind.NUMERIC: "application",
    FailureKind.UNKNOWN: "application",
    FailureKind.LAUNCH: "application",
    FailureKind.HANG: "hang",
    FailureKind.TIMEOUT: "hang",
    FailureKind.NODE: "node",
    FailureKind.INFRASTRUCTURE: "node",
    FailureKind.STORAGE: "storage",
    FailureKind.PREEMPTED: "preemption",
    FailureKind.RENDEZVOUS: "node",  # but a taken port costs nothing, see budget_of
}

# An attempt of a program that tells no steps counts as fruitful when it lived this long.
FRUITFUL_S = 60.0


def budget_of(failure: Failure) -> str | None:
    """The budget that pays for a failure; None for a taken port, since the next attempt takes the next one."""
    return None if is_taken_port(failure) else BUDGET_OF[failure.kind]


def charge(job: Job, attempt: Attempt, training: Training, failure: Failure | None, now: datetime) -> Job:
    """The job with its account after an attempt that ends now: what is spent, and when the next attempt may start."""
    ran_s = 0.0 if attempt.started_at is None else (now - attempt.started_at).total_seconds()
    fruitful = training.step_s is not None or ran_s >= FRUITFUL_S or (failure is not None and is_taken_port(failure))
    spent = _spend(job, failure, restarts=training.restarts, ran_s=ran_s)
    charged = replace(job, spent=spent, fruitless=0 if fruitful else job.fruitless + 1)
    return replace(charged, retry_at=now + timedelta(seconds=backoff_s(charged, attempt.key.number)))


def _spend(job: Job, failure: Failure | None, *, restarts: int, ran_s: float) -> dict[str, int]:
    """Each restart in place was a failure of the application, the attempt's end is one more of its own class.

    An attempt that ran for `refund_after_s` gives back what was spent before it.
    """
    spent = {} if ran_s >= job.spec.supervise.refund_after_s else dict(job.spent)
    if restarts:
        spent["application"] = spent.get("application", 0) + restarts
    budget = None if failure is None else budget_of(failure)
    if budget is not None:
        spent[budget] = spent.get(budget, 0) + 1
    return spent


def hopeless(failure: Failure) -> str | None:
    """Why no further attempt can mend it: the program is missing, or failed the same way twice in a row."""
    if failure.kind is FailureKind.LAUNCH:
        return "another attempt would not help"
    return "the same error twice in a row" if failure.repeated and budget_of(failure) == "application" else None


def overspent(job: Job, failure: Failure) -> str | None:
    """The sentence that ends the job, or None while its budget for such a failure lasts."""
    budget = budget_of(failure)
    limit = None if budget is None else getattr(job.spec.supervise.budgets, budget)
    if budget is None or limit is None or job.spent.get(budget, 0) <= limit:
        return None
    times = "failure" if limit == 1 else "failures"
    return f"its budget of {limit} {budget} {times} is spent"


def backoff_s(job: Job, attempt_number: int) -> float:
    """Seconds before the next attempt: none after an attempt that trained, then doubling, with up to a tenth of jitter.

    The jitter comes from job and attempt, so that the jobs of one outage spread and a decision stays repeatable.
    """
    if job.fruitless == 0:
        return 0.0
    first, last = job.spec.supervise.backoff_s
    base = min(last, first * 2.0 ** min(job.fruitless - 1, 30))
    return base * (1 + 0.1 * (zlib.crc32(f"{job.id}/{attempt_number}".encode()) % 1000) / 1000)
