"""How far each worker is behind the foremost."""

from __future__ import annotations

from typing import Any

from orchestrator.dashboard.grid import Grid, Lag, build_grid
from orchestrator.wire.history_views import WorkerView
from tests.builders import at


def worker(rank: int, step: int | None, **fields: Any) -> WorkerView:
    defaults: dict[str, Any] = {
        "attempt": 1,
        "replica": rank // 8,
        "local_rank": rank % 8,
        "world_size": 16,
        "generation": 1,
        "pid": 100 + rank,
        "phase": "step",
        "memory_bytes": None,
        "at": at(0),
    }
    return WorkerView(rank=rank, step=step, **{**defaults, **fields})


def lags(grid: Grid) -> list[Lag]:
    return [cell.lag for _, cells in grid.rows for cell in cells]


def test_a_workers_lag_is_its_distance_from_the_foremost() -> None:
    workers = [worker(0, 100), worker(1, 99), worker(2, 97), worker(3, 80), worker(4, None)]
    grid = build_grid(workers, now=at(1), step_s=0.1, live=True)
    assert lags(grid) == [Lag.LEVEL, Lag.LEVEL, Lag.BEHIND, Lag.FAR, Lag.FAR]
    assert [cell.worker.rank for cell in grid.worst] == [4, 3, 2]


def test_a_worker_is_silent_only_in_a_live_attempt_and_relative_to_its_step_time() -> None:
    workers = [worker(0, 5, at=at(100)), worker(1, 5)]
    assert lags(build_grid(workers, now=at(100), step_s=1, live=True)) == [Lag.LEVEL, Lag.SILENT]
    assert lags(build_grid(workers, now=at(100), step_s=10, live=True)) == [Lag.LEVEL, Lag.LEVEL]
    assert lags(build_grid(workers, now=at(9999), step_s=1, live=False)) == [Lag.LEVEL, Lag.LEVEL]


def test_done_workers_and_earlier_generations_are_not_behind() -> None:
    workers = [worker(0, 9, generation=2), worker(1, 50, generation=1), worker(2, 1, generation=2, phase="done")]
    grid = build_grid(workers, now=at(0), step_s=None, live=True)
    assert lags(grid) == [Lag.LEVEL, Lag.GONE, Lag.DONE]
    assert grid.counts == {Lag.DONE: 1, Lag.LEVEL: 1, Lag.GONE: 1}


def test_workers_are_grouped_by_replica_and_found_by_rank() -> None:
    workers = [worker(9, 3), worker(1, 3), worker(8, 3), worker(1, 7, replica=5, generation=2)]
    grid = build_grid(workers, now=at(0), step_s=None, live=True)
    assert [(replica, [cell.worker.rank for cell in cells]) for replica, cells in grid.rows] == [
        (0, [1]),
        (1, [8, 9]),
        (5, [1]),
    ]
    found = grid.find(1)
    assert found is not None
    assert found.worker.replica == 5
    assert grid.find(77) is None
