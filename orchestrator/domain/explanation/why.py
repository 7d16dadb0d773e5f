"""Why a job stands as it does: the first cause, what went with it, what was done, what was lost. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from orchestrator.domain.accounting.chronicle import ACTIONS, Chronicle
from orchestrator.domain.accounting.goodput import LOSSES, Bin, Ledger
from orchestrator.domain.accounting.injections import Injection, find_cause
from orchestrator.domain.accounting.life import Life, Trouble
from orchestrator.domain.explanation.obstacles import tell_next
from orchestrator.domain.explanation.remedies import KILLED, SCRIPT_ERROR, Remedy, find_remedy
from orchestrator.domain.explanation.script_error import find_script_line
from orchestrator.domain.job.attempt import Attempt
from orchestrator.domain.job.event import Event
from orchestrator.domain.job.job import Job, JobState
from orchestrator.domain.specs.spec import JobSpec
from trainer.contract.failure import Failure, FailureKind, is_collateral

_MOST_ACTIONS = 12
_NOT_REPORTED = "not reported, because the workers report no steps"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """The first cause of the newest trouble. `collateral_ranks` ended with the failed one."""

    failure: Failure
    at: datetime
    attempt: int
    generation: int | None
    collateral_ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()  # that have it in their record
    over: bool  # training went on, or ended well, since
    chaos: Injection | None = None  # the fault on purpose that it came of


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionTaken:
    """What was done, and by which rule of the policy; agents, who act without the service, name none."""

    at: datetime
    sentence: str
    attempt: int | None
    rule: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    verdict: str
    cause: Cause | None
    deeds: tuple[ActionTaken, ...]  # oldest first
    lost: str
    remedy: Remedy | None
    next: str
    quiet: str | None = None  # when workers that report no steps printed last, and who notices a hang


def explain(chronicle: Chronicle, life: Life, ledger: Ledger, *, quiet: str | None = None) -> Why:
    """`life` and `ledger` are the chronicle's; `quiet` is the text of `tell_quiet`, if there is one."""
    cause = _on_purpose(_find_cause(chronicle, life), life)
    remedy = None if cause is None else _find_remedy(chronicle.job, cause)
    return Why(
        verdict=_judge(chronicle.job, cause),
        cause=cause,
        deeds=_list_actions(chronicle.events, None if cause is None else cause.at),
        lost=_tell_lost(ledger),
        remedy=remedy,
        next=_advise(chronicle, remedy) if quiet is None else _advise_quiet(chronicle.job),
        quiet=quiet,
    )


def _find_cause(chronicle: Chronicle, life: Life) -> Cause | None:
    """Of the newest attempt that failed, or of the newest generation that did while its attempt went on."""
    trouble = max((each for attempt in life.attempts for each in attempt.troubles), key=_term, default=None)
    ended = [each for each in chronicle.attempts if each.failure is not None]
    if ended and (trouble is None or ended[-1].key.number >= trouble.attempt):
        return _cause_of_end(chronicle, ended[-1], trouble)
    return None if trouble is None else _cause_in_place(chronicle, life, trouble)


def _term(trouble: Trouble) -> tuple[int, int]:
    return trouble.attempt, trouble.generation


def _on_purpose(cause: Cause | None, life: Life) -> Cause | None:
    if cause is None:
        return None
    found = find_cause(life.injections, attempt=cause.attempt, generation=cause.generation, at=cause.at)
    return replace(cause, chaos=found)


def _cause_of_end(chronicle: Chronicle, attempt: Attempt, trouble: Trouble | None) -> Cause:
    """The attempt's own failure is the first cause of all its agents' words; the newest of those tells the rest."""
    number = attempt.key.number
    failure = attempt.failure or Failure(kind=FailureKind.UNKNOWN, message=attempt.reason)
    mine = trouble if trouble is not None and trouble.attempt == number else None
    went_on = attempt is not chronicle.attempts[-1] and chronicle.job.state is JobState.RUNNING
    return Cause(
        failure=failure,
        at=attempt.ended_at or attempt.created_at,
        attempt=number,
        generation=None if mine is None else mine.generation,
        collateral_ranks=() if mine is None else _collateral(mine, failure),
        nodes=attempt.marked_nodes,
        over=went_on or chronicle.job.state is JobState.SUCCEEDED,
    )


def _cause_in_place(chronicle: Chronicle, life: Life, trouble: Trouble) -> Cause:
    newest = max(((each.number, one.number) for each in life.attempts for one in each.generations), default=(0, 0))
    return Cause(
        failure=trouble.failure,
        at=trouble.at,
        attempt=trouble.attempt,
        generation=trouble.generation,
        collateral_ranks=_collateral(trouble, trouble.failure),
        over=newest > _term(trouble) or chronicle.job.state is JobState.SUCCEEDED,
    )


