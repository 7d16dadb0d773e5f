"""Which failures of a job followed from requested faults. Pure.

An agent's report of a fault counts only if somebody requested it, because a job can write anything into its journals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from orchestrator.domain.accounting.goodput import LOSSES, Stretch
from orchestrator.domain.job.event import Event
from orchestrator.domain.job.event import EventKind as Ours
from trainer.contract.chaos import Fault
from trainer.contract.exit_record import EventKind as Theirs

# Faults that end or stop workers. The others show only later.
_ENDING = frozenset({Fault.KILL, Fault.HANG, Fault.PREEMPT, Fault.NODE_LOSS})
_CLOCKS_APART = timedelta(seconds=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """A requested fault that an agent reports as injected. `actor` requested it."""

    number: int
    fault: Fault
    at: datetime
    attempt: int
    generation: int
    actor: str | None
    sentence: str  # the agent's


def read_injections(events: Sequence[Event]) -> tuple[Injection, ...]:
    """Return the agents' reports of requested faults. `events` are of chronicle.KINDS."""
    requested = {event.evidence.get("number"): event for event in events if event.kind == Ours.CHAOS_REQUESTED}
    found = []
    for event in events:
        number = event.evidence.get("number")
        if event.kind != Theirs.CHAOS_INJECTED or not isinstance(number, int) or number not in requested:
            continue
        request = requested[number]
        if event.attempt is None or event.attempt != request.evidence.get("attempt"):
            continue
        found.append(
            Injection(
                number=number,
                fault=Fault(str(request.evidence["fault"])),
                at=event.at,
                attempt=event.attempt,
                generation=event.generation or 0,
                actor=request.actor,
                sentence=event.sentence,
            )
        )
    return tuple(found)


def find_cause(
    injections: Sequence[Injection], *, attempt: int, generation: int | None, at: datetime
) -> Injection | None:
    """Return the requested fault behind a failure: the last one before it in the same generation that ends workers."""
    fitting = [
        each
        for each in injections
        if each.fault in _ENDING
        and each.attempt == attempt
        and generation in (None, each.generation)
        and each.at <= at + _CLOCKS_APART
    ]
    return max(fitting, key=lambda each: each.at, default=None)


def mark_stretches(stretches: Sequence[Stretch], injections: Sequence[Injection]) -> tuple[Stretch, ...]:
    """Mark each loss with the requested fault behind it.

    A fault's losses last from the end of its generation until training continues.
    """
    by_term: dict[tuple[int | None, int | None], int] = {
        (each.attempt, each.generation): each.number for each in injections if each.fault in _ENDING
    }
    marked: list[Stretch] = []
    number: int | None = None
    term: tuple[int | None, int | None] = (None, None)
    for each in stretches:
        if each.bin in LOSSES:
            number = number or _number_of(by_term, each, term)
        else:
            number, term = None, (each.attempt, each.generation)
        marked.append(replace(each, chaos=number))
    return tuple(marked)


def _number_of(
    by_term: Mapping[tuple[int | None, int | None], int], loss: Stretch, before: tuple[int | None, int | None]
) -> int | None:
    """Return the fault behind a loss. A loss without a generation belongs to the generation before it."""
    return by_term.get(before if loss.generation is None else (loss.attempt, loss.generation))


def chaos_us(stretches: Sequence[Stretch]) -> int:
    """Return the device-microseconds that requested faults cost."""
    return sum(each.lasted_us * each.used for each in stretches if each.chaos is not None)
