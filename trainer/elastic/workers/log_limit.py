"""Workers' logs stay below a limit: the newest half of a log that grew too long moves to `log.1`."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path

from trainer.contract import layout
from trainer.elastic.records.files import numbered

_INTERVAL_S = 0.25
_COPY_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Cut:
    """What of a log is kept: the bytes from `start` to its end."""

    start: int


def decide_cut(size_bytes: int, limit_bytes: int) -> Cut | None:
    """Cut a log over its limit, keeping half the limit; None leaves it alone. A limit of 0 means none."""
    if limit_bytes <= 0 or size_bytes <= limit_bytes:
        return None
    return Cut(start=size_bytes - limit_bytes // 2)


def bound_log(log: Path, limit_bytes: int) -> bool:
    """Cut one log if it is too long; its writers have it open with O_APPEND and go on at the new end.

    What is written between the copy and the cut is lost. On a full disk the log is cut all the same.
    """
    try:
        cut = decide_cut(log.stat().st_size, limit_bytes)
        if cut is None:
            return False
        try:
            _copy(log, log.with_name(f"{log.name}.1"), cut.start)
        finally:
            os.truncate(log, 0)
    except OSError:
        return False
    return True


def bound_logs(incarnation_dir: Path, limit_bytes: int) -> None:
    """Those of the newest generation, and of the one before, which may still be ending: there may be hundreds."""
    for _, generation in numbered(incarnation_dir, "g")[-2:]:
        for _, worker in numbered(generation, "local-"):
            bound_log(worker / layout.WORKER_LOG, limit_bytes)


def start_log_bounding(incarnation_dir: Path, limit_bytes: int) -> None:
    """Bound all workers' logs of this incarnation from a daemon thread for as long as the process lives."""

    def watch() -> None:
        while True:
            bound_logs(incarnation_dir, limit_bytes)
            pause.wait(_INTERVAL_S)

    pause = threading.Event()
    threading.Thread(target=watch, name="log-bounds", daemon=True).start()


def _copy(log: Path, target: Path, start: int) -> None:
    temporary = target.with_name(f".{target.name}")
    with log.open("rb") as source, temporary.open("wb") as sink:
        source.seek(start)
        source.readline()  # begin at a line
        while chunk := source.read(_COPY_BYTES):
            sink.write(chunk)
    temporary.replace(target)
