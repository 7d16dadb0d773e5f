"""The workers of an attempt by replica and rank, and how far each is behind the foremost. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import groupby

from orchestrator.wire.history_views import WorkerView
from trainer.contract.progress import Phase

_BEHIND_STEPS = 2  # a difference of one step is normal between two reports
_FAR_STEPS = 10
_SILENT_S = 60.0
_SILENT_STEPS = 20  # a worker reports each step, so this silence is unusual


class Lag(StrEnum):
    """A worker compared with the foremost worker of its generation. The worst comes last."""

    DONE = "done"
    LEVEL = "in step"
    BEHIND = "behind"
    FAR = "far behind"
    SILENT = "silent"
    GONE = "from an earlier generation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    worker: WorkerView
    lag: Lag
    steps_behind: int
    silent_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    rows: Sequence[tuple[int, Sequence[Cell]]]  # by replica, then by local rank
    counts: Mapping[Lag, int]
    worst: Sequence[Cell]  # the workers that are not in step, worst first

    @property
    def size(self) -> int:
        return sum(self.counts.values())

    def find(self, rank: int) -> Cell | None:
        """Return the worker with this rank in the newest generation that has one."""
        found = [cell for _, cells in self.rows for cell in cells if cell.worker.rank == rank]
        return max(found, key=lambda cell: (cell.worker.generation, cell.worker.at), default=None)


def build_grid(workers: Sequence[WorkerView], *, now: datetime, step_s: float | None, live: bool) -> Grid:
    """`workers` are those of one attempt. Without `live` the attempt has ended, and silent workers are normal."""
    generation = max((worker.generation for worker in workers), default=0)
    front = max((worker.step or 0 for worker in workers if worker.generation == generation), default=0)
    limit_s = max(_SILENT_S, _SILENT_STEPS * (step_s or 0.0)) if live else None
    cells = [_cell(worker, generation, front, now, limit_s) for worker in workers]
    cells.sort(key=lambda cell: (cell.worker.replica, cell.worker.local_rank))
    counted = Counter(cell.lag for cell in cells)
    order = list(Lag)
    worst = sorted(
        (cell for cell in cells if cell.lag not in (Lag.DONE, Lag.LEVEL)),
        key=lambda cell: (-order.index(cell.lag), -cell.steps_behind, cell.worker.rank),
    )
    return Grid(
        rows=[(replica, list(group)) for replica, group in groupby(cells, key=lambda cell: cell.worker.replica)],
        counts={lag: counted[lag] for lag in order if counted[lag]},
        worst=worst,
    )


def _cell(worker: WorkerView, generation: int, front: int, now: datetime, limit_s: float | None) -> Cell:
    behind = max(0, front - (worker.step or 0))
    silent_s = max(0.0, (now - worker.at).total_seconds())
    lag = _lag(worker, behind, generation, silent=limit_s is not None and silent_s > limit_s)
    return Cell(worker=worker, lag=lag, steps_behind=behind, silent_s=silent_s)


def _lag(worker: WorkerView, behind: int, generation: int, *, silent: bool) -> Lag:
    if worker.phase == Phase.DONE.value:
        return Lag.DONE
    if worker.generation < generation:
        return Lag.GONE
    if silent:
        return Lag.SILENT
    if behind >= _FAR_STEPS:
        return Lag.FAR
    return Lag.BEHIND if behind >= _BEHIND_STEPS else Lag.LEVEL
