"""The two documents that the service gives an agent: `launch.json` once, `desired.json` whenever a request changes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum

from trainer.contract.chaos import Chaos, parse_chaos, render_chaos
from trainer.contract.failure import Pattern, parse_pattern, render_pattern


@dataclass(frozen=True, kw_only=True)
class LaunchPolicy:
    """What an agent may decide without the service."""

    max_restarts: int  # in place, for failures of a worker
    stop_timeout_s: float  # from the polite signal to SIGKILL
    log_limit_bytes: int  # of one worker's log; the older half moves to `log.1`
    patterns: tuple[Pattern, ...] = ()  # of the cluster or the job; consulted before failure.PATTERNS
    refund_after_s: float = 3600.0  # after so long of healthy progress, earlier restarts no longer count; 0: never
    startup_timeout_s: float = 600.0  # from the start of a worker to its first line, if its program is known to report
    heartbeat_timeout_s: float | None = None  # the longest silence within a step; None: learned (silence.py)


def render_policy(policy: LaunchPolicy) -> dict[str, object]:
    return {**vars(policy), "patterns": [render_pattern(pattern) for pattern in policy.patterns]}


def parse_policy(document: Mapping[str, object]) -> LaunchPolicy:
    """Parse a policy, also one of an older service. Raises ValueError for a field that is not a number."""
    patterns, heartbeat = document.get("patterns"), document.get("heartbeat_timeout_s")
    return LaunchPolicy(
        max_restarts=int(str(document.get("max_restarts", 0))),
        stop_timeout_s=float(str(document.get("stop_timeout_s", 10.0))),
        log_limit_bytes=int(str(document.get("log_limit_bytes", 64 * 1024 * 1024))),
        patterns=_parse_patterns(patterns) if isinstance(patterns, list) else (),
        refund_after_s=float(str(document.get("refund_after_s", 3600.0))),
        startup_timeout_s=float(str(document.get("startup_timeout_s", 600.0))),
        heartbeat_timeout_s=None if heartbeat is None else float(str(heartbeat)),
    )


def _parse_patterns(documents: list[object]) -> tuple[Pattern, ...]:
    """The patterns that can be parsed. One of a newer service that cannot be parsed must not end training."""
    patterns: list[Pattern] = []
    for document in documents:
        with suppress(ValueError):
            patterns.append(parse_pattern(document if isinstance(document, Mapping) else {}))
    return tuple(patterns)


class DesiredState(str, Enum):
    RUN = "run"
    STOP = "stop"


@dataclass(frozen=True, kw_only=True)
class DesiredDocument:
    """The service's desired state of a running attempt, and its answer to a report. Repeating it changes nothing."""

    state: DesiredState = DesiredState.RUN
    snapshot: int = 0  # the number of snapshots requested in this job so far; only rises
    number: int = 0  # of the newest request of any kind; only rises
    stacks: int = 0  # the number of the newest request for stacks of this attempt
    stacks_rank: int | None = None  # the rank whose stacks are requested; None: every rank
    chaos: Chaos | None = None  # the newest fault that is requested of this attempt


def render_desired(desired: DesiredDocument) -> dict[str, object]:
    chaos = None if desired.chaos is None else render_chaos(desired.chaos)
    return {**vars(desired), "state": desired.state.value, "chaos": chaos}


def parse_desired(document: Mapping[str, object]) -> DesiredDocument:
    """An unknown state reads as RUN: an old agent continues to train. An invalid count reads as 0."""
    known = {member.value for member in DesiredState}
    state, rank = str(document.get("state")), document.get("stacks_rank")
    return DesiredDocument(
        state=DesiredState(state) if state in known else DesiredState.RUN,
        snapshot=_count(document.get("snapshot")),
        number=_count(document.get("number")),
        stacks=_count(document.get("stacks")),
        stacks_rank=None if rank is None else _count(rank),
        chaos=parse_chaos(document.get("chaos")),
    )


def newest(known: DesiredDocument, received: DesiredDocument) -> DesiredDocument:
    """The document to follow. A document with a lower number than a known one is older and arrived late."""
    return known if received.number < known.number else received


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