def _collateral(trouble: Trouble, failure: Failure) -> tuple[int, ...]:
    return tuple(rank for rank in trouble.collateral_ranks if rank != failure.rank)


def _judge(job: Job, cause: Cause | None) -> str:
    if cause is None:
        return job.reason
    if cause.over:
        return f"{job.reason}; recovered from: {_name(cause, said=job.reason)}"
    if job.reason.startswith(cause.failure.message):
        return f"{_place(cause)}: {job.reason}{_name_chaos(cause.chaos)}"
    return f"{job.reason}. The first cause: {_name(cause, said=job.reason)}"


def _name(cause: Cause, *, said: str) -> str:
    """Without its message where that was said already."""
    message = "" if cause.failure.message in said else f": {cause.failure.message}"
    return f"{_place(cause)}{message}{_name_chaos(cause.chaos)}"


def _name_chaos(chaos: Injection | None) -> str:
    if chaos is None:
        return ""
    who = chaos.actor or "somebody"
    return f"; injected on purpose by {who}: chaos {chaos.fault.value} (request {chaos.number})"


def _place(cause: Cause) -> str:
    """Of which class, and where."""
    failure = cause.failure
    rank = "" if failure.rank is None else f", rank {failure.rank}"
    step = "" if failure.step is None else f" after step {failure.step}"
    return f"{failure.kind.value}{rank}{step}"


def _list_actions(events: Sequence[Event], since: datetime | None) -> tuple[ActionTaken, ...]:
    """The newest, from the trouble on."""
    actions = [
        ActionTaken(at=event.at, sentence=event.sentence, attempt=event.attempt, rule=_rule(event))
        for event in events
        if event.kind in ACTIONS and (since is None or event.at >= since)
    ]
    return tuple(actions[-_MOST_ACTIONS:])


def _rule(event: Event) -> str | None:
    rule = event.evidence.get("rule")
    return rule if isinstance(rule, str) else None


def _find_remedy(job: Job, cause: Cause) -> Remedy | None:
    """With what is known of this failure: the signal, unless it came on purpose, or the line of the script.

    The bundled trainer without a task of the owner's is no script.
    """
    failure, run = cause.failure, job.spec.run
    remedy = find_remedy(failure)
    if remedy is KILLED:
        known = remedy.cause.replace("a signal", failure.signal or "a signal", 1)
        return None if cause.chaos is not None else replace(remedy, cause=known)
    if remedy is not SCRIPT_ERROR:
        return remedy
    if is_collateral(failure) or (run.trainer is not None and run.trainer.get("task") is None):
        return None
    line = find_script_line(failure.traceback or "", run)
    return remedy if line is None else replace(remedy, fix=f"{remedy.fix} at {line}")


def _tell_lost(ledger: Ledger) -> str:
    """In device-seconds: work that is done again, silence, and the way back."""
    lost = {each: ledger.bins.get(each, 0) / 1e6 for each in LOSSES if ledger.bins.get(each, 0)}
    if not lost:
        return _NOT_REPORTED if ledger.bins.get(Bin.NOT_REPORTED) else "nothing"
    parts = ", ".join(f"{seconds:.1f} {each.value.replace('_', '-')}" for each, seconds in lost.items())
    rest = f"; the rest is {_NOT_REPORTED}" if ledger.bins.get(Bin.NOT_REPORTED) else ""
    return f"{sum(lost.values()):.1f} device-seconds of {ledger.whole_us / 1e6:.1f} ({parts}){rest}"


def _advise(chronicle: Chronicle, remedy: Remedy | None) -> str:
    """What its owner can do next."""
    job = chronicle.job
    match job.state:
        case JobState.FAILED:
            first = "" if remedy is None else f"{remedy.fix}; then "
            return f"{first}`orchestrator retry {job.id}`"
        case JobState.SUSPENDED:
            return f"`orchestrator resume {job.id}`"
        case JobState.CANCELLED:
            beginning = tell_beginning(job.spec, has_snapshot=chronicle.has_snapshot)
            return f"`orchestrator retry {job.id}` begins another attempt from {beginning}"
        case JobState.QUEUED | JobState.STARTING | JobState.RECOVERING:
            return tell_next(job, chronicle.attempts[-1] if chronicle.attempts else None)
        case _:
            return "nothing"


def _advise_quiet(job: Job) -> str:
    """Under torchrun nobody answers a request for stacks."""
    look = "stacks" if job.spec.launcher == "elasticrun" else "logs"
    return f"nothing; see what it does with `orchestrator {look} {job.id}`"


def tell_beginning(spec: JobSpec, *, has_snapshot: bool) -> str:
    """Where another attempt would go on."""
    if has_snapshot:
        return "the newest snapshot"
    return "the beginning" if spec.snapshot.source is None else "the snapshot that `snapshot.from` names"
