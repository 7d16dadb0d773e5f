"""What a preflight finds: one verdict for each check, and the arithmetic behind them. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

MARK = "preflight: "  # before each verdict in the log
_LINE = re.compile(r"preflight: (\w+) (ok|warn|fail|skipped): (.*)")
# Above the first, events of several nodes may appear in the wrong order. Above the second, certificates, tokens and
# file caches begin to fail.
CLOCK_WARN_S, CLOCK_FAIL_S = 0.1, 5.0


class Outcome(str, Enum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIPPED = "skipped"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    check: str
    outcome: Outcome
    sentence: str
    nodes: tuple[str, ...] = ()  # the nodes to blame, if known; not in the log line


def render_verdict(verdict: Verdict) -> str:
    return f"{MARK}{verdict.check} {verdict.outcome.value}: {' '.join(verdict.sentence.split())}"


def parse_verdict(line: str) -> Verdict | None:
    """A verdict anywhere in a line of the log, or None."""
    match = _LINE.search(line)
    if match is None:
        return None
    return Verdict(check=match[1], outcome=Outcome(match[2]), sentence=match[3])


@dataclass(frozen=True, kw_only=True)
class Ping:
    """A request for the time, in seconds. `heard_at` is by the other node's clock, the other two by the asker's."""

    asked_at: float
    heard_at: float
    answered_at: float


def clock_offset(pings: Sequence[Ping]) -> float:
    """How far the other clock is ahead, by the quickest ping (Cristian, Probabilistic Clock Synchronization, 1989)."""
    best = min(pings, key=lambda ping: ping.answered_at - ping.asked_at)
    return best.heard_at - (best.asked_at + best.answered_at) / 2


def judge_clocks(offsets: Mapping[str, float]) -> Verdict:
    """`offsets` are those of the other nodes from the first node's clock, in seconds."""
    if not offsets:
        return Verdict(check="clocks", outcome=Outcome.SKIPPED, sentence="all workers share one node's clock")
    node = max(offsets, key=lambda node: abs(offsets[node]))
    worst = abs(offsets[node])
    outcome = Outcome.FAIL if worst > CLOCK_FAIL_S else Outcome.WARN if worst > CLOCK_WARN_S else Outcome.OK
    advice = "" if outcome is Outcome.OK else "; check chrony or ntpd there"
    return Verdict(
        check="clocks",
        outcome=outcome,
        sentence=f"the largest offset is {offsets[node] * 1000:+.1f} ms, on {node}{advice}",
        nodes=tuple(sorted(name for name, offset in offsets.items() if abs(offset) > CLOCK_FAIL_S)),
    )


def bus_bandwidth(size_bytes: int, seconds: float, ranks: int) -> float:
    """Bytes per second that each link carries in an all-reduce (nccl-tests, doc/PERFORMANCE.md)."""
    return size_bytes / seconds * 2 * (ranks - 1) / ranks
