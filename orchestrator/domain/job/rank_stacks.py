"""The stacks of ranks, read from the events of agents. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime

from orchestrator.domain.job.event import Event
from trainer.contract.exit_record import EventKind


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStacks:
    """`wish` is the number of the answered request, if there was one. `text` is None if the rank did not answer."""

    rank: int
    attempt: int
    generation: int | None
    at: datetime
    wish: int | None
    text: str | None


def newest_stacks(events: Sequence[Event]) -> tuple[RankStacks, ...]:
    """Return the newest stacks of each rank of the newest attempt. `events` are those of saved stacks, newest first."""
    newest = max((event.attempt or 0 for event in events), default=0)
    found: dict[int, RankStacks] = {}
    for event in events:
        if event.attempt != newest:
            continue
        for rank, text in _texts(event.evidence).items():
            if rank not in found:
                request = event.evidence.get("wish")
                found[rank] = RankStacks(
                    rank=rank,
                    attempt=newest,
                    generation=event.generation,
                    at=event.at,
                    wish=request if isinstance(request, int) else None,
                    text=text,
                )
    return tuple(found[rank] for rank in sorted(found))


def find_saved_at_end(events: Iterable[Event]) -> Set[tuple[int | None, int | None]]:
    """Return each attempt and generation whose agents saved stacks as they ended it, and not only on request."""
    return {
        (event.attempt, event.generation)
        for event in events
        if event.kind == EventKind.STACKS_SAVED and "wish" not in event.evidence
    }


def _texts(evidence: Mapping[str, object]) -> dict[int, str | None]:
    """Return the texts by rank. Agents of any version write evidence, and anyone may write into a run directory."""
    saved, silent = evidence.get("stacks"), evidence.get("silent")
    texts: dict[int, str | None] = {}
    for rank in silent if isinstance(silent, list) else ():
        if isinstance(rank, int):
            texts[rank] = None
    for rank, text in saved.items() if isinstance(saved, Mapping) else ():
        if isinstance(rank, str) and rank.isascii() and rank.isdecimal() and isinstance(text, str):
            texts[int(rank)] = text
    return texts
