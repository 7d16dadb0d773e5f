"""The verdict of `why`: where a job stands, and its newest failure, in plain sentences. Pure."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from orchestrator.domain.accounting.chronicle import Chronicle
from orchestrator.domain.accounting.life import Life
from orchestrator.domain.counted import counted, lasting
from orchestrator.domain.explanation.newest_cause import Cause
from orchestrator.domain.job.job import WORKERS_RUNNING
from trainer.contract.chaos import Fault
from trainer.contract.failure import FailureKind

_HAPPENED = {
    FailureKind.APPLICATION: "failed",
    FailureKind.DEVICE_OOM: "ran out of device memory",
    FailureKind.HOST_OOM: "ran out of host memory",
    FailureKind.HANG: "hung",
    FailureKind.NUMERIC: "computed a loss that is not finite",
    FailureKind.NODE: "lost a node",
    FailureKind.PREEMPTED: "was preempted",
    FailureKind.TIMEOUT: "reached a time limit",
    FailureKind.RENDEZVOUS: "could not form its group",
    FailureKind.STORAGE: "had a storage failure",
    FailureKind.LAUNCH: "could not start",
    FailureKind.INFRASTRUCTURE: "had an infrastructure failure",
    FailureKind.UNKNOWN: "failed",
}
_INJECTED = {Fault.HANG: "stopped", Fault.PREEMPT: "preempted"}  # other faults kill


def tell_verdict(chronicle: Chronicle, life: Life, cause: Cause | None, now: datetime) -> str:
    """Return one to four sentences: first the failure if it is the job's reason, or else the job's state."""
    job = chronicle.job
    if cause is None:
        return _sentences(_tell_state(chronicle, life))
    failed, message = _tell_failure(cause, now)
    if cause.over:
        continued = _tell_continuation(life, cause)
        if continued is not None and message is None:
            failed, continued = f"{failed}; {continued}", None
        return _sentences(_tell_state(chronicle, life), failed, message, continued)
    if job.reason.startswith(cause.failure.message):
        rest = job.reason.removeprefix(cause.failure.message).removeprefix("; ")
        return _sentences(failed, message, rest)
    state = "training has stopped" if job.reason == WORKERS_RUNNING else job.reason
    return _sentences(state, failed, message)


def _tell_state(chronicle: Chronicle, life: Life) -> str:
    job = chronicle.job
    generations = life.attempts[-1].generations if life.attempts else ()
    if job.reason != WORKERS_RUNNING or not generations:
        return job.reason
    most = chronicle.attempts[-1].most_asked
    per_node = max(1, life.attempts[-1].devices // most)
    nodes = min(most, -(-generations[-1].world_size // per_node))
    return f"running on {counted(nodes, 'node')}" if nodes == most else f"running on {nodes} of {most} nodes"


def _tell_failure(cause: Cause, now: datetime) -> tuple[str, str | None]:
    """Return what happened, as a clause, and the failure's message where that says more."""
    failure, when = cause.failure, _tell_time(cause.at, now)
    step = "" if failure.step is None else f" after step {failure.step}"
    subject = _name_subject(cause)
    if cause.chaos is not None:
        verb = _INJECTED.get(cause.chaos.fault, "killed")
        return f"{subject} was {verb} on purpose by {cause.chaos.actor or 'somebody'} {when}{step}", None
    if _is_loss(cause):
        clause = f"attempt {cause.attempt} lost an agent" if cause.lost is None else cause.lost.clause
        return f"{clause} {when}", None if failure.message == clause else failure.message
    if failure.kind is FailureKind.UNKNOWN and failure.signal is not None:
        clause = f"was killed by {failure.signal}"
        said = failure.message in (clause, f"the worker {clause}")
        return f"{subject} {clause} {when}{step}", None if said else failure.message
    return f"{subject} {_HAPPENED[failure.kind]} {when}{step}", failure.message


def _is_loss(cause: Cause) -> bool:
    """Whether nodes or agents were lost, rather than a worker."""
    left_group = cause.in_place and cause.lost is not None
    return cause.failure.rank is None and (cause.failure.kind is FailureKind.NODE or left_group)


def _name_subject(cause: Cause) -> str:
    if cause.failure.rank is not None:
        return f"rank {cause.failure.rank}"
    if _is_loss(cause):
        return "an agent" if cause.lost is None else cause.lost.names
    return "the worker group" if cause.in_place else f"attempt {cause.attempt}"


def _tell_time(at: datetime, now: datetime) -> str:
    day = "" if at.date() == now.date() else f"on {at:%b} {at.day} "
    return f"{day}at {at:%H:%M} UTC"


def _tell_continuation(life: Life, cause: Cause) -> str | None:
    """Return how soon training continued, or for workers that report no steps, how soon they started again."""
    number = float("inf") if cause.generation is None else cause.generation
    later = [
        one for each in life.attempts for one in each.generations if (each.number, one.number) > (cause.attempt, number)
    ]
    trained = next((one.kept.first_at for one in later if one.kept is not None), None)
    if not later:
        return None
    what, began_at = (
        ("training continued", trained) if trained is not None else ("the workers started again", later[0].started_at)
    )
    after = began_at - cause.at
    if after < timedelta():
        return what  # the clocks of the nodes differ
    return f"{what} {lasting(after.total_seconds())} later" if after >= timedelta(seconds=1) else f"{what} within 1 s"


def _sentences(*clauses: str | None) -> str:
    return " ".join(_sentence(each) for each in clauses if each)


def _sentence(clause: str) -> str:
    """End a clause and begin it with a capital, unless it begins with an identifier such as "train.py"."""
    first = clause[:1].upper() if re.match(r"[a-z]+[ ,:']", clause) else clause[:1]
    return f"{first}{clause[1:]}" + ("" if clause.endswith((".", ".)", "!", "?")) else ".")
