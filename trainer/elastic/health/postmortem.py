"""What a dead worker left: its error file, its log, its last steps; and which of several deaths came first."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.contract import layout
from trainer.contract.failure import (
    Failure,
    FailureKind,
    Pattern,
    classify_failure,
    find_telling_line,
    is_collateral,
    is_echo,
    signal_name,
)
from trainer.contract.words import TRACEBACK
from trainer.elastic.health.fitness import find_full_disk
from trainer.elastic.records.files import read_document, read_tail

_LOG_TAIL_BYTES = 64 * 1024
_PROGRESS_TAIL_BYTES = 64 * 1024
_TRACEBACK_LIMIT = 16 * 1024  # Failure.traceback
_MESSAGE_LIMIT = 500
_LAST_LINES = 20
_CANNOT_START = "can't open file"  # Python, and child.py
_FROM_OUTSIDE = {"SIGKILL", "SIGTERM", "SIGINT", "SIGHUP"}
_FATAL = "Fatal Python error"  # faulthandler
_EPILOGUE_LINES = 60  # what C++ may print of an abort after the traceback
_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)  # torch's excepthook, once a process group exists
_CHAINED = re.compile(
    r"^(The above exception was the direct cause|During handling of the above exception)", re.MULTILINE
)


@dataclass(frozen=True, kw_only=True)
class Death:
    """One worker that ended by itself with a failure, as the agent noticed it."""

    rank: int
    local_rank: int
    exit_code: int  # negative: a signal, as Python reports it
    folder: Path | None  # layout.worker_dir; None when the worker wrote to the agent's own output


@dataclass(frozen=True, kw_only=True)
class Finding:
    failure: Failure
    at_s: float | None  # of the error file, when the worker wrote one


def find_failure(
    death: Death, steps: Mapping[int, int], *, patterns: Sequence[Pattern] = (), oom_kills: int = 0
) -> Finding:
    """Explain a death from its error file, else from the last traceback in its log, else from its last words.

    `oom_kills` is how often the kernel's out-of-memory killer acted in the workers' cgroup since they were started.
    """
    traceback, at_s = (
        parse_error_file(read_document(death.folder / layout.ERROR) or {}) if death.folder else (None, None)
    )
    tail = _last_output(death.folder) if death.folder else ""
    traceback = traceback or _fatal_traceback(tail, death.exit_code)
    last_words = "\n".join(tail.rstrip().splitlines()[-_LAST_LINES:])
    name = signal_name(death.exit_code) if death.exit_code < 0 else None
    output = traceback or _after_traceback(tail)
    kind = classify_failure(exit_code=death.exit_code, output=output, patterns=patterns)
    telling = find_telling_line(exit_code=death.exit_code, output=output, patterns=patterns)
    message = _message(death.exit_code, traceback, last_words if telling is None else telling[1], telling is not None)
    if oom_kills and signal_name(death.exit_code) == "SIGKILL" and traceback is None:
        kind, message = FailureKind.HOST_OOM, _tell_oom(oom_kills)
    if death.exit_code > 0 and not output and death.folder is not None:
        full = find_full_disk(death.folder)  # then it could not write why
        kind, message = (kind, message) if full is None else (FailureKind.STORAGE, f"{message}: {full}")
    failure = Failure(
        kind=kind,
        message=message,
        rank=death.rank,
        exit_code=death.exit_code,
        signal=name,
        step=steps.get(death.rank),
        traceback=(traceback or last_words)[-_TRACEBACK_LIMIT:] or None,
    )
    return Finding(failure=failure, at_s=at_s)


def is_failure_trace(folder: Path) -> bool:
    """Whether a worker's folder tells of a failure: an error file, a traceback, a command that could not start."""
    if (folder / layout.ERROR).exists():
        return True
    tail = _last_output(folder)
    return TRACEBACK in tail or _CANNOT_START in tail


def first_cause(findings: Sequence[Finding]) -> Failure:
    """Of several deaths noticed together, the one that is not the loss of a peer, then the earliest, then the lowest.

    Raises ValueError when there is none.
    """
    return min(findings, key=_precedence).failure


def _precedence(finding: Finding) -> tuple[bool, bool, float, int]:
    failure = finding.failure
    # Whoever timed out in a collective had waited for another. A worker killed by a signal wrote no time: it went
    # before the peers that could still write one.
    waited = is_collateral(failure) or is_echo(failure) or failure.kind is FailureKind.HANG
    return waited, failure.signal is None, finding.at_s or 0.0, failure.rank or 0


