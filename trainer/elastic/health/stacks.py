"""Save the Python stacks of processes to files. Standard library only.

A worker that was forked from the fork server answers a real-time signal: faulthandler writes from the signal handler,
even while the main thread is blocked in C. For any other process py-spy is used, if it is installed.
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

# Not SIGUSR1 or SIGUSR2, which users and Slurm use.
SIGNAL = signal.SIGRTMAX - 3
_ANSWER_S, _SETTLED_S, _INTERVAL_S = 0.5, 0.003, 0.001
_PY_SPY_S = 5.0
_TURN_S = 5.0
_CAUGHT, _PENDING = "SigCgt", "ShdPnd"
_offered: list[int] = []  # the file that this process writes its stacks to


def offer_stacks(folder: str) -> None:
    """Handle SIGNAL from now on: each one appends the stacks of all threads to the file in this worker's folder."""
    file = os.open(f"{folder}/{layout.STACKS}", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    faulthandler.register(SIGNAL, file=file, all_threads=True, chain=False)
    while _offered:
        os.close(_offered.pop())  # of an earlier generation
    _offered.append(file)


def save_stacks(workers: Mapping[int, Path]) -> list[int]:
    """Save the stacks of processes, each to its worker folder. Returns the pids whose stacks were saved.

    Takes at most half a second; a few seconds with py-spy, or while a process gets no turn on a busy machine. A process
    that is about to end may not answer.
    """
    before = {pid: _size(folder) for pid, folder in workers.items()}
    asked = {pid: before[pid] for pid in workers if _ask(pid)}
    _await(asked, workers)
    for pid in workers.keys() - asked.keys():
        _spy(pid, workers[pid])
    return [pid for pid, folder in workers.items() if _size(folder) > before[pid]]


def collect_stacks(workers: Mapping[int, Path], *, limit_bytes: int) -> dict[int, str]:
    """Save the stacks of processes and return them by pid, of each at most the last `limit_bytes`."""
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
    """Send the signal if the process has a handler for it. It would kill any other process."""
    if not _has_signal(_read_status(pid), _CAUGHT):
        return False
    try:
        os.kill(pid, SIGNAL)
    except OSError:
        return False
    return True


def _awaits_turn(pid: int) -> bool:
    """Whether the process is ready to run, but has not run since the signal was sent."""
    status = _read_status(pid)
    return _has_signal(status, _PENDING) and status.get("State", "").startswith("R")


def _read_status(pid: int) -> dict[str, str]:
    """The fields of /proc/PID/status (proc(5)). Empty if the process is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _has_signal(status: Mapping[str, str], name: str) -> bool:
    return bool(int(status.get(name, "0"), 16) >> (SIGNAL - 1) & 1)


def _await(before: Mapping[int, int], workers: Mapping[int, Path]) -> None:
    """Wait until every file has grown and then stopped growing, or its process is gone, or the time is up."""
    began = time.monotonic()
    deadline, sizes, settled_at = began + _ANSWER_S, dict(before), began
    while (now := time.monotonic()) < deadline:
        time.sleep(_INTERVAL_S)
        found = {pid: _size(workers[pid]) for pid in before}
        silent = [pid for pid in before if found[pid] == before[pid] and not is_gone(pid)]
        if found != sizes:
            sizes, settled_at = found, now
        elif not silent and now - settled_at >= _SETTLED_S:
            return
        if now < began + _TURN_S and any(map(_awaits_turn, silent)):
            deadline = now + _ANSWER_S  # it answers after its turn


def _spy(pid: int, folder: Path) -> None:
    program = shutil.which("py-spy")
    if program is None:
        return
    with suppress(OSError, subprocess.TimeoutExpired), _open_to_append(folder / layout.STACKS) as file:
        command = [program, "dump", "--nonblocking", "--pid", str(pid)]
        subprocess.run(command, stdout=file, stderr=subprocess.DEVNULL, timeout=_PY_SPY_S, check=False)


def _open_to_append(path: Path) -> BinaryIO:
    """Raises OSError if a worker has put a pipe or a link there. Opening a pipe without O_NONBLOCK blocks forever."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.fdopen(os.open(path, flags, 0o644), "ab")


def _size(folder: Path) -> int:
    try:
        return (folder / layout.STACKS).stat().st_size
    except OSError:
        return 0
