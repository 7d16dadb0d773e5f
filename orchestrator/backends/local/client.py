"""Start detached processes on this machine, find them by the mark in their environment, and signal them.

Pid, start time and boot id identify a process (proc(5)). A signal goes through a pidfd that is opened before this
identity is checked, so it never reaches another process that reuses the pid.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.open_files import restore_open_file_limit
from trainer.contract import env
from trainer.contract.agent_record import ProcessIdentity

_PROC = Path("/proc")
_NUMBER = re.compile(rb"[0-9]{1,9}")
# A process has ended, or belongs to another user. Any other error, as for want of descriptors, tells nothing about it.
_NOT_OURS = (FileNotFoundError, ProcessLookupError, PermissionError)


@dataclass(frozen=True, slots=True)
class MarkedProcess:
    """A process that carries an attempt's mark: an agent, a worker or a descendant of either."""

    pid: int
    start_ticks: int
    replica: int


def spawn(
    command: Sequence[str], environment: Mapping[str, str], *, cwd: str, output: BinaryIO
) -> subprocess.Popen[bytes]:
    """Start a process in its own session. Raises OSError."""
    started = subprocess.Popen(
        command,
        env=dict(environment),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    restore_open_file_limit(started.pid)
    return started


def boot_id() -> str:
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def host_name() -> str:
    return socket.gethostname()


def runs(process: ProcessIdentity) -> bool:
    """Whether this process exists and is not a zombie. False for another process with the same pid. Raises OSError."""
    found = _stat(process.pid)
    return found is not None and found == ("live", process.start_ticks)


def marked(key: AttemptKey, job_dir: Path) -> Iterator[MarkedProcess]:
    """Yield this user's processes that carry the attempt's mark. Zombies have no mark. Raises OSError."""
    wanted = {f"{env.JOB_DIR}={job_dir}".encode(), f"{env.ATTEMPT}={key.number}".encode()}
    prefix = f"{env.REPLICA}=".encode()
    for pid in _pids():
        try:
            variables = set((_PROC / str(pid) / "environ").read_bytes().split(b"\0"))
        except _NOT_OURS:
            continue
        found = _stat(pid)
        if not wanted <= variables or found is None or found[0] != "live":
            continue
        replica = next((entry.removeprefix(prefix) for entry in variables if entry.startswith(prefix)), b"0")
        yield MarkedProcess(pid, found[1], int(replica) if _NUMBER.fullmatch(replica) else 0)


def send_signal(process: MarkedProcess, number: signal.Signals) -> None:
    """Signal this process. Does nothing if it has ended."""
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(process.pid)
        try:
            if _stat(process.pid) == ("live", process.start_ticks):
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit())


def _stat(pid: int) -> tuple[str, int] | None:
    """Return ("live" or "zombie", start time in ticks), or None if no process has this pid."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except _NOT_OURS:
        return None
    # The command's name may contain spaces and parentheses, so fields count from the last parenthesis.
    fields = text.rpartition(")")[2].split()
    return ("zombie" if fields[0] in "ZX" else "live", int(fields[19]))
