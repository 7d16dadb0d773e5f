"""The goodput ledger as one bar. Each part has a sentence on its meaning and one on how to reduce it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.domain.accounting.goodput import EXPLAINED, Bin

# How to reduce the time in a bin.
HELPS: Mapping[Bin, str] = {
    Bin.QUEUE: "Smaller or elastic jobs and higher priorities start sooner.",
    Bin.START_UP: "Import less, and keep images on the nodes.",
    Bin.RENDEZVOUS: "Find the slowest node: all others wait for it.",
    Bin.LOAD: "Use faster storage, or a strategy that shards snapshots.",
    Bin.COMPILE: "Keep the cache of compiled kernels.",
    Bin.RE_DONE: "Take snapshots more often.",
    Bin.SNAPSHOT_STALL: "Take snapshots less often, or set the interval to auto.",
    Bin.STALLED: "Set a shorter supervise.heartbeat_timeout_s.",
    Bin.RECOVERING: "See the failures in the events.",
    Bin.FAILED: "See the failure of the attempt.",
    Bin.NOT_REPORTED: "Five lines with trainer.supervised report steps and take snapshots.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One bin of the bar. `x` and `width` are percent of the bar. `seconds` are device-seconds."""

    bin: Bin
    x: float
    width: float
    seconds: float
    what: str
    helps: str


def build_ledger(bins: Mapping[str, float]) -> Sequence[Entry]:
    """Return the bins that are not empty, in their order. `bins` are in device-seconds."""
    whole = sum(bins.values())
    entries: list[Entry] = []
    before = 0.0
    for each in Bin:
        seconds = bins.get(each, 0.0)
        if seconds <= 0:
            continue
        x, width = 100 * before / whole, 100 * seconds / whole
        entries.append(
            Entry(
                bin=each,
                x=round(x, 3),
                width=round(width, 3),
                seconds=seconds,
                what=EXPLAINED[each],
                helps=HELPS.get(each, ""),
            )
        )
        before += seconds
    return entries
