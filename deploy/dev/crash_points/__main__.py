"""Kill or stop a service before and after each of its effects. Exit status 1: a cell failed, and its folder is kept."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext
from pathlib import Path

import psycopg

from deploy.dev.crash_points.cell import ROUNDS, Cell, Play, preload
from deploy.dev.crash_points.points import SIDES
from deploy.dev.crash_points.verdict import judge
from deploy.dev.databases import scratch_database
from deploy.dev.postgres import NoPostgres, postgres_server
from orchestrator.store.upgrade import upgrade

_TRIES = 3  # runs to reach a point that not every run passes
_TEMPLATE = "tables"


@dataclass(frozen=True)
class Result:
    cell: Cell
    word: str  # passed, failed or not reached
    more: str = ""


class Matrix:
    """Runs cells, each on a copy of a database that has the tables."""

    def __init__(self, folder: Path, server: str, context: ForkServerContext) -> None:
        self._folder, self._server, self._context = folder, server, context

    def count(self) -> list[str]:
        """Return the points of an undisturbed run in the order of their first use. Raises SystemExit if it fails."""
        folder = self._folder / "undisturbed"
        play, problems = self._play(None, folder)
        if problems:
            sys.exit(f"the undisturbed run failed, see {folder}:\n" + "\n".join(problems))
        return list(dict.fromkeys(play.points.read_text().splitlines()))

    def try_cell(self, number: int, cell: Cell) -> Result:
        for attempt in range(1, _TRIES + 1):
            folder = self._folder / f"cell-{number}-{attempt}"
            play, problems = self._play(cell, folder)
            if problems:
                (folder / "problems").write_text(f"{cell}\n" + "\n".join(problems) + "\n")
                return Result(cell, "failed", f"{problems[0][:600]} ({folder})")
            shutil.rmtree(folder)
            if play.outcome.injected:
                return Result(cell, "passed")
        return Result(cell, "not reached", f"in {_TRIES} runs")

    def _play(self, cell: Cell | None, folder: Path) -> tuple[Play, list[str]]:
        with scratch_database(self._server, _TEMPLATE) as url:
            play = Play(cell, folder, url, self._context)
            return play, judge(play.run())


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options = _options()
    folder = Path(tempfile.mkdtemp(prefix="orchestrator-crash-points-")).resolve()
    started = time.monotonic()
    try:
        with postgres_server() as url:
            return _run(options, folder, url, started)
    except NoPostgres as error:
        print(error)
        return 1
    except KeyboardInterrupt:
        print("interrupted")
        return 130


def _run(options: argparse.Namespace, folder: Path, url: str, started: float) -> int:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {_TEMPLATE}")
    upgrade(url.replace("/postgres?", f"/{_TEMPLATE}?"))
    matrix = Matrix(folder, url, preload())
    points = matrix.count()
    cells = [Cell(point, side, each) for each in options.signal for point in points for side in SIDES]
    print(f"{len(points)} crash points, {len(cells)} cells", flush=True)
    if options.list:
        print("\n".join(points))
        shutil.rmtree(folder)
        return 0
    if options.only:
        cells = [cell for cell in cells if options.only in str(cell)]
    if options.sample is not None:
        cells = random.Random(options.seed).sample(cells, min(options.sample, len(cells)))
    counts: Counter[tuple[str, str]] = Counter()
    for result in _play_all(matrix, cells, options.jobs):
        counts[result.cell.round, result.word] += 1
        if result.word != "passed":
            print(f"{result.word}: {result.cell}: {result.more}", flush=True)
        if counts.total() % 25 == 0:
            print(f"{counts.total()} of {len(cells)} cells", flush=True)
    for (each, word), count in sorted(counts.items()):
        print(f"{each:8}{word:12}{count:6}")
    print(f"{len(cells)} cells in {time.monotonic() - started:.0f} s on {os.cpu_count()} cores", flush=True)
    if any(word == "failed" for _, word in counts):
        print(f"evidence: {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


def _play_all(matrix: Matrix, cells: list[Cell], jobs: int) -> Iterator[Result]:
    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(matrix.try_cell, number, cell) for number, cell in enumerate(cells)]
        try:
            yield from (future.result() for future in as_completed(futures))
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            raise


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m deploy.dev.crash_points", description=__doc__)
    parser.add_argument(
        "--signal", choices=[*ROUNDS, "both"], default="both", help="both: every round, including wake and cancel"
    )
    parser.add_argument("--sample", type=int, metavar="N", help="run N cells, chosen by --seed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", metavar="TEXT", help="run only cells whose name contains TEXT")
    parser.add_argument("--jobs", type=int, default=6, metavar="N", help="cells at one time")
    parser.add_argument("--list", action="store_true", help="print the points and exit")
    options = parser.parse_args()
    options.signal = list(ROUNDS) if options.signal == "both" else [options.signal]
    return options


if __name__ == "__main__":
    sys.exit(main())
