"""The kinds of failures, how they are recognized, and the record of a first cause."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum

from trainer.contract.resource_sample import LastMinute, parse_last_minute
from trainer.contract.words import TRACEBACK, cut_traceback, find_final_messages

STOPPED_EXIT_CODE = 128 + signal.SIGTERM  # of a worker that stops with its group; a shell gives it for the signal
_LINE_LIMIT = 2000  # characters
_MESSAGE_LIMIT, _SIGNAL_LIMIT = 4000, 100


class FailureKind(str, Enum):
    APPLICATION = "application"  # the user's code raised or exited non-zero
    DEVICE_OOM = "device-oom"
    HOST_OOM = "host-oom"
    HANG = "hang"
    NUMERIC = "numeric"  # NaN or infinite loss
    NODE = "node"  # the machine, or all of a replica, is gone
    PREEMPTED = "preempted"
    TIMEOUT = "timeout"  # a time limit of the job or the scheduler
    RENDEZVOUS = "rendezvous"  # a taken port (is_taken_port), or a group that did not form
    STORAGE = "storage"  # disk full, quota, unreadable snapshot
    LAUNCH = "launch"  # image, command or file is missing
    INFRASTRUCTURE = "infrastructure"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The first cause of an end. `message` is one line; `traceback` is what the rank printed, at most 16 kB."""

    kind: FailureKind
    message: str
    rank: int | None = None
    exit_code: int | None = None
    signal: str | None = None  # SIGKILL, ...
    step: int | None = None  # the newest step that this rank completed in the generation that failed
    traceback: str | None = None
    repeated: bool = False  # the same error twice in a row without a step between: the agent gave up
    last_minute: LastMinute | None = None  # the rank's memory before it ran out of memory
    at_launch: bool = False  # no worker of the job had started: set by the service when the attempt has ended


def name_cause(kind: str, signal: str | None) -> str:
    """The kind for people: a signal that somebody else sent "killed" the worker."""
    return "killed" if kind == FailureKind.UNKNOWN.value and signal is not None else kind


def render_failure(failure: Failure) -> dict[str, object]:
    return {name: value for name, value in asdict(failure).items() if value is not None} | {"kind": failure.kind.value}


def parse_failure(document: Mapping[str, object]) -> Failure:
    """Parse a failure. An unknown kind reads as UNKNOWN, an invalid number as absent. Unknown fields are ignored.

    A long message is cut at its end, a long traceback at its beginning.
    """
    kind, traceback = str(document.get("kind")), _optional_text(document.get("traceback"))
    signal = _optional_text(document.get("signal"))
    known = {member.value for member in FailureKind}
    return Failure(
        kind=FailureKind(kind) if kind in known else FailureKind.UNKNOWN,
        message=str(document.get("message", ""))[:_MESSAGE_LIMIT],
        rank=_optional_int(document.get("rank")),
        exit_code=_optional_int(document.get("exit_code")),
        signal=None if signal is None else signal[:_SIGNAL_LIMIT],
        step=_optional_int(document.get("step")),
        traceback=None if traceback is None else cut_traceback(traceback),
        repeated=document.get("repeated") is True,
        last_minute=parse_last_minute(document.get("last_minute")),
        at_launch=document.get("at_launch") is True,
    )


def signal_name(exit_code: int) -> str | None:
    """The signal that an exit code stands for: negative as in Python, or 128+n as in a shell."""
    number = -exit_code if exit_code < 0 else exit_code - 128
    try:
        return signal.Signals(number).name
    except ValueError:
        return None


def describe_end(exit_code: int) -> str:
    """How a child process ended, for a sentence: "was killed by SIGKILL", "ended with exit code 1"."""
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    return f"was killed by {signal_name(exit_code) or f'signal {-exit_code}'}"


@dataclass(frozen=True)
class Pattern:
    """A Python regular expression that is searched in each line, and the kind of failure that a match means."""

    text: str
    kind: FailureKind


