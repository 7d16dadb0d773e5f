"""Measure what ranks use: memory and CPU by proc(5), GPUs by their driver. Standard library only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from trainer.contract.resource_sample import RankSample
from trainer.elastic.health.devices import Devices, GpuUse
from trainer.elastic.health.processes import descendants_of, stat_fields

_TICKS_PER_S, _PAGE_BYTES = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
# Positions in /proc/<pid>/stat (proc_pid_stat(5)), counted from its third field.
_STATE, _TIMES, _RESIDENT = 3 - 3, slice(14 - 3, 18 - 3), 24 - 3
_CUDA_DEVICE = "/dev/nvidia-uvm"  # open in every process that uses CUDA


class RankMeter:
    """Not thread-safe. `visible` is CUDA_VISIBLE_DEVICES: indices or UUIDs, None for all."""

    def __init__(self, devices: Devices, visible: str | None) -> None:
        self._devices = devices
        self._visible = None if not visible else visible.split(",")
        self._cpu: dict[int, tuple[float, float]] = {}  # seconds of CPU and when they were read, by the rank's pid
        self.gpu_bytes: dict[int, int] = {}  # the size of each rank's GPUs, once it is known

    def measure(self, pids: Mapping[int, int], now_s: float) -> tuple[RankSample, ...]:
        """Measure ranks, in their order, with one scan of /proc. A rank whose process has ended is omitted.

        `pids` has each rank's process, the lowest local rank first.
        """
        trees = {root: [root, *(each.pid for each in below)] for root, below in descendants_of(pids.values()).items()}
        totals = {rank: total for rank, pid in pids.items() if (total := _total(trees[pid])) is not None}
        gpus = self._measure_gpus({rank: trees[pids[rank]] for rank in totals}, pids)
        cores = {rank: self._cores(pids[rank], cpu_s, now_s) for rank, (_, cpu_s) in totals.items()}
        self._cpu = {pids[rank]: (cpu_s, now_s) for rank, (_, cpu_s) in totals.items()}
        return tuple(
            RankSample(
                rank=rank,
                memory_bytes=memory,
                cpu_cores=cores[rank],
                gpu_memory_bytes=gpus[rank].memory_bytes if rank in gpus else None,
                gpu_utilization=gpus[rank].utilization if rank in gpus else None,
            )
            for rank, (memory, _) in sorted(totals.items())
        )

    def _measure_gpus(self, owners: Mapping[int, list[int]], pids: Mapping[int, int]) -> Mapping[int, GpuUse]:
        if not self._devices.count:
            return {}
        names = self._visible or [str(index) for index in range(self._devices.count)]
        own = {rank: name for (rank, pid), name in zip(pids.items(), names, strict=False) if _uses_cuda(pid)}
        found = self._devices.measure(owners, own)
        self.gpu_bytes |= {rank: use.total_bytes for rank, use in found.items() if use.total_bytes is not None}
        return found

    def _cores(self, pid: int, cpu_s: float, now_s: float) -> float | None:
        if pid not in self._cpu:
            return None
        before_cpu_s, before_s = self._cpu[pid]
        # A descendant that its parent did not wait for takes its time along.
        return round(max(0.0, cpu_s - before_cpu_s) / (now_s - before_s), 2) if now_s > before_s else None


def _total(tree: list[int]) -> tuple[int, float] | None:
    """Resident bytes and CPU seconds of a process and those below it. None if the process itself has ended."""
    stats = [_try_stat(pid) for pid in tree]
    if stats[0] is None:
        return None
    known = [stat for stat in stats if stat is not None]
    cpu_s = sum(sum(map(int, stat[_TIMES])) for stat in known) / _TICKS_PER_S
    return sum(int(stat[_RESIDENT]) for stat in known) * _PAGE_BYTES, cpu_s


def _try_stat(pid: int) -> list[str] | None:
    """None for a process that has ended: a zombie has no memory, and its parent will have its time."""
    with suppress(OSError):
        stat = stat_fields(pid)
        return None if stat[_STATE] in "ZX" else stat
    return None


def _uses_cuda(pid: int) -> bool:
    with suppress(OSError):
        return any(_target(entry) == _CUDA_DEVICE for entry in os.scandir(f"/proc/{pid}/fd"))
    return False


def _target(entry: os.DirEntry[str]) -> str:
    try:
        return str(Path(entry.path).readlink())
    except OSError:  # it was closed meanwhile
        return ""
