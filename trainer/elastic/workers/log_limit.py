"""Bound the workers' logs: the newest part of a log that exceeds the limit moves to `log.1`."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from trainer.contract import layout
from trainer.elastic.records.files import numbered

_INTERVAL_S = 0.25
_COPY_BYTES = 1024 * 1024


def find_cut(size_bytes: int, limit_bytes: int) -> int | None:
    """The offset from which a log over its limit is kept: the last half of the limit. None: do not cut the log.

    A limit of 0 means no limit.
    """
    if limit_bytes <= 0 or size_bytes <= limit_bytes:
        return None
    return size_bytes - limit_bytes // 2


def bound_log(log: Path, limit_bytes: int) -> bool:
    """Cut one log if it is too long. Its writers use O_APPEND, so they continue at the new end.

    What is written between the copy and the cut is lost. If the copy fails on a full disk, the log is still cut.
    """
    try:
        start = find_cut(log.stat().st_size, limit_bytes)
        if start is None:
            return False
        try:
            _copy(log, log.with_name(f"{log.name}.1"), start)
        finally:
            os.truncate(log, 0)
    except OSError:
        return False
    return True


def bound_logs(incarnation_dir: Path, limit_bytes: int) -> None:
    """Bound the logs of the newest two generations. There may be hundreds; only the last two can still write."""
    for _, generation in numbered(incarnation_dir, "g")[-2:]:
        for _, worker in numbered(generation, "local-"):
            bound_log(worker / layout.WORKER_LOG, limit_bytes)


def start_log_bounding(incarnation_dir: Path, limit_bytes: int) -> None:
    """Bound the workers' logs of this incarnation, from a daemon thread that never ends."""

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