def parse_pattern(document: Mapping[str, object]) -> Pattern:
    """Parse {"text": ..., "kind": ...}. Raises ValueError for an unknown kind and for a bad expression."""
    text, kind = document.get("text"), str(document.get("kind"))
    if not isinstance(text, str) or not text:
        raise ValueError(f"pattern: text is {text!r}, must be a regular expression")
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"pattern: text {text!r} is not a regular expression: {error}") from error
    if kind not in {member.value for member in FailureKind}:
        raise ValueError(
            f"pattern: kind is {kind!r}, must be one of {', '.join(member.value for member in FailureKind)}"
        )
    return Pattern(text, FailureKind(kind))


def render_pattern(pattern: Pattern) -> dict[str, object]:
    return {"text": pattern.text, "kind": pattern.kind.value}


def classify_failure(*, exit_code: int | None, output: str, patterns: Sequence[Pattern] = ()) -> FailureKind:
    """Classify a worker's end by its exit code and its traceback or last output. `patterns` are tried before PATTERNS.

    A worker that was killed from outside and left no traceback is UNKNOWN, whatever it printed before: an out-of-memory
    killer, an operator and a dying node look alike from here.
    """
    found = find_telling_line(exit_code=exit_code, output=output, patterns=patterns)
    if found is not None:
        return found[0]
    if TRACEBACK not in output:
        if _killed_from_outside(exit_code):
            return FailureKind.UNKNOWN
        if exit_code in (126, 127):  # not executable, not found: POSIX, Shell Command Language, 2.8.2
            return FailureKind.LAUNCH
    return FailureKind.APPLICATION


def find_telling_line(
    *, exit_code: int | None, output: str, patterns: Sequence[Pattern] = ()
) -> tuple[FailureKind, str] | None:
    """The first line of the output that matches a pattern, with the kind of that pattern."""
    silent = TRACEBACK not in output and _killed_from_outside(exit_code)
    table = tuple(patterns) if silent else (*patterns, *PATTERNS)
    for text in find_final_messages(output):
        for pattern in table:
            for line in _lines(text):
                if re.search(pattern.text, line):
                    return pattern.kind, line.strip()
    return None


def _killed_from_outside(exit_code: int | None) -> bool:
    return exit_code is not None and signal_name(exit_code) in {"SIGKILL", "SIGTERM", "SIGINT", "SIGHUP"}


def is_taken_port(failure: Failure) -> bool:
    """Whether the rendezvous failed only because another program holds its port. Another port helps."""
    of_the_group = failure.kind is FailureKind.RENDEZVOUS and failure.rank is None
    return of_the_group and "EADDRINUSE" in failure.message


def is_collateral(failure: Failure) -> bool:
    """Whether the failure is the loss of a peer. The first cause is in another rank, perhaps of another replica."""
    texts = (failure.message, *find_final_messages(failure.traceback or ""))
    return any(_COLLATERAL.search(line) for text in texts for line in _lines(text))


def is_stop(failure: Failure) -> bool:
    """Whether the worker ended after a stop to which its group had agreed, or after a SIGTERM that it got itself."""
    return failure.exit_code == STOPPED_EXIT_CODE and failure.kind is FailureKind.UNKNOWN


def is_echo(failure: Failure) -> bool:
    """Whether the message refers to another rank: all ranks failed in the same way at the same time."""
    return any(_ECHO.search(line) for line in _lines(failure.message))


def _lines(text: str) -> list[str]:
    """The lines to search, shortened: a pattern with two parts takes long to search in a very long line."""
    return [line[:_LINE_LIMIT] for line in text.splitlines()]


def _optional_int(value: object) -> int | None:
    try:
        return int(str(value))
    except ValueError:
        return None


def _optional_text(value: object) -> str | None:
    return None if value is None else str(value)


