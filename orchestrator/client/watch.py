"""Wait for the end of a job, and follow its log, across restarts of the service."""

from __future__ import annotations

import re
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Literal, TypedDict

from orchestrator.client.calls import Calls, path_of
from orchestrator.client.errors import ServiceUnreachable
from orchestrator.client.transport import Patience
from orchestrator.domain.errors import OrchestratorError
from orchestrator.wire.job_views import JobView

MAX_LOG_LINES = 10_000  # the service's limit for one answer
_QUIET_LOG_S = 300  # a followed log that is silent for so long is requested again, because the connection may be dead
_SOON_S, _LATER_S, _SOON_UNTIL_S = 0.3, 2.0, 30.0  # between two requests for a job, during the first 30 s and later
_AFTER_AN_END_S = 0.5
LABEL = re.compile(r"^\[a\d+ (g\d+ )?(agent )?r\d+(/\d+)?\] ")


class LogChoice(TypedDict, total=False):
    """Which log lines to read: the last `tail` lines, lines that contain `grep`, the logs of `stream`, and logs written
    to after `since` (RFC 3339). None means the service's default."""

    attempt: int | None
    replica: int | None
    rank: int | None
    tail: int | None
    grep: str | None
    stream: Literal["worker", "agent", "stacks"] | None
    since: str | None


class WaitTimeout(OrchestratorError, TimeoutError):
    """The job did not end in time. It continues."""


def wait(
    calls: Calls,
    job_id: str,
    *,
    timeout_s: float | None,
    on_change: Callable[[JobView], None] | None,
    outage_s: float,
) -> JobView:
    """See Client.wait."""
    started, last = time.monotonic(), None
    while True:
        job = calls.get(path_of(job_id), JobView, patience_s=outage_s)
        if on_change is not None and job != last:
            on_change(job)
        if job.ended:
            return job
        last, waited_s = job, time.monotonic() - started
        if timeout_s is not None and waited_s >= timeout_s:
            raise WaitTimeout(f"job {job_id} is {job.state} after {timeout_s:g} s: {job.reason}")
        time.sleep(_SOON_S if waited_s < _SOON_UNTIL_S else _LATER_S)


def follow_logs(calls: Calls, job_id: str, which: LogChoice, *, outage_s: float) -> Iterator[str]:
    """See Client.follow_logs."""
    patience = Patience(calls.transport, outage_s)
    params = chosen(which)
    shown: deque[str] = deque(maxlen=MAX_LOG_LINES)
    while True:
        known = Counter(shown)
        tail = max(int(params["tail"]), len(shown))
        try:
            query = {**params, "tail": tail, "follow": "true"}
            path = f"{path_of(job_id)}/logs"
            for line in calls.lines(path, query, read_timeout_s=_QUIET_LOG_S, patience=patience):
                # A second worker or generation gives lines a label that had none when they were shown.
                same = line if known[line] > 0 else LABEL.sub("", line, count=1)
                if known[same] > 0:
                    known[same] -= 1
                    continue
                shown.append(line)
                yield line
            if _is_past(calls, job_id, which.get("attempt"), outage_s):
                return
        except ServiceUnreachable as failure:
            patience.wait(failure)


def whole_log(calls: Calls, job_id: str, which: LogChoice) -> Iterator[str]:
    """See Client.whole_log."""
    query = {name: value for name, value in chosen(which).items() if name != "tail"}
    patience = Patience(calls.transport, 0)
    path = f"{path_of(job_id)}/logs"
    return calls.lines(path, {**query, "whole": "true"}, read_timeout_s=_QUIET_LOG_S, patience=patience)


def chosen(which: LogChoice) -> dict[str, str | int]:
    """Return the choice as query parameters."""
    given = {name: value for name, value in which.items() if isinstance(value, (int, str))}
    return {"tail": MAX_LOG_LINES, **given}


def _is_past(calls: Calls, job_id: str, attempt: int | None, outage_s: float) -> bool:
    """Whether the stream ended because the log is complete. It also ends when the service stops."""
    job = calls.get(path_of(job_id), JobView, patience_s=outage_s)
    if job.ended or attempt not in (None, job.attempt):
        return True
    time.sleep(_AFTER_AN_END_S)
    return False