def parse_traceback(output: str) -> str | None:
    """The last traceback in a program's output, with the exceptions that it is chained to, up to its message."""
    end = output.rfind(TRACEBACK)
    if end < 0:
        return None
    start = end
    while True:
        before = output.rfind(TRACEBACK, 0, start)
        if before < 0 or not _CHAINED.search(output, before, start):
            break
        start = before
    return output[start:end] + "\n".join(_one_traceback(output[end:].splitlines()))


def _fatal_traceback(output: str, exit_code: int) -> str | None:
    """The traceback that ended the worker; None for one that it had survived until something else ended it.

    An exception can end in a signal of the process's own: Gloo aborts when a process group is torn down half-way.
    """
    traceback = parse_traceback(output)
    if traceback is None or exit_code >= 0:
        return traceback
    after = _after_traceback(output)
    survived = signal_name(exit_code) in _FROM_OUTSIDE or _FATAL in after or after.count("\n") > _EPILOGUE_LINES
    return None if survived else traceback


def _after_traceback(output: str) -> str:
    """What was printed after the last traceback; all of it when there is none."""
    end = (parse_traceback(output) or "")[-80:]
    start = output.rfind(TRACEBACK)
    return output[start:].partition(end)[2] if end else output


def _one_traceback(lines: Sequence[str]) -> list[str]:
    frames = next((i for i, line in enumerate(lines) if i > 0 and not line.startswith((" ", "\t"))), len(lines))
    rest = lines[frames:]
    blank = next((i for i, line in enumerate(rest) if not line.strip() or line.startswith(_FATAL)), len(rest))
    return [*lines[:frames], *rest[: max(1, min(blank, 12))]]


def exception_line(traceback: str) -> str:
    """The line `Type: message` of a traceback."""
    lines = traceback[traceback.rfind(TRACEBACK) :].splitlines() if TRACEBACK in traceback else traceback.splitlines()
    named = [line.strip() for line in lines[1:] if line and not line.startswith((" ", "\t"))]
    return (named or [line.strip() for line in lines if line.strip()] or [""])[0]


def parse_error_file(document: Mapping[str, object]) -> tuple[str | None, float | None]:
    """The traceback and time in what torch's `record` wrote to TORCHELASTIC_ERROR_FILE, each None when absent."""
    message = document.get("message")
    if isinstance(message, str):
        return message or None, _seconds(document.get("timestamp"))
    if not isinstance(message, Mapping):
        return None, None
    details = message.get("extraInfo")
    if not isinstance(details, Mapping):
        return str(message.get("message") or "") or None, None
    return str(details.get("py_callstack") or "") or None, _seconds(details.get("timestamp"))


def read_steps(progress: Path) -> dict[int, int]:
    """The highest completed step of each rank in the end of a replica's progress journal."""
    steps: dict[int, int] = {}
    for line in read_tail(progress, _PROGRESS_TAIL_BYTES).splitlines():
        try:
            entry = json.loads(line)
            rank, step = entry["rank"], entry["step"]
        except (ValueError, KeyError, TypeError, RecursionError):
            continue  # the first or last line of the tail may be torn, and not every line has a step
        if isinstance(rank, int) and isinstance(step, int):
            steps[rank] = max(step, steps.get(rank, 0))
    return steps


def _last_output(folder: Path) -> str:
    """The end of a worker's log, wherever a cut has just divided it."""
    older = read_tail(folder / f"{layout.WORKER_LOG}.1", _LOG_TAIL_BYTES)
    output = (older + read_tail(folder / layout.WORKER_LOG, _LOG_TAIL_BYTES))[-_LOG_TAIL_BYTES:]
    return _RANK_PREFIX.sub("", output)


def _tell_oom(oom_kills: int) -> str:
    times = "once" if oom_kills == 1 else f"{oom_kills} times"
    return f"the worker was killed by SIGKILL: the kernel ran out of memory for its cgroup and killed {times} there"


def _message(exit_code: int, traceback: str | None, last_words: str, is_telling: bool) -> str:
    """One line: the exception's own, else how the worker ended and the last or the telling line that it printed."""
    if traceback:
        return exception_line(traceback)[:_MESSAGE_LIMIT]
    last = last_words.splitlines()[-1].strip() if last_words and (exit_code >= 0 or is_telling) else ""
    end = f"ended with exit code {exit_code}"
    if exit_code < 0:
        end = f"was killed by {signal_name(exit_code) or f'signal {-exit_code}'}"
    return f"the worker {end}{': ' + last if last else ''}"[:_MESSAGE_LIMIT]


def _seconds(value: object) -> float | None:
    try:
        return float(str(value))
    except ValueError:
        return None