# What programs print on clusters. Only the texts of `find_final_messages` are searched, line by line, and the first
# match wins. A false match is worse than a miss, so a pattern must match an error and not a warning.
PATTERNS: tuple[Pattern, ...] = (
    # Shared memory is host memory, although the error names a device. torch: MapAllocator.cpp; NCCL: misc/shmutils.cc
    Pattern(r"</torch_.*(No space left on device|Cannot allocate memory)", FailureKind.HOST_OOM),
    Pattern(r"/dev/shm/.*(No space left on device|Cannot allocate memory)", FailureKind.HOST_OOM),
    Pattern(r"insufficient shared memory \(shm\)", FailureKind.HOST_OOM),  # torch: csrc/DataLoader.cpp
    Pattern(r"DataLoader worker .* killed by signal: (Killed|Bus error)", FailureKind.HOST_OOM),  # the same file
    # Errors of file systems, as strerror(3) prints them. Sockets have ENOTCONN, too; only a dead mount names a path.
    Pattern(r"No space left on device", FailureKind.STORAGE),
    Pattern(r"Disk quota exceeded", FailureKind.STORAGE),
    Pattern(r"Read-only file system", FailureKind.STORAGE),
    Pattern(r"Stale (NFS )?file handle", FailureKind.STORAGE),
    Pattern(r"(\[Errno 5\]|:) Input/output error", FailureKind.STORAGE),
    Pattern(r"Transport endpoint is not connected: ['\"b]", FailureKind.STORAGE),  # Python's OSError with a file
    Pattern(r"cannot (access|open) .*: Transport endpoint is not connected", FailureKind.STORAGE),  # coreutils
    # torch.save: caffe2/serialize/inline_container.cc, where the file system is full or failed
    Pattern(r"inline_container\.cc:\d+\] .*unexpected pos \d+ vs \d+", FailureKind.STORAGE),
    Pattern(r"PytorchStreamWriter failed writing (file|central directory)", FailureKind.STORAGE),
    Pattern(r"^(trainer: |[\w.]*\b)(SnapshotError|DamagedSnapshot)\b", FailureKind.STORAGE),  # trainer/errors.py
    # torch: c10/cuda/CUDACachingAllocator.cpp, which says HIP on ROCm; cudaErrorMemoryAllocation (2), CUDA Runtime API
    Pattern(r"\b(CUDA|HIP|XPU) out of memory", FailureKind.DEVICE_OOM),
    Pattern(r"^torch(\.cuda)?\.OutOfMemoryError\b", FailureKind.DEVICE_OOM),
    Pattern(
        r"\b(CUDA|HIP) error: out of memory|(cuda|hip)Error(Memory|OutOfMemory)(Allocation)?\b", FailureKind.DEVICE_OOM
    ),
    Pattern(r"CUBLAS_STATUS_ALLOC_FAILED", FailureKind.DEVICE_OOM),  # cuBLAS, cublasStatus_t
    Pattern(r"Cuda failure \d* ?'out of memory'", FailureKind.DEVICE_OOM),  # NCCL: include/checks.h
    # CPython and NumPy (_ArrayMemoryError); torch: c10/core/impl/alloc_cpu.cpp; libstdc++; ENOMEM, but not of
    # ibv_reg_mr: its limit on locked memory is the same on other nodes
    Pattern(r"^[\w.]*MemoryError\b", FailureKind.HOST_OOM),
    Pattern(r"DefaultCPUAllocator: (not enough|can't allocate) memory", FailureKind.HOST_OOM),
    Pattern(r"std::bad_alloc", FailureKind.HOST_OOM),
    Pattern(r"^(?!.*\bibv_).*Cannot allocate memory", FailureKind.HOST_OOM),
    # NVIDIA, Xid Errors: those that name hardware (48 double-bit ECC, 64 row remapping, 74 NVLink, 79 off the bus,
    # 92/94/95 ECC, 119/120 GSP); 13, 31 and 43 are mostly bugs of the program
    Pattern(r"NVRM: Xid \([^)]*\): (48|64|74|79|92|94|95|119|120)\b", FailureKind.NODE),
    Pattern(r"GPU has fallen off the bus", FailureKind.NODE),  # Xid 79
    # CUDA Runtime API: cudaErrorECCUncorrectable, NvlinkUncorrectable, SystemNotReady. Not cudaErrorLaunchFailure
    # ("unspecified launch failure") nor IllegalAddress: mostly bugs of the program
    Pattern(r"uncorrectable (ECC|NVLink) error", FailureKind.NODE),
    Pattern(r"CUDA error: system not yet initialized", FailureKind.NODE),
    Pattern(r"Unable to determine the device handle for GPU", FailureKind.NODE),  # nvidia-smi
    # trainer/errors.py; torch: csrc/autograd anomaly mode; Lightning: callbacks; DeepSpeed: fp16/loss_scaler.py;
    # Megatron-LM: core/rerun_state_machine
    Pattern(r"^(trainer: |[\w.]*\b)NonFiniteLoss\b", FailureKind.NUMERIC),
    Pattern(r"returned nan values in its \d+th output", FailureKind.NUMERIC),
    Pattern(r"The loss returned in `\w+` is (nan|inf)", FailureKind.NUMERIC),
    Pattern(r"Current loss scale already at minimum", FailureKind.NUMERIC),
    Pattern(r"found NaN in local", FailureKind.NUMERIC),
    # torch: c10d/socket.cpp and TCPStore.cpp, if the group never formed
    Pattern(r"EADDRINUSE", FailureKind.RENDEZVOUS),
    Pattern(r"waiting for clients\. \d+/\d+ clients joined", FailureKind.RENDEZVOUS),
    Pattern(r"client socket has timed out after .* while trying to connect to", FailureKind.RENDEZVOUS),
    # torch: c10d/ProcessGroupNCCL.cpp and ProcessGroupGloo.cpp (monitoredBarrier); gloo: transport/tcp
    Pattern(r"Watchdog caught collective operation timeout", FailureKind.HANG),
    Pattern(r"watchdog got stuck for \d+ seconds", FailureKind.HANG),
    Pattern(r"Timed out waiting \d+ms for (send|recv) operation", FailureKind.HANG),
    Pattern(r"Application timeout caused pair closure", FailureKind.HANG),
    Pattern(r"failed to pass monitoredBarrier in \d+", FailureKind.HANG),
    Pattern(r"timed out in monitoredBarrier after \d+", FailureKind.HANG),
    # CPython: Modules/main.c and runpy, and elastic/child.py, which prints the same; bash; ld.so(8)
    Pattern(r"can't open file (or command )?['/]", FailureKind.LAUNCH),
    Pattern(r": No module named ", FailureKind.LAUNCH),
    Pattern(r"Exec format error", FailureKind.LAUNCH),  # an image for another processor
    Pattern(r"error while loading shared libraries: ", FailureKind.LAUNCH),
    # torch: multiprocessing/spawn.py. For a killed child nothing else is known, as for a killed worker.
    Pattern(r"^[\w.]*ProcessExitedException: process \d+ .* SIG(KILL|TERM|INT|HUP)$", FailureKind.UNKNOWN),
)

# What a worker prints when it has lost a peer. gloo: transport/tcp/pair.cc ("Connection closed by peer" is
# its own, any socket has "reset by peer", so gloo or NCCL must be in the line); NCCL: misc/socket.cc and ncclResult_t;
# torch: c10d/socket.cpp, when the store's host has gone, and ProcessGroupNCCL.cpp, when a peer reports the timeout.
_ECHO = re.compile(r"\bNonFiniteLoss: .*; (look at rank \d+|as rank 0 says)$")
_COLLATERAL = re.compile(
    r"Connection closed by (remote )?peer"
    r"|(gloo|Read error|Write error|NCCL|[Ss]ocketProgress|Call to \w+ from|SocketImpl).*[Cc]onnection reset by peer"
    r"|(gloo|Write error|SocketImpl).*[Bb]roken pipe"
    r"|remote process exited or there was a network error"
    r"|NCCL communicator was aborted|ncclRemoteError"
    r"|Connection was likely closed\. Did the remote server shutdown or crash"
    r"|Received a dump signal due to a collective timeout from"
)
