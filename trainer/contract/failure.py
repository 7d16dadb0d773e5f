"""Why something ended: thirteen kinds, and the record of a first cause."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum


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
    """The first cause of an end. `message` is one line; `traceback` what the rank printed, shortened to 16 kB."""

    kind: FailureKind
    message: str
    rank: int | None = None
    exit_code: int | None = None
    signal: str | None = None  # SIGKILL, ...
    step: int | None = None  # completed steps of that rank when it failed
    traceback: str | None = None
    repeated: bool = False  # the same error twice in a row, with no step between: the agent gave up on it


def render_failure(failure: Failure) -> dict[str, object]:
    return {name: value for name, value in asdict(failure).items() if value is not None} | {"kind": failure.kind.value}


def parse_failure(document: Mapping[str, object]) -> Failure:
    """Parse a failure; an unknown kind reads as UNKNOWN, unknown fields are ignored."""
    kind = str(document.get("kind"))
    known = {member.value for member in FailureKind}
    return Failure(
        kind=FailureKind(kind) if kind in known else FailureKind.UNKNOWN,
        message=str(document.get("message", "")),
        rank=_optional_int(document.get("rank")),
        exit_code=_optional_int(document.get("exit_code")),
        signal=_optional_text(document.get("signal")),
        step=_optional_int(document.get("step")),
        traceback=_optional_text(document.get("traceback")),
        repeated=document.get("repeated") is True,
    )


def signal_name(exit_code: int) -> str | None:
    """The signal behind a process's exit code: negative as Python reports it, or 128+n as a shell does."""
    number = -exit_code if exit_code < 0 else exit_code - 128
    try:
        return signal.Signals(number).name
    except ValueError:
        return None


# First match in the worker's traceback or last output wins.
_PATTERNS: tuple[tuple[str, FailureKind], ...] = (
    ("No space left on device", FailureKind.STORAGE),
    ("Disk quota exceeded", FailureKind.STORAGE),
    ("Read-only file system", FailureKind.STORAGE),
    ("SnapshotError", FailureKind.STORAGE),
    ("CUDA out of memory", FailureKind.DEVICE_OOM),
    ("torch.OutOfMemoryError", FailureKind.DEVICE_OOM),
    ("NonFiniteLoss", FailureKind.NUMERIC),
    ("MemoryError", FailureKind.HOST_OOM),
    ("EADDRINUSE", FailureKind.RENDEZVOUS),
    ("can't open file", FailureKind.LAUNCH),
    (": No module named ", FailureKind.LAUNCH),
)

# What a worker prints when a peer has gone: Gloo's and NCCL's words for a consequence.
_COLLATERAL = re.compile(
    r"Connection (closed|reset) by peer|gloo.*Broken pipe|remote process exited or there was a network error"
    r"|NCCL communicator was aborted|ncclRemoteError"
)


def classify_failure(*, exit_code: int | None, output: str) -> FailureKind:
    """Classify one worker's end from its exit code and its traceback or last output.

    A worker killed from outside (SIGKILL and its kind, nothing printed) is UNKNOWN: an out-of-memory killer, an
    operator and a dying node look alike from here.
    """
    for pattern, kind in _PATTERNS:
        if pattern in output:
            return kind
    if exit_code is not None and signal_name(exit_code) in {"SIGKILL", "SIGTERM", "SIGINT", "SIGHUP"}:
        return FailureKind.UNKNOWN
    return FailureKind.APPLICATION


def is_taken_port(failure: Failure) -> bool:
    """Whether the rendezvous failed only because another program holds its port: the next port mends that."""
    return failure.kind is FailureKind.RENDEZVOUS and "EADDRINUSE" in failure.message


def is_collateral(failure: Failure) -> bool:
    """Whether the failure reads as the loss of a peer: the first cause is another rank's, perhaps another replica's."""
    return _COLLATERAL.search(f"{failure.message}\n{failure.traceback or ''}") is not None


def _optional_int(value: object) -> int | None:
    return None if value is None else int(str(value))


def _optional_text(value: object) -> str | None:
    return None if value is None else str(value)
