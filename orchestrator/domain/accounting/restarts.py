"""What restarts cost, by the source of the state that training continued from. Pure.

A restart is every start of workers except the first one, and the first one after a rest. Those are start-ups. As in the
ledger, a restart that follows a change of the group's size counts too.

Re-done time counts for the restart that made it necessary. Recovering time counts for the restart that ended it, even
if the next failure came before a step. What no restart has followed (yet) is one more row. So the rows add up to the
bins `recovering` and `re_done`, to the microsecond.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from statistics import fmean

from orchestrator.domain.accounting.goodput import Bin, Stretch, take_apart
from orchestrator.domain.accounting.life import End, GenerationLife, Life, Rest, list_ends

Term = tuple[int | None, int | None]  # attempt and generation


class Source(StrEnum):
    """Where a restart found its state, the least costly first."""

    SURVIVOR = "survivor"
    MEMORY = "memory"
    BUDDY = "buddy"  # at least one part came from a mirror on another node
    DISK = "disk"
    OTHER = "other"  # no restore was reported: the workers read files of their own, or began again
    NONE = "none"  # nothing has restarted


# What a row of the table is called.
_SHOWN: Mapping[Source, str] = {
    Source.SURVIVOR: "a survivor",
    Source.MEMORY: "memory",
    Source.BUDDY: "another node",
    Source.DISK: "disk",
    Source.OTHER: "own files, or none",
    Source.NONE: "not restarted",
}


def show_source(name: str) -> str:
    """Return a source in words. One that only a newer service knows is returned as it is."""
    return _SHOWN[Source(name)] if name in set(Source) else name


def show_repeated(repeated: int, unknown: int) -> str:
    """Return "7", "7 or more" if some are unknown, or "unknown"."""
    if not unknown:
        return str(repeated)
    return f"{repeated} or more" if repeated else "unknown"


@dataclass(slots=True, kw_only=True)
class RestartSum:
    """The restarts from one source. Times are device-microseconds.

    `repeated` has the steps of the restarts of which they are known, `unknown` the number of the others.
    `to_next_step_s` has the seconds from the end of each generation to the next step, where they are known.
    """

    source: Source
    restarts: int = 0
    repeated: int = 0
    unknown: int = 0
    recovering_us: int = 0
    re_done_us: int = 0
    to_next_step_s: list[float] = field(default_factory=list)

    @property
    def mean_to_next_step_s(self) -> float | None:
        return fmean(self.to_next_step_s) if self.to_next_step_s else None

    def add_costs(self, other: RestartSum) -> None:
        self.recovering_us += other.recovering_us
        self.re_done_us += other.re_done_us


def sum_restarts(life: Life, stretches: Sequence[Stretch]) -> tuple[RestartSum, ...]:
    """Return a row for each source that has restarts or a cost, in the order of Source. `stretches` are the life's."""
    rows = {source: RestartSum(source=source) for source in Source}
    sources: dict[Term, Source] = {}
    for attempt, before, one in _list_restarts(life):
        row = rows[find_source(one)]
        sources[attempt, one.number] = row.source
        repeated = count_repeated(None if before is None else before.generation, one)
        row.restarts += 1
        row.repeated += repeated or 0
        row.unknown += repeated is None
        took_s = None if before is None or before.over_at is None else find_time_to_next_step(before.over_at, one)
        row.to_next_step_s += [] if took_s is None else [took_s]
    _add_costs(rows, sources, stretches)
    return tuple(row for row in rows.values() if row.restarts or row.recovering_us or row.re_done_us)


def find_source(one: GenerationLife) -> Source:
    known = one.restored_at is not None and one.restored_from in set(Source) - {Source.NONE}
    return Source(one.restored_from) if known else Source.OTHER


def count_repeated(before: GenerationLife | None, one: GenerationLife) -> int | None:
    """Return how many steps of the generation before are made again. None if not known."""
    if before is None or before.reached_step is None or one.restored_at is None:
        return None
    return max(0, before.reached_step - one.restored_step)


def find_time_to_next_step(lost_at: datetime, one: GenerationLife) -> float | None:
    """Return seconds from a failure until the generation's first step is complete. None if not known.

    Not known are a step that was later repeated, and a time before the failure: the clocks of nodes differ.
    """
    if one.kept is None or one.kept.first_at < lost_at:
        return None
    return (one.kept.first_at - lost_at).total_seconds()


def _list_restarts(life: Life) -> Iterator[tuple[int, End | None, GenerationLife]]:
    """Yield each restart with its attempt and the generation before it. None if an attempt without one was before."""
    rested, before = True, None
    for part in life.parts:
        if isinstance(part, Rest):
            rested = True
            continue
        for end in list_ends(part):
            if not rested:
                yield part.number, before, end.generation
            rested, before = False, end
        rested = False


def _add_costs(rows: Mapping[Source, RestartSum], sources: Mapping[Term, Source], stretches: Sequence[Stretch]) -> None:
    """Add the costs. A cost waits in `open_cost` until the next generation shows which restart it belongs to."""
    open_cost = RestartSum(source=Source.NONE)
    current: Term = (None, None)
    for each in stretches:
        term = (each.attempt, each.generation)
        if each.generation is not None and term != current:
            rows[sources.get(term, Source.NONE)].add_costs(open_cost)
            open_cost, current = RestartSum(source=Source.NONE), term
        amount_us = take_apart(each)[0][1]
        if each.bin is Bin.RE_DONE:
            open_cost.re_done_us += amount_us
        elif each.bin is Bin.RECOVERING:
            row = rows[sources.get(term, Source.NONE)] if each.generation is not None else open_cost
            row.recovering_us += amount_us
    rows[Source.NONE].add_costs(open_cost)
