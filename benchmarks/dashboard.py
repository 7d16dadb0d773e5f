"""The pages with 100,000 jobs, a job of 100,000 steps, and 200 open pages.

    python -m benchmarks.dashboard [--jobs 100000] [--steps 100000] [--pages 200] [--json]

A service process on a throw-away SQLite database, all on this machine. First paints are Chromium's own
(`first-contentful-paint`); they are left out where none is installed. Polls carry the tag of what they got before, as
open pages do: `unchanged` is answered 304, `changed` with the page. The 200 pages are opened within ten seconds; what
they cost is measured once all are open.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from playwright.sync_api import sync_playwright

from benchmarks.control_plane.load import Answer, Caller, Request, Usage, fresh_database, serve, summarize
from benchmarks.control_plane.stored import UNSUPERVISED, add_many, add_running, make_job, make_spec
from benchmarks.frame import Figures, begin, build_parser, finish, render_number, render_table
from orchestrator.dashboard.charts import MAX_POINTS
from orchestrator.domain.job.job import JobState
from orchestrator.ports.jobs import JobOrder
from orchestrator.store.engine import Database
from orchestrator.store.journal_store import SqlJournalStore
from tests.builders import make_batch
from trainer.contract.clock import render_time
from trainer.contract.progress import Phase, Progress

PERIOD_S = 2.0  # of an open page's polls
OPENED_WITHIN_S = 10.0
LONG = "long"
_IN_ONE_BATCH = 5000
_VISITS = 10
_PAINT = "() => performance.getEntriesByName('first-contentful-paint')[0].startTime"


class Page:
    """A page that is open: one connection, and the tag of what it shows."""

    def __init__(self, url: str, path: str) -> None:
        self._caller, self._path, self._tag = Caller(url), path, ""

    def poll(self, *, anew: bool = False) -> Answer:
        """`anew` forgets the tag."""
        tag = {"If-None-Match": self._tag} if self._tag and not anew else {}
        answer = self._caller.ask(Request(path=self._path, headers={"X-Fragment": "main", **tag}))
        self._tag = answer.etag
        return answer


def measure(options: argparse.Namespace) -> Figures:
    """`paints`, `polls` and `passes`, each by name."""
    paints, polls, passes = Figures(), Figures(), Figures()
    with tempfile.TemporaryDirectory() as folder, fresh_database(None, Path(folder)) as database_url:
        database = Database(database_url)
        ids = add_many(database, options.jobs)
        add_long(database, options.steps)
        database.dispose()
        with serve(Path(folder), database_url) as service:
            paints["first paint of the list"] = measure_paint(service.url, "/")
            paints["first paint of the long job"] = measure_paint(service.url, f"/jobs/{LONG}")
            for name, path in {"list": "/", "list state=FAILED": "/?state=FAILED", "job": f"/jobs/{LONG}"}.items():
                polls[f"poll {name}, unchanged"] = repeat(service.url, path, options.polls)
                polls[f"poll {name}, changed"] = repeat(service.url, path, options.polls, anew=True)
            for order in JobOrder:
                polls[f"list by {order}"] = repeat(service.url, f"/?order={order}", options.polls // 2, anew=True)
            charts = f"/jobs/{LONG}/charts?points={MAX_POINTS}"
            polls["charts, 2,000 points"] = repeat(service.url, charts, options.polls)
            usage = Usage(service)
            time.sleep(options.paced_s)
            passes["alone"] = usage.figures()
            with open_pages(service.url, ids, options.pages) as met:
                time.sleep(OPENED_WITHIN_S + PERIOD_S)
                polls[f"opening {options.pages} pages"] = describe(met)
                met.clear()
                usage = Usage(service)
                time.sleep(options.paced_s)
                passes[f"{options.pages} open pages"] = usage.figures()
                polls[f"{options.pages} open pages"] = describe(met)
    return {"jobs": len(ids), "steps": options.steps, "paints": paints, "polls": polls, "passes": passes}


def add_long(database: Database, steps: int) -> None:
    """A job of so many steps, each with what the bundled trainer measures."""
    born = datetime(2026, 2, 1, tzinfo=UTC)
    spec = make_spec(cluster=UNSUPERVISED)
    add_running(database, make_job(LONG, spec, JobState.RUNNING, born), steps=1)
    names = ("loss", "tokens_per_s", "step_s", "compute_s", "communication_s", "data_s", "grad_norm", "mfu")
    for first in range(2, steps + 1, _IN_ONE_BATCH):
        lines = [
            Progress(
                at=render_time(born), rank=0, local_rank=0, world_size=8, generation=1, pid=4000, phase=Phase.STEP,
                step=step, total_steps=steps, metrics=dict.fromkeys(names, 1.0 / (1 + step % 97)),
            )
            for step in range(first, min(steps, first + _IN_ONE_BATCH - 1) + 1)
        ]  # fmt: skip
        batch = make_batch(LONG, incarnation=2, progress=list(enumerate(lines, first - 1)))
        SqlJournalStore(database).ingest([replace(batch, progress_from=first - 2)], arrived_at=born)


def measure_paint(url: str, path: str) -> dict[str, float] | None:
    """Of ten visits, each by a browser that has nothing of the page yet; None without a Chromium."""
    chromium = shutil.which("chromium")
    if chromium is None:
        return None
    paints = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for _ in range(_VISITS):
            context = browser.new_context()
            page = context.new_page()
            page.goto(url + path, wait_until="load")
            page.wait_for_function("() => performance.getEntriesByName('first-contentful-paint').length > 0")
            paints.append(float(page.evaluate(_PAINT)))
            context.close()
        browser.close()
    return {"median_ms": round(statistics.median(paints), 1), "longest_ms": round(max(paints), 1)}


def repeat(url: str, path: str, count: int, *, anew: bool = False) -> Figures:
    """One page, one poll after the other."""
    page = Page(url, path)
    page.poll()
    return describe([page.poll(anew=anew) for _ in range(count)])


@contextmanager
def open_pages(url: str, ids: Sequence[str], count: int) -> Iterator[list[Answer]]:
    """So many pages, opened one after the other and polled since then; their answers are in the list.

    A quarter shows the list of jobs, the others each a job of its own.
    """
    met: list[Answer] = []
    over = threading.Event()

    def show(number: int) -> None:
        page = Page(url, "/" if number % 4 == 0 else f"/jobs/{ids[number * 37 % len(ids)]}")
        over.wait(OPENED_WITHIN_S * number / count)
        while not over.is_set():
            began = time.monotonic()
            met.append(page.poll())
            over.wait(began + PERIOD_S - time.monotonic())

    with ThreadPoolExecutor(count) as pool:
        shown = [pool.submit(show, number) for number in range(count)]
        try:
            yield met
        finally:
            over.set()
        for each in shown:
            each.result()


def describe(answers: Sequence[Answer]) -> Figures:
    counted = Counter(answer.status for answer in answers)
    return {**summarize(answers, 1.0), "statuses": {str(status): counted[status] for status in sorted(counted)}}


def render(figures: Figures) -> list[str]:
    paints = [[name, *(f"{ms} ms" for ms in told.values())] for name, told in figures["paints"].items() if told]
    polls = [
        [
            name,
            told["n"],
            *(render_number(told[key], "ms") for key in ("p50_ms", "p95_ms")),
            ", ".join(f"{status}: {count}" for status, count in told["statuses"].items()),
        ]
        for name, told in figures["polls"].items()
    ]
    passes = [
        [name, told["passes"], render_number(told["mean_pass_ms"], "ms"), told["service_cores"]]
        for name, told in figures["passes"].items()
    ]
    return [
        f"{figures['jobs']} stored jobs; a job of {figures['steps']} steps.",
        "",
        *([*render_table([f"n = {_VISITS}", "median", "longest"], paints), ""] if paints else []),
        *render_table(["request", "n", "p50", "p95", "statuses"], polls),
        "",
        *render_table(["meanwhile", "passes", "mean pass", "cores of the service"], passes),
    ]


def main() -> int:
    parser = build_parser("dashboard", __doc__)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--pages", type=int, default=200)
    parser.add_argument("--polls", type=int, default=100, help="of each kind")
    parser.add_argument("--paced-s", type=int, default=20)
    options = parser.parse_args()
    begin()
    figures = measure(options)
    return finish(figures, render(figures), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
