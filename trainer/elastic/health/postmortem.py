"""Explain the death of a worker from its error file, log and last steps, and pick the first of several deaths."""

from __future__ import annotations

import errno
import json
import os
import re
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.contract import layout
from trainer.contract.failure import (
    Failure,
    FailureKind,
    Pattern,
    classify_failure,
    describe_end,
    find_telling_line,
    is_collateral,
    is_echo,
    signal_name,
)
from trainer.contract.words import TRACEBACK, cut_traceback
from trainer.elastic.health.fitness import find_full_disk, find_full_place
from trainer.elastic.records.files import read_document, read_tail

_LOG_TAIL_BYTES = 64 * 1024
_PROGRESS_TAIL_BYTES = 64 * 1024
_MESSAGE_LIMIT = 500
_LAST_LINES = 20
_CANNOT_START = "can't open file"  # Python, and child.py
_FROM_OUTSIDE = {"SIGKILL", "SIGTERM", "SIGINT", "SIGHUP"}
_FATAL = "Fatal Python error"  # faulthandler
_NAMES_NO_PLACE = re.compile(r"^[^/]*(No space left on device|inline_container|PytorchStreamWriter)[^/]*$")
_EPILOGUE_LINES = 60  # the most that C++ prints about an abort after the traceback
_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)  # torch's excepthook, once a process group exists
_CHAINED = re.compile(
    r"^(The above exception was the direct cause|During handling of the above exception)", re.MULTILINE
)


@dataclass(frozen=True, kw_only=True)
class Death:
    """A worker that failed on its own, as the agent saw it."""

    rank: int
    local_rank: int
    exit_code: int  # negative: a signal, as Python reports it
    folder: Path | None  # layout.worker_dir; None when the worker wrote to the agent's own output


@dataclass(frozen=True, kw_only=True)
class Finding:
    failure: Failure
    at_s: float | None  # the time in the error file, if the worker wrote one


def find_failure(
    death: Death, steps: Mapping[int, int], *, patterns: Sequence[Pattern] = (), oom_kills: int = 0
) -> Finding:
    """Explain a death by its error file, else by the last traceback in its log, else by the log's last lines.

    `oom_kills` counts the kills by the kernel's out-of-memory killer in the workers' cgroup since they started.
    """
    traceback, at_s = (
        parse_error_file(read_document(death.folder / layout.ERROR) or {}) if death.folder else (None, None)
    )
    tail = _last_output(death.folder) if death.folder else ""
    traceback = traceback or _fatal_traceback(tail, death.exit_code)
    last_lines = "\n".join(tail.rstrip().splitlines()[-_LAST_LINES:])
    name = signal_name(death.exit_code) if death.exit_code < 0 else None
    output = traceback or _after_traceback(tail)
    kind = classify_failure(exit_code=death.exit_code, output=output, patterns=patterns)
    telling = find_telling_line(exit_code=death.exit_code, output=output, patterns=patterns)
    message = _message(death.exit_code, traceback, last_lines if telling is None else telling[1], telling is not None)
    if oom_kills and signal_name(death.exit_code) == "SIGKILL" and traceback is None:
        kind, message = FailureKind.HOST_OOM, _oom_message(oom_kills)
    if death.exit_code > 0 and not output and death.folder is not None:
        full = find_full_disk(death.folder)  # a full disk explains why the worker wrote nothing
        kind, message = (kind, message) if full is None else (FailureKind.STORAGE, f"{message}: {full}")
    if kind is FailureKind.STORAGE and _NAMES_NO_PLACE.search(message):
        message += _where_full(output, death.folder)
    failure = Failure(
        kind=kind,
        message=message,
        rank=death.rank,
        exit_code=death.exit_code,
        signal=name,
        step=steps.get(death.rank),
        traceback=cut_traceback(traceback or last_lines) or None,
    )
    return Finding(failure=failure, at_s=at_s)


def _where_full(output: str, folder: Path | None) -> str:
    """The file system that has no space left: an error of write(2) names no file, and torch's not even the reason."""
    folders = [Path.cwd(), Path(tempfile.gettempdir()), Path("/dev/shm"), *([] if folder is None else [folder])]
    place = find_full_place(output, folders)
    return "" if place is None else f" ({os.strerror(errno.ENOSPC)}: {place})"


def shows_failure(folder: Path) -> bool:
    """Whether a worker's folder shows a failure: an error file, a traceback, or a command that could not start."""
    if (folder / layout.ERROR).exists():
        return True
    tail = _last_output(folder)
    return TRACEBACK in tail or _CANNOT_START in tail


