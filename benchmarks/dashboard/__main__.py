"""The pages with 100,000 jobs, a job of 100,000 steps, and 200 open pages.

    python -m benchmarks.dashboard [--jobs 100000] [--steps 100000] [--pages 200] [--json]

A service process on a throw-away SQLite database, all on this machine. First paints are Chromium's own
(`first-contentful-paint`); they are left out where none is installed. Polls carry the tag of what they got before, as
open pages do: `unchanged` is answered 304, `changed` with the page. The 200 pages are opened within ten seconds; what
they cost is measured once all are open.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import shutil
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import sync_playwright

from benchmarks.control_plane.stored import UNSUPERVISED, add_many, add_running, make_job, make_spec
from benchmarks.control_plane.world import Usage, describe_machine, fresh_database, serve
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
_PAINT = "() => performance.getEntriesByName('first-contentful-paint')[0].startTime"


Met = tuple[int, float]  # status, milliseconds


class Looker:
    """A page that is open: one connection, and the tag of what it shows."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=60)
        self._tag = ""

    def poll(self, path: str, *, anew: bool = False) -> Met:
        """`anew` forgets the tag."""
        headers = {"X-Fragment": "main"}
        if self._tag and not anew:
            headers["If-None-Match"] = self._tag
        began = time.perf_counter()
        self._connection.request("GET", path, headers=headers)
        answer = self._connection.getresponse()
        answer.read()
        took_ms = 1000 * (time.perf_counter() - began)
        self._tag = answer.headers.get("ETag", "")
        return answer.status, took_ms


def measure(options: argparse.Namespace) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder, fresh_database(None, Path(folder)) as database_url:
        database = Database(database_url)
        ids = add_many(database, options.jobs)
        add_long(database, options.steps)
        figures: dict[str, object] = {"jobs": len(ids), "steps": options.steps}
        with serve(Path(folder), database_url) as service:
            figures["first paint of the list"] = measure_paint(service.url, "/")
            figures["first paint of the long job"] = measure_paint(service.url, f"/jobs/{LONG}")
            for name, path in {"list": "/", "list state=FAILED": "/?state=FAILED", "job": f"/jobs/{LONG}"}.items():
                figures[f"poll {name}, unchanged"] = repeat(service.url, path, options.polls)
                figures[f"poll {name}, changed"] = repeat(service.url, path, options.polls, anew=True)
            for order in JobOrder:
                figures[f"list by {order}"] = repeat(service.url, f"/?order={order}", options.polls // 2, anew=True)
            charts = f"/jobs/{LONG}/charts?points={MAX_POINTS}"
            figures["charts, 2,000 points"] = repeat(service.url, charts, options.polls)
            figures["alone"] = measure_passes(service.url, service.pid, lambda: time.sleep(options.paced_s))
            figures.update(measure_crowd(service.url, service.pid, ids, options))
        database.dispose()
    return figures


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
    """Of ten visits, each by a browser that has nothing of the page yet."""
    chromium = shutil.which("chromium")
    if chromium is None:
        return None
    paints = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for _ in range(10):
            context = browser.new_context()
            page = context.new_page()
            page.goto(url + path, wait_until="load")
            page.wait_for_function("() => performance.getEntriesByName('first-contentful-paint').length > 0")
            paints.append(float(page.evaluate(_PAINT)))
            context.close()
        browser.close()
    return {"median_ms": round(statistics.median(paints), 1), "longest_ms": round(max(paints), 1)}


def repeat(url: str, path: str, count: int, *, anew: bool = False) -> dict[str, object]:
    """One page, one poll after the other."""
    looker = Looker(url)
    looker.poll(path)
    return summarize([looker.poll(path, anew=anew) for _ in range(count)])


@contextmanager
def crowd(url: str, ids: Sequence[str], count: int) -> Iterator[list[Met]]:
    """So many pages, opened one after the other and polled since then; what they meet is in the list. A quarter looks
    at the list of jobs, the others each at a job of its own."""
    met: list[Met] = []
    over = threading.Event()

    def look(number: int) -> None:
        looker = Looker(url)
        path = "/" if number % 4 == 0 else f"/jobs/{ids[number * 37 % len(ids)]}"
        over.wait(OPENED_WITHIN_S * number / count)
        while not over.is_set():
            began = time.monotonic()
            met.append(looker.poll(path))
            over.wait(began + PERIOD_S - time.monotonic())

    with ThreadPoolExecutor(count) as pool:
        looks = [pool.submit(look, number) for number in range(count)]
        try:
            yield met
        finally:
            over.set()
        for each in looks:
            each.result()


def measure_crowd(url: str, pid: int, ids: Sequence[str], options: argparse.Namespace) -> dict[str, object]:
    with crowd(url, ids, options.pages) as met:
        time.sleep(OPENED_WITHIN_S + PERIOD_S)
        opening = summarize(met)
        met.clear()
        passes = measure_passes(url, pid, lambda: time.sleep(options.paced_s))
        polls = summarize(met)
    return {f"opening {options.pages} pages": opening, f"{options.pages} open pages": {**passes, **polls}}


def measure_passes(url: str, pid: int, meanwhile: Callable[[], None]) -> dict[str, object]:
    """How long the supervisor's passes take, on average, while something else goes on; the service's CPU with it."""
    before, usage = read_passes(url), Usage(pid)
    meanwhile()
    used, after = usage.figures(), read_passes(url)
    count = after[0] - before[0]
    mean_ms = 1000 * (after[1] - before[1]) / count if count else None
    return {"passes": count, "mean_pass_ms": None if mean_ms is None else round(mean_ms, 2), **used}


def read_passes(url: str) -> tuple[float, float]:
    """Count and seconds of all passes, from the service's own numbers."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=60)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    sums = {
        kind: re.findall(rf"^orchestrator_pass_seconds_{kind}\{{.*\}} (\S+)$", text, re.M) for kind in ("count", "sum")
    }
    return sum(map(float, sums["count"])), sum(map(float, sums["sum"]))


def summarize(seen: Sequence[Met]) -> dict[str, object]:
    times = sorted(took for _, took in seen)
    statuses = {str(status): sum(one == status for one, _ in seen) for status in sorted({one for one, _ in seen})}
    return {
        "n": len(times),
        "p50_ms": round(statistics.median(times), 2),
        "p95_ms": round(times[int(len(times) * 0.95)], 2),
        "statuses": statuses,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--pages", type=int, default=200)
    parser.add_argument("--polls", type=int, default=100, help="of each kind")
    parser.add_argument("--paced-s", type=int, default=20)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was started ends with us
    figures = {"machine": describe_machine(), **measure(options)}
    print(json.dumps(figures) if options.json else "\n".join(f"{name:32} {value}" for name, value in figures.items()))


if __name__ == "__main__":
    main()
