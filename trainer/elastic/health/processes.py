"""Find, kill and reap the descendants of a process, by proc(5). Standard library only."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PATIENCE_S, _INTERVAL_S = 5.0, 0.005
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_EXIT_SIGNAL = 38 - 3  # its position in /proc/<pid>/stat (proc_pid_stat(5)), counted from the third field


@dataclass(frozen=True)
class Process:
    pid: int
    parent: int
    session: int
    is_zombie: bool


def adopt_orphans() -> None:
    """Make this process the subreaper (prctl(2)): orphaned descendants become its children instead of init's."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(root: int) -> list[Process]:
    """Children, their children and so on, without twins (workers/late_release.py).

    An orphan counts below the subreaper that adopted it.
    """
    return descendants_of([root])[root]


def descendants_of(roots: Iterable[int]) -> dict[int, list[Process]]:
    """The descendants of several processes, with one scan of /proc."""
    children: dict[int, list[Process]] = {}
    for entry in os.scandir("/proc"):
        process = _read(int(entry.name)) if entry.name.isdecimal() else None
        if process is not None:
            children.setdefault(process.parent, []).append(process)
    return {root: _below(root, children) for root in roots}


def _below(root: int, children: Mapping[int, list[Process]]) -> list[Process]:
    found: list[Process] = []
    parents = [root]
    while parents:
        below = children.get(parents.pop(), [])
        found += below
        parents += [process.pid for process in below]
    return found


def end_descendants(root: int, choose: Callable[[Process], bool] = lambda process: True) -> None:
    """Kill the chosen descendants, and those they start meanwhile, until none is left or five seconds have passed.

    The limit is for processes in uninterruptible sleep, which do not die at once.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        victims = [process for process in descendants(root) if choose(process) and not process.is_zombie]
        if not victims:
            return
        for process in victims:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, signal.SIGKILL)
        time.sleep(_INTERVAL_S)


def reap_orphans() -> None:
    """Reap all dead children of this process. Only for a process that waits for no particular child."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def reap_others(child: int) -> None:
    """Reap dead children except `child`, for which the caller waits elsewhere."""
    with suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and ended.si_pid != child:
            os.waitpid(ended.si_pid, os.WNOHANG)


def is_gone(pid: int) -> bool:
    """Whether a process has ended. A zombie has."""
    try:
        return stat_fields(pid)[0] in "ZX"
    except OSError:
        return True


def stat_fields(pid: int | str) -> list[str]:
    """The fields of /proc/<pid>/stat (proc(5)) from the third on. "self" is this process. Raises OSError if it is gone.

    The second field, the command's name in parentheses, can contain any character.
    """
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].decode("ascii").split()


def _read(pid: int) -> Process | None:
    try:
        fields = stat_fields(pid)
    except OSError:
        return None
    if int(fields[_EXIT_SIGNAL]) == 0:
        return None  # a twin: it tells its parent nothing when it ends, as long as that parent lives
    return Process(pid=pid, parent=int(fields[1]), session=int(fields[3]), is_zombie=fields[0] in "ZX")
