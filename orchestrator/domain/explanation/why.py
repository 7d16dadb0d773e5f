"""The answer of `why`: verdict, first cause, actions, losses, remedy and the next step. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from orchestrator.domain.accounting.chronicle import ACTIONS, Chronicle
from orchestrator.domain.accounting.goodput import LOSSES, Bin, Ledger, show_bin
from orchestrator.domain.accounting.life import Life
from orchestrator.domain.counted import counted
from orchestrator.domain.explanation.newest_cause import Cause, find_newest_cause
from orchestrator.domain.explanation.obstacles import tell_next
from orchestrator.domain.explanation.remedies import KILLED, SCRIPT_ERROR, Remedy, find_remedy
from orchestrator.domain.explanation.script_error import find_script_line
from orchestrator.domain.explanation.verdict import tell_verdict
from orchestrator.domain.job.event import Event
from orchestrator.domain.job.job import Job, JobState
from orchestrator.domain.specs.beginning import tell_beginning
from trainer.contract.exit_record import GROUP_CHANGES
from trainer.contract.failure import is_collateral

_MOST_ACTIONS = 12
_NOT_REPORTED = "not reported, because the workers report no steps"


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionTaken:
    """`rule` is the rule of the policy. It is None for an action of an agent."""

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
    quiet: str | None = None  # the text of tell_quiet, if the workers report no steps


def explain(chronicle: Chronicle, life: Life, ledger: Ledger, now: datetime, *, quiet: str | None = None) -> Why:
    """`life` and `ledger` are the chronicle's."""
    cause = find_newest_cause(chronicle, life)
    remedy = None if cause is None else _find_remedy(chronicle.job, cause)
    return Why(
        verdict=tell_verdict(chronicle, life, cause, now),
        cause=cause,
        deeds=_list_actions(chronicle.events, None if cause is None else cause.at),
        lost=_tell_lost(ledger),
        remedy=remedy,
        next=_advise(chronicle, life, remedy) if quiet is None else _advise_quiet(chronicle.job),
        quiet=quiet,
    )


def _list_actions(events: Sequence[Event], since: datetime | None) -> tuple[ActionTaken, ...]:
    """Return the newest actions since the failure. A change of the group, which every agent journals, counts once."""
    actions: list[ActionTaken] = []
    changes: set[tuple[int | None, int | None]] = set()
    for event in events:
        if event.kind not in ACTIONS or (since is not None and event.at < since):
            continue
        if event.kind in GROUP_CHANGES:
            change = event.attempt, event.generation
            if change in changes:
                continue
            changes.add(change)
        actions.append(ActionTaken(at=event.at, sentence=event.sentence, attempt=event.attempt, rule=_rule(event)))
    return tuple(actions[-_MOST_ACTIONS:])


def _rule(event: Event) -> str | None:
    rule = event.evidence.get("rule")
    return rule if isinstance(rule, str) else None


def _find_remedy(job: Job, cause: Cause) -> Remedy | None:
    """Return the remedy, with the signal or the line of the script filled in.

    None for a signal that a requested fault sent, and for an error of the bundled trainer without the owner's task.
    """
    failure, run = cause.failure, job.spec.run
    remedy = find_remedy(failure)
    if remedy is KILLED:
        known = remedy.cause.replace("A signal", failure.signal or "A signal", 1)
        return None if cause.chaos is not None else replace(remedy, cause=known)
    if remedy is not SCRIPT_ERROR:
        return remedy
    if is_collateral(failure) or (run.trainer is not None and run.trainer.get("task") is None):
        return None
    line = find_script_line(failure.traceback or "", run)
    return remedy if line is None else replace(remedy, fix=f"Fix the script at {line}.")


def _tell_lost(ledger: Ledger) -> str:
    """Say how many device-seconds were lost, and of how many that the job held."""
    if not ledger.lost_us:
        return _NOT_REPORTED if ledger.bins.get(Bin.NOT_REPORTED) else "nothing"
    lost = {each: ledger.bins.get(each, 0) for each in LOSSES}
    parts = ", ".join(f"{us / 1e6:.1f} {show_bin(each)}" for each, us in lost.items() if us)
    rest = f". The rest is {_NOT_REPORTED}" if ledger.bins.get(Bin.NOT_REPORTED) else ""
    return f"{ledger.lost_us / 1e6:.1f} of {ledger.held_us / 1e6:.1f} device-seconds ({parts}){rest}"


def _advise(chronicle: Chronicle, life: Life, remedy: Remedy | None) -> str:
    job = chronicle.job
    match job.state:
        case JobState.FAILED:
            retry = f"`orchestrator retry {job.id}`.{_tell_repeated(chronicle, life)}"
            return f"Run {retry}" if remedy is None else f"{remedy.fix} Then run {retry}"
        case JobState.SUSPENDED:
            return f"Run `orchestrator resume {job.id}`."
        case JobState.CANCELLED:
            beginning = tell_beginning(job.spec, has_snapshot=chronicle.has_snapshot)
            return f"`orchestrator retry {job.id}` begins another attempt from {beginning}."
        case JobState.QUEUED | JobState.STARTING | JobState.RECOVERING:
            return tell_next(job, chronicle.attempts[-1] if chronicle.attempts else None)
        case _:
            return "Nothing to do."


def _tell_repeated(chronicle: Chronicle, life: Life) -> str:
    """Say how many steps a retry repeats: a state in memory ends with its attempt. Empty if none, or not known."""
    spec, saved = chronicle.job.spec, chronicle.snapshot_step
    if saved is None and (chronicle.has_snapshot or spec.snapshot.source is not None or spec.run.trainer is None):
        return ""
    reached = [one.reached_step for each in life.attempts for one in each.generations if one.reached_step is not None]
    repeated = reached[-1] - (saved or 0) if reached else 0
    if repeated <= 0:
        return ""
    beginning = tell_beginning(spec, has_snapshot=chronicle.has_snapshot)
    return f" It starts from {beginning} and repeats {counted(repeated, 'step')}."


def _advise_quiet(job: Job) -> str:
    """Say how to look at a job without reports. torchrun answers no requests for stacks."""
    look = "stacks" if job.spec.launcher == "elasticrun" else "logs"
    return f"Nothing to do. To see what the job does, run `orchestrator {look} {job.id}`."
