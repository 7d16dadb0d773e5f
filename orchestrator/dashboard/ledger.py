"""The goodput ledger as one bar, each part with a sentence of what it is and what helps against it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.domain.accounting.goodput import Bin

# (what it is, what makes less of it): docs/goodput.md has the bins.
WORDS: Mapping[Bin, tuple[str, str]] = {
    Bin.QUEUE: ("Waiting in the queue.", "Smaller or elastic jobs and higher priorities start sooner."),
    Bin.START_UP: ("Agents starting and importing.", "Import less, and keep images on the nodes."),
    Bin.RENDEZVOUS: ("Agents forming the group.", "The slowest node decides: find the one that comes late."),
    Bin.LOAD: ("Workers starting and reading a snapshot.", "Use faster storage, or a strategy that shards snapshots."),
    Bin.COMPILE: ("The first step, beyond the time of a usual one.", "Keep the cache of compiled kernels."),
    Bin.PRODUCTIVE: ("Steps that count.", ""),
    Bin.RE_DONE: ("Steps lost to a failure and done again.", "Take snapshots more often."),
    Bin.SNAPSHOT_STALL: ("Training paused for a snapshot.", "Take snapshots less often, or set the interval to auto."),
    Bin.STALLED: ("No progress, until it was noticed.", "Set a shorter supervise.heartbeat_timeout_s."),
    Bin.RECOVERING: ("From a failure until training resumed.", "See the failures in the events."),
    Bin.IDLE: ("Suspended, ended, or devices that a smaller group left unused.", ""),
    Bin.NOT_REPORTED: (
        "Workers ran without reporting steps.",
        "Five lines with trainer.supervised report them, and take snapshots.",
    ),
}


_NAMES = {Bin.RE_DONE.value: "re-done", Bin.NOT_REPORTED.value: "not reported"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One bin of the bar. `x` and `width` are percent of it, `seconds` of devices."""

    bin: Bin
    x: float
    width: float
    seconds: float
    what: str
    helps: str


def show_bin(name: str) -> str:
    """A bin in words: "re-done", "start up"."""
    return _NAMES.get(name, name.replace("_", " "))


def build_ledger(bins: Mapping[str, float]) -> Sequence[Entry]:
    """The bins that hold anything, in their order. `bins` are device-seconds."""
    whole = sum(bins.values())
    entries: list[Entry] = []
    before = 0.0
    for each in Bin:
        seconds = bins.get(each, 0.0)
        if seconds <= 0:
            continue
        what, helps = WORDS[each]
        x, width = 100 * before / whole, 100 * seconds / whole
        entries.append(Entry(bin=each, x=round(x, 3), width=round(width, 3), seconds=seconds, what=what, helps=helps))
        before += seconds
    return entries
