"""Play the matrix and print what came of it; exit 1 when a cell failed, and keep its folder."""

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
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext
from pathlib import Path

import psycopg

from deploy.dev.crash_points.cell import ROUNDS, Cell, Database, Play, preload
from deploy.dev.crash_points.points import SIDES
from deploy.dev.crash_points.verdict import judge
from deploy.dev.postgres import NoPostgres, postgres_server
from orchestrator.store import schema

_TRIES = 3  # to reach a point that only some runs pass
_TEMPLATE = "tables"


@dataclass(frozen=True)
class Result:
    cell: Cell
    problems: list[str]
    reached: bool
    seconds: float
    folder: Path


class Matrix:
    def __init__(self, folder: Path, database: Database, context: ForkServerContext, *, lean: bool) -> None:
        self._folder = folder
        self._database = database
        self._context = context
        self._lean = lean

    def count(self) -> list[str]:
        """The points of an undisturbed run, in the order of their first happening. Raises SystemExit if it fails."""
        folder = self._folder / "undisturbed"
        play, problems = self._play(None, folder)
        if problems:
            sys.exit(f"the undisturbed run failed, see {folder}:\n" + "\n".join(problems))
        return list(dict.fromkeys(play.points.read_text().splitlines()))

    def try_cell(self, number: int, cell: Cell) -> Result:
        started = time.monotonic()
        for attempt in range(1, _TRIES + 1):
            folder = self._folder / f"cell-{number}-{attempt}"
            play, problems = self._play(cell, folder)
            if problems or play.outcome.struck:
                break
        if problems:
            (folder / "problems").write_text(f"{cell}\n" + "\n".join(problems) + "\n")
        return Result(cell, problems, play.outcome.struck, time.monotonic() - started, folder)

    def _play(self, cell: Cell | None, folder: Path) -> tuple[Play, list[str]]:
        with self._database.copy() as url:
            play = Play(cell, folder, url, self._context, lean=self._lean)
            problems = judge(play.run())
        if not problems and cell is not None:
            shutil.rmtree(folder)
        return play, problems


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
    schema.upgrade(url.replace("/postgres?", f"/{_TEMPLATE}?"))
    matrix = Matrix(folder, Database(url, _TEMPLATE), preload(), lean=options.agent == "lean")
    points = matrix.count()
    cells = [Cell(point, side, each) for each in options.signal for point in points for side in SIDES]
    print(f"{len(points)} crash points, {len(cells)} cells; agents: {options.agent}", flush=True)
    if options.list:
        print("\n".join(points))
    if options.only:
        cells = [cell for cell in cells if options.only in str(cell)]
    if options.sample is not None:
        cells = random.Random(options.seed).sample(cells, min(options.sample, len(cells)))
    if options.list:
        return 0
    results = _play_all(matrix, cells, options)
    return _tell(results, len(cells), folder, time.monotonic() - started)


def _play_all(matrix: Matrix, cells: list[Cell], options: argparse.Namespace) -> list[Result]:
    results: list[Result] = []
    with ThreadPoolExecutor(options.jobs) as pool:
        futures = [pool.submit(matrix.try_cell, number, cell) for number, cell in enumerate(cells)]
        try:
            for future in as_completed(futures):
                result = future.result()
                results.append(result)
                _tell_one(result, len(results), len(cells))
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            raise
    return results


def _tell_one(result: Result, done: int, total: int) -> None:
    if result.problems:
        print(f"FAILED {result.cell}: {result.problems[0][:600]} ({result.folder})", flush=True)
    elif not result.reached:
        print(f"not reached in {_TRIES} runs: {result.cell}", flush=True)
    if done % 25 == 0:
        print(f"{done} of {total} cells", flush=True)


def _tell(results: Iterable[Result], planned: int, folder: Path, seconds: float) -> int:
    counts: Counter[tuple[str, str]] = Counter()
    for result in results:
        word = "failed" if result.problems else "passed" if result.reached else "not reached"
        counts[result.cell.round, word] += 1
    print(f"{'round':8}{'passed':>8}{'failed':>8}{'not reached':>13}")
    for each in ROUNDS:
        passed, failed, missed = (counts[each, word] for word in ("passed", "failed", "not reached"))
        if passed + failed + missed:
            print(f"{each:8}{passed:8}{failed:8}{missed:13}")
    print(f"{planned} cells in {seconds:.0f} s on {os.cpu_count()} cores", flush=True)
    if any(word == "failed" for _, word in counts):
        print(f"evidence: {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m deploy.dev.crash_points", description=__doc__)
    parser.add_argument("--signal", choices=[*ROUNDS, "both"], default="both", help="both: every round, wake included")
    parser.add_argument("--sample", type=int, metavar="N", help="N cells, chosen by --seed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", metavar="TEXT", help="the cells whose name holds TEXT")
    parser.add_argument("--agent", choices=["lean", "real"], default="lean", help="real: with torch, slower")
    parser.add_argument("--jobs", type=int, default=6, metavar="N", help="cells at one time")
    parser.add_argument("--list", action="store_true", help="print the points and end")
    options = parser.parse_args()
    options.signal = list(ROUNDS) if options.signal == "both" else [options.signal]
    return options


if __name__ == "__main__":
    sys.exit(main())
