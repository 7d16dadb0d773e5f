"""Find a rank's worker from the agents' reports at the start of a generation. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from orchestrator.domain.job.event import Event

_NUMBER = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class Place:
    replica: int
    local_rank: int


def find_places(started: Sequence[Event], rank: int) -> Iterator[Place]:
    """Yield a rank's places from `generation.started` events, newest generation first.

    Each agent reports the ranks of its own workers, which increase with the local rank. torchrun's agent reports none.
    """
    for event in sorted(started, key=lambda event: event.generation or 0, reverse=True):
        pids = event.evidence.get("pids")
        ranks = sorted(int(each) for each in pids if _NUMBER.fullmatch(each)) if isinstance(pids, dict) else []
        if rank in ranks and event.replica is not None:
            yield Place(event.replica, ranks.index(rank))
