"""End the workers of a generation: SIGTERM, then save their stacks, then SIGKILL."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path

from trainer.elastic.health.stacks import save_stacks
from trainer.elastic.workers.fork_server_client import ForkedProcess

_KILL_WAIT_S = 10.0  # SIGKILL works at once, except on a process in uninterruptible sleep


def end_workers(
    processes: Mapping[int, ForkedProcess],
    *,
    patience_s: float,
    folder_of: Callable[[int], Path | None],
    hang: bool = False,
) -> list[int]:
    """Send SIGTERM to the running workers, and SIGKILL to those that still run after `patience_s`.

    `processes` and `folder_of` are by local rank. Returns the local ranks whose stacks were saved. After a hang these
    are all running workers, otherwise only those that are killed.
    """
    running = {rank: process for rank, process in processes.items() if process.poll() is None}
    saved = _save_stacks(running, folder_of) if hang else []
    for process in processes.values():
        process.send_signal(signal.SIGTERM)
    _await_end(processes.values(), patience_s)
    stubborn = {rank: process for rank, process in processes.items() if process.poll() is None}
    if not stubborn:
        return saved
    saved = saved or _save_stacks(stubborn, folder_of)
    kill_workers(stubborn.values())
    return saved


def kill_workers(processes: Collection[ForkedProcess]) -> None:
    """Send SIGKILL to those that run, without a warning, and wait for their end."""
    for process in processes:
        process.kill_group()
    _await_end(processes, _KILL_WAIT_S)


def _save_stacks(processes: Mapping[int, ForkedProcess], folder_of: Callable[[int], Path | None]) -> list[int]:
    folders = {rank: folder_of(rank) for rank in processes}
    known = {processes[rank].pid: path for rank, path in folders.items() if path is not None}
    saved = set(save_stacks(known))
    return [rank for rank, process in processes.items() if process.pid in saved]


def _await_end(processes: Collection[ForkedProcess], patience_s: float) -> None:
    deadline = time.monotonic() + patience_s
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
