"""How a worker group differs from the one before it: restarted in place, shrunk or grown. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.contract.exit_record import EventKind
from trainer.contract.failure import Failure

# The kind of recovery in the event's evidence, and its words in the sentence.
_RECOVERIES = {
    EventKind.RESTARTED_IN_PLACE: ("in-place", "workers restarted in place"),
    EventKind.GROUP_SHRUNK: ("shrink", "the group continued with fewer replicas,"),
    EventKind.GROUP_GREW: ("grow", "a node joined the group,"),
}


@dataclass(frozen=True)
class Formation:
    nodes: int
    world_size: int
    because: str = ""  # the change of the group that led to it; empty: a failure


def classify_change(before: Formation, now: Formation) -> EventKind:
    """Classify a new formation by its number of nodes. The same number is a restart in place."""
    if now.nodes < before.nodes:
        return EventKind.GROUP_SHRUNK
    return EventKind.GROUP_GREW if now.nodes > before.nodes else EventKind.RESTARTED_IN_PLACE


def describe_restart(
    change: EventKind, before: Formation, now: Formation, *, generation: int, seconds: float
) -> tuple[str, dict[str, object]]:
    """Sentence and evidence of the event. Every agent journals it, with the generation to show that it is one event."""
    recovery, words = _RECOVERIES[change]
    sizes = "" if recovery == "in-place" else f" from {before.world_size} to {now.world_size} workers"
    evidence: dict[str, object] = {
        "rung": recovery,
        "seconds": seconds,
        "generation": generation,
        "world_size": now.world_size,
        "from_world_size": before.world_size,
    }
    sentence = f"{words}{sizes} as generation {generation} after {seconds:.2f} s"
    return (f"{sentence}: {now.because}", evidence | {"because": now.because}) if now.because else (sentence, evidence)


def describe_failure(failure: Failure, collateral: list[int]) -> str:
    """A sentence about a worker's failure and the ranks that ended because of it."""
    if failure.rank is None:
        return failure.message
    if not collateral:
        return f"rank {failure.rank}: {failure.message}"
    return f"rank {failure.rank}: {failure.message}; {name_ranks(collateral)} ended with it"


def name_ranks(ranks: list[int]) -> str:
    names = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {names}"
