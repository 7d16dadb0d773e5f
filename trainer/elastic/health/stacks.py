"""Where a process stands: its Python stacks, on disk before it is killed. Standard library only.

A worker that was forked from our server answers a real-time signal by itself (faulthandler writes from the signal
handler, also while its main thread is blocked in C). Of any other process py-spy tells, where it is installed.
"""

from __future__ import annotations

import faulthandler
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from trainer.contract import layout
from trainer.elastic.health.processes import is_gone
from trainer.elastic.records.files import open_to_read

# Nobody else's: SIGUSR1 and SIGUSR2 are the user's own, and Slurm's.
SIGNAL = signal.SIGRTMAX - 3
_ANSWER_S, _SETTLED_S, _INTERVAL_S = 0.5, 0.003, 0.001
_PY_SPY_S = 5.0
_SIGCGT = "SigCgt:"


def offer_stacks(folder: str) -> None:
    """Answer SIGNAL from now on: each time all threads' stacks are appended to the file in this worker's folder."""
    file = os.open(f"{folder}/{layout.STACKS}", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    faulthandler.register(SIGNAL, file=file, all_threads=True, chain=False)


def save_stacks(workers: Mapping[int, Path]) -> list[int]:
    """Save the stacks of processes, each to its worker folder; returns the pids of which there are some now.

    Takes half a second at most, or a few with py-spy. Who is just ending may not answer.
    """
    before = {pid: _size(folder) for pid, folder in workers.items()}
    asked = {pid: before[pid] for pid in workers if _ask(pid)}
    _await(asked, workers)
    for pid in workers.keys() - asked.keys():
        _spy(pid, workers[pid])
    return [pid for pid, folder in workers.items() if _size(folder) > before[pid]]


def collect_stacks(workers: Mapping[int, Path], *, limit_bytes: int) -> dict[int, str]:
    """Save the stacks of processes and return them by pid, of each the last `limit_bytes` of what it has now said."""
    before = {pid: _size(folder) for pid, folder in workers.items()}
    return {pid: _read_from(workers[pid], before[pid], limit_bytes) for pid in save_stacks(workers)}


def _read_from(folder: Path, offset: int, limit_bytes: int) -> str:
    try:
        with open_to_read(folder / layout.STACKS) as file:
            file.seek(max(offset, file.seek(0, os.SEEK_END) - limit_bytes))
            return file.read(limit_bytes).decode(errors="replace")
    except OSError:
        return ""


def _ask(pid: int) -> bool:
    """Send the signal to a process that has a handler for it; any other would die of it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")  # it begins with the name
        caught = int(next(line for line in status.splitlines() if line.startswith(_SIGCGT)).split()[1], 16)
        if not caught >> (SIGNAL - 1) & 1:
            return False
        os.kill(pid, SIGNAL)
    except (OSError, StopIteration):
        return False
    return True


def _await(before: Mapping[int, int], workers: Mapping[int, Path]) -> None:
    """Wait until every file has grown and stands still, or its process is gone. A frozen process never answers."""
    deadline = time.monotonic() + _ANSWER_S
    sizes, settled_at = dict(before), time.monotonic()
    while time.monotonic() < deadline:
        time.sleep(_INTERVAL_S)
        now = {pid: _size(workers[pid]) for pid in before}
        if now != sizes:
            sizes, settled_at = now, time.monotonic()
        elif time.monotonic() - settled_at >= _SETTLED_S and all(
            now[pid] > before[pid] or is_gone(pid) for pid in before
        ):
            return


def _spy(pid: int, folder: Path) -> None:
    program = shutil.which("py-spy")
    if program is None:
        return
    with suppress(OSError, subprocess.TimeoutExpired), _open_to_append(folder / layout.STACKS) as file:
        command = [program, "dump", "--nonblocking", "--pid", str(pid)]
        subprocess.run(command, stdout=file, stderr=subprocess.DEVNULL, timeout=_PY_SPY_S, check=False)


def _open_to_append(path: Path) -> BinaryIO:
    """Raises OSError where a worker has put a pipe: to open one would wait for its reader for ever."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o644), "ab")


def _size(folder: Path) -> int:
    try:
        return (folder / layout.STACKS).stat().st_size
    except OSError:
        return 0