def first_cause(findings: Sequence[Finding]) -> Failure:
    """The first cause of several deaths that were noticed together.

    A death that is not the loss of a peer precedes one that is. Then the earliest counts, then the lowest rank. Raises
    ValueError if `findings` is empty.
    """
    return min(findings, key=_precedence).failure


def _precedence(finding: Finding) -> tuple[bool, bool, float, int]:
    failure = finding.failure
    # A rank that timed out in a collective was waiting for another rank. A worker killed by a signal has no time,
    # and died before the peers that could still write one.
    waited = is_collateral(failure) or is_echo(failure) or failure.kind is FailureKind.HANG
    return waited, failure.signal is None, finding.at_s or 0.0, failure.rank or 0


def parse_traceback(output: str) -> str | None:
    """The last traceback in a program's output, from the first exception of its chain to the message."""
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
    """The traceback that ended the worker. None if the worker survived its last traceback and died of something else.

    An exception can end in the process's own signal: Gloo aborts if a process group is destroyed half-way.
    """
    traceback = parse_traceback(output)
    if traceback is None or exit_code >= 0:
        return traceback
    after = _after_traceback(output)
    survived = signal_name(exit_code) in _FROM_OUTSIDE or _FATAL in after or after.count("\n") > _EPILOGUE_LINES
    return None if survived else traceback


def _after_traceback(output: str) -> str:
    """The output after the last traceback; all of it if there is none."""
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
    """The traceback and time in TORCHELASTIC_ERROR_FILE, which torch's `record` writes. Each is None if absent."""
    message = document.get("message")
    if isinstance(message, str):
        return message or None, _seconds(document.get("timestamp"))
    if not isinstance(message, Mapping):
        return None, None
    details = message.get("extraInfo")
    if not isinstance(details, Mapping):
        return str(message.get("message") or "") or None, None
    return str(details.get("py_callstack") or "") or None, _seconds(details.get("timestamp"))


class Steps:
    """The completed steps in the end of a replica's progress journal, by generation. One may begin at an earlier step.

    Generation None is that of lines that name none.
    """

    def __init__(self) -> None:
        self._by_generation: defaultdict[int | None, dict[int, int]] = defaultdict(dict)

    def add(self, generation: int | None, rank: int, step: int) -> None:
        own = self._by_generation[generation]
        own[rank] = max(step, own.get(rank, 0))

    def of(self, generation: int | None) -> Mapping[int, int]:
        """The highest step that each rank completed in a generation."""
        return self._by_generation.get(generation, {})

    @property
    def highest(self) -> int | None:
        """The highest step of any rank in any generation."""
        return max((max(own.values()) for own in self._by_generation.values()), default=None)


def read_steps(progress: Path) -> Steps:
    """Read the end of a replica's progress journal."""
    steps = Steps()
    for line in read_tail(progress, _PROGRESS_TAIL_BYTES).splitlines():
        try:
            entry = json.loads(line)
            rank, step = entry["rank"], entry["step"]
        except (ValueError, KeyError, TypeError, RecursionError):
            continue  # the first or last line of the tail may be torn, and not every line has a step
        if isinstance(rank, int) and isinstance(step, int):
            generation = entry.get("generation")
            steps.add(generation if isinstance(generation, int) else None, rank, step)
    return steps


def _last_output(folder: Path) -> str:
    """The end of a worker's log, including what was moved to `log.1`."""
    older = read_tail(folder / f"{layout.WORKER_LOG}.1", _LOG_TAIL_BYTES)
    output = (older + read_tail(folder / layout.WORKER_LOG, _LOG_TAIL_BYTES))[-_LOG_TAIL_BYTES:]
    return _RANK_PREFIX.sub("", output)


def _oom_message(oom_kills: int) -> str:
    kills = f"{oom_kills} kill{'s' if oom_kills > 1 else ''} by the kernel"
    return f"the worker was killed by SIGKILL, because its cgroup ran out of memory ({kills})"


def _message(exit_code: int, traceback: str | None, last_lines: str, is_telling: bool) -> str:
    """One line: the exception, else how the worker ended, with its last line of output or the one that explains it."""
    if traceback:
        return exception_line(traceback)[:_MESSAGE_LIMIT]
    last = last_lines.splitlines()[-1].strip() if last_lines and (exit_code >= 0 or is_telling) else ""
    return f"the worker {describe_end(exit_code)}{': ' + last if last else ''}"[:_MESSAGE_LIMIT]


def _seconds(value: object) -> float | None:
    try:
        return float(str(value))
    except ValueError:
        return None
