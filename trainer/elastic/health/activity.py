"""Activity counters of a worker's processes, from proc(5). Standard library only."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from trainer.elastic.health.processes import descendants_of, stat_fields
from trainer.elastic.health.sockets import count_bytes, read_connections

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# Positions in /proc/<pid>/stat (proc_pid_stat(5)), counted from its third field.
_STATE, _USER, _SYSTEM, _CHILDREN_USER, _CHILDREN_SYSTEM = 3 - 3, 14 - 3, 15 - 3, 16 - 3, 17 - 3
_WAKES = b"voluntary_ctxt_switches:"
_MOVED = (b"rchar:", b"wchar:")  # proc_pid_io(5)


@dataclass(frozen=True, kw_only=True)
class Activity:
    """Counters since the start, and current states, of a worker and of the processes below it.

    CPU time is in seconds. A wake-up is a voluntary context switch of a process's main thread: the end of a wait.
    """

    main_cpu_s: float = 0.0  # of the worker's main thread
    threads_cpu_s: float = 0.0  # of its other threads
    below_cpu_s: float = 0.0  # of the processes below it
    main_wakes: int = 0
    below_wakes: Mapping[int, int] = field(default_factory=dict)  # of each process below it, by pid
    moved_bytes: int = 0  # read and written by all of them
    own_traffic_bytes: int = 0  # sent and received over the worker's TCP connections
    below_traffic_bytes: int = 0  # sent and received over TCP by the processes below it
    main_state: str = "S"  # proc(5): R runs or is runnable, S sleeps, D waits for a disk or a driver, T is stopped
    other_states: frozenset[str] = frozenset()  # of its other threads and of the processes below it


def read_activities(
    pids: Iterable[int], server: int | None = None, without: Collection[int] = ()
) -> dict[int, Activity]:
    """The activity of each worker by pid, with one scan of /proc. A worker that has just ended is omitted.

    Other processes below `server`, the fork server, may be daemons of any worker, so they count for every worker,
    except those in `without` and those below them.
    """
    workers = list(pids)
    trees = descendants_of([*workers, *without, *([] if server is None else [server])])
    alive = {root: {each.pid for each in tree if not each.is_zombie} for root, tree in trees.items()}
    known = {*workers, *without, *(pid for root in (*workers, *without) for pid in alive[root])}
    daemons = set() if server is None else alive[server] - known
    connections = read_connections()
    found = {}
    for pid in workers:
        with suppress(OSError, ValueError, IndexError):
            found[pid] = _read(pid, sorted(alive[pid] | daemons), connections)
    return found


def _read(pid: int, below: Sequence[int], connections: Mapping[int, int]) -> Activity:
    main = stat_fields(f"{pid}/task/{pid}")
    threads = [each for each in map(_try_stat, _threads(pid)) if each]
    others = {child: stat for child in below if (stat := _try_stat(str(child)))}
    whole = stat_fields(pid)
    return Activity(
        main_cpu_s=_cpu_s(main),
        threads_cpu_s=max(0.0, _cpu_s(whole) - _cpu_s(main)),
        below_cpu_s=_ended_cpu_s(whole) + sum(_cpu_s(each) + _ended_cpu_s(each) for each in others.values()),
        main_wakes=_wakes(pid),
        below_wakes={child: _wakes(child) for child in others},
        moved_bytes=sum(map(_moved_bytes, [pid, *others])),
        own_traffic_bytes=count_bytes(pid, connections),
        below_traffic_bytes=sum(count_bytes(child, connections) for child in others),
        main_state=main[_STATE],
        other_states=frozenset(each[_STATE] for each in [*threads, *others.values()]),
    )


def _threads(pid: int) -> list[str]:
    """A worker's threads other than its main thread."""
    return [f"{pid}/task/{entry.name}" for entry in os.scandir(f"/proc/{pid}/task") if entry.name != str(pid)]


def _try_stat(name: str) -> list[str] | None:
    try:
        return stat_fields(name)
    except OSError:
        return None


def _cpu_s(stat: list[str]) -> float:
    return (int(stat[_USER]) + int(stat[_SYSTEM])) / _TICKS_PER_S


def _ended_cpu_s(stat: list[str]) -> float:
    """CPU time of the children that the process has waited for."""
    return (int(stat[_CHILDREN_USER]) + int(stat[_CHILDREN_SYSTEM])) / _TICKS_PER_S


def _wakes(pid: int) -> int:
    return _sum_of(f"/proc/{pid}/status", (_WAKES,))


def _moved_bytes(pid: int) -> int:
    return _sum_of(f"/proc/{pid}/io", _MOVED)


def _sum_of(path: str, names: tuple[bytes, ...]) -> int:
    """The sum of the named counters. 0 if the process is gone or belongs to another user."""
    with suppress(OSError, ValueError, IndexError):
        lines = Path(path).read_bytes().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith(names))
    return 0
