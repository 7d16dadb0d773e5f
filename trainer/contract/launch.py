"""The two documents that the service gives an agent: `launch.json` once, `desired.json` whenever a wish changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, kw_only=True)
class LaunchPolicy:
    """What an agent may decide without the service."""

    max_restarts: int  # in place, for failures of a worker
    stop_timeout_s: float  # from the polite signal to SIGKILL
    log_limit_bytes: int  # of one worker's log; the older half moves to `log.1`


def render_policy(policy: LaunchPolicy) -> dict[str, object]:
    return dict(vars(policy))


def parse_policy(document: Mapping[str, object]) -> LaunchPolicy:
    return LaunchPolicy(
        max_restarts=int(str(document.get("max_restarts", 0))),
        stop_timeout_s=float(str(document.get("stop_timeout_s", 10.0))),
        log_limit_bytes=int(str(document.get("log_limit_bytes", 64 * 1024 * 1024))),
    )


class DesiredState(str, Enum):
    RUN = "run"
    STOP = "stop"


@dataclass(frozen=True, kw_only=True)
class DesiredDocument:
    """What the service wants of a running attempt; also the answer to a report. Repeating it changes nothing."""

    state: DesiredState = DesiredState.RUN


def render_desired(desired: DesiredDocument) -> dict[str, object]:
    return {"state": desired.state.value}


def parse_desired(document: Mapping[str, object]) -> DesiredDocument:
    """An unknown wish reads as RUN: an old agent goes on training."""
    known = {member.value for member in DesiredState}
    state = str(document.get("state"))
    return DesiredDocument(state=DesiredState(state) if state in known else DesiredState.RUN)
