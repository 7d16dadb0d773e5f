"""The control plane under load: submissions by layer, reads, pages, reports, passes, idle, streams, memory.

    python -m benchmarks.control_plane [--database sqlite|postgres|both] [--json] [--parts ...]
    python -m benchmarks.control_plane --parts growth --stored 1000000 --metric-rows 100000000   # hours, and 60 GB

A service process uses a throw-away database; its clients are in this process, on the same machine. PostgreSQL runs
without fsync and on a Unix socket, unless --fsync and --network-ms say otherwise. Only the job whose log is followed
starts: other jobs wait in the queue, or belong to a cluster that the service does not have.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from benchmarks.control_plane.followers import measure_followers
from benchmarks.control_plane.growth import DURATION_COLUMNS, measure_growth, render_duration
from benchmarks.control_plane.idle import IDLE_COLUMNS, measure_idle, render_idle
from benchmarks.control_plane.layers import LAYER_COLUMNS, measure_layers, render_layers
from benchmarks.control_plane.load import (
    COLUMNS,
    Caller,
    Request,
    Usage,
    drive,
    fresh_database,
    post,
    read_memory,
    render_load,
    serve,
)
from benchmarks.control_plane.network_delay import add_delay
from benchmarks.control_plane.passes import PASS_COLUMNS, measure_passes, render_pass
from benchmarks.control_plane.sharing import CLUSTERS, SHARED_COLUMNS, measure_sharing, render_sharing
from benchmarks.control_plane.stored import (
    UNSUPERVISED,
    WORKERS,
    add_many,
    add_queue,
    add_running,
    copy,
    make_job,
    make_line,
    make_spec,
)
from benchmarks.frame import Figures, begin, build_parser, finish, render_number, render_table
from deploy.dev.postgres import running_postgres
from deploy.dev.service import ThrowawayService
from orchestrator.client import Client
from orchestrator.domain.job.job import JobState
from orchestrator.store.engine import Database
from orchestrator.store.records import JobOrder
from trainer.contract.progress import render_progress

PARTS = ("submissions", "layers", "reads", "pages", "reports", "passes", "idle", "followers")
GROWTH, SHARING = "growth", "sharing"  # only if asked for
REPLICAS = 1250  # with 8 workers each: 10,000 workers
RATE_PER_S = 250  # each replica every 5 s
_FIRST_REPORTER = 5_000_000  # number of the first copy
_FIRST_STEP = 10_000
_READS_PER_S = 20


def measure(server: str | None, options: argparse.Namespace) -> Figures:
    """All parts on one kind of database, each with its own database."""
    figures: Figures = {}
    if "submissions" in options.parts:
        figures["submissions"] = _alone(server, partial(measure_submissions, count=options.submissions))
    if "layers" in options.parts:
        requests = _submissions("layers", options.submissions)
        figures["layers"] = _alone(server, partial(measure_layers, requests=requests))
    for count in options.jobs if {"reads", "pages", "reports"} & set(options.parts) else []:
        figures[f"{count} jobs"] = _alone(server, partial(measure_stored, count=count, options=options))
    for count in options.live if "passes" in options.parts else []:
        figures[f"pass over {count} jobs"] = _alone(server, partial(measure_passes, count=count))
    if "idle" in options.parts:
        most = max(options.live)
        figures["idle"] = {
            f"{most} {name}": _alone(server, partial(measure_idle, count=most, live=live))
            for name, live in (("queued jobs", False), ("running jobs", True))
        }
    if "followers" in options.parts:
        figures["followers"] = _alone(server, partial(measure_followers, round_s=options.paced_s))
    if GROWTH in options.parts:
        with tempfile.TemporaryDirectory() as folder:
            grown = measure_growth(Path(folder), server, options.stored, options.metric_rows, options.reads)
        figures[f"{options.stored} jobs, {options.metric_rows} rows of metrics"] = grown
    if SHARING in options.parts and server is not None:
        for count in options.services:
            requests = _submissions("shared", options.submissions, CLUSTERS)
            with tempfile.TemporaryDirectory() as folder:
                figures[f"{count} services"] = {
                    "shared": measure_sharing(server, Path(folder), count, requests, options.reads)
                }
    return figures


def _alone(server: str | None, measured: Callable[[Path, str], Figures]) -> Figures:
    with tempfile.TemporaryDirectory() as folder, fresh_database(server, Path(folder)) as url:
        return measured(Path(folder), url)


def measure_submissions(folder: Path, url: str, count: int) -> Figures:
    """Every job waits, because of `add_queue`."""
    with Database(url) as database:
        add_queue(database, "local")
    figures: Figures = {}
    with serve(folder, url) as service:
        drive(service.url, _submissions("warm", 50))
        for name, connections in (("sequential", 1), ("16 clients", 16)):
            usage = Usage(service)
            met = drive(service.url, _submissions(name[:3].strip(), count), connections=connections)
            figures[name] = {**met, **usage.figures()}
        return {**figures, "memory": read_memory(service)}


def _submissions(prefix: str, count: int, clusters: Sequence[str] = ("local",)) -> list[Request]:
    document = {
        "project": "research",
        "run": {"command": ["python", "train.py"], "workdir": "/", "env": {"A": "b"}},
        "topology": {"nodes": 1, "workers_per_node": 2},
        "labels": {"team": "research", "sweep": "s1"},
    }
    return [
        post("/api/v1/jobs", {**document, "name": f"{prefix}-{number}", "cluster": clusters[number % len(clusters)]})
        for number in range(count)
    ]


def measure_stored(folder: Path, url: str, count: int, options: argparse.Namespace) -> Figures:
    """Lists and shows, and on the largest database also pages and reports."""
    database = Database(url)
    ids = add_many(database, count)
    is_reporting = "reports" in options.parts and count == max(options.jobs)
    reporters = add_reporters(database) if is_reporting else []
    database.dispose()
    figures: Figures = {}
    with serve(folder, url) as service:
        if "reads" in options.parts:
            lists, shows = [_list()] * options.reads, random.Random(1).choices(ids, k=options.reads)
            for name, requests in {"list": lists, "show": list(map(_show, shows))}.items():
                drive(service.url, requests[:5])
                figures[name] = drive(service.url, requests)
        if "pages" in options.parts and count == max(options.jobs):
            figures["pages"] = measure_pages(service.url, ids[-1], options.reads)
        if is_reporting:
            figures["reports"] = measure_reports(service, reporters, options.report_rounds, options.paced_s)
        return {**figures, "memory": read_memory(service)}


def _list() -> Request:
    return Request(path="/api/v1/jobs?limit=50")


def _show(job_id: str) -> Request:
    return Request(path=f"/api/v1/jobs/{job_id}")


def measure_pages(url: str, job_id: str, count: int) -> Figures:
    """Poll an open page with its current tag, which gives 304, and without one."""
    figures: Figures = {}
    for path in ("/", "/?state=FAILED", f"/?order={JobOrder.UPDATED}", f"/jobs/{job_id}"):
        fragment = {"X-Fragment": "main"}
        tag = Caller(url).ask(Request(path=path, headers=fragment)).etag
        for name, more in (("unchanged", {"If-None-Match": tag}), ("changed", {})):
            poll = Request(path=path, headers=fragment | more)
            figures[f"{path.replace(job_id, 'JOB')}, {name}"] = drive(url, [poll] * count)
    return figures


def add_reporters(database: Database) -> list[str]:
    """Add jobs that will report, with one replica each."""
    spec = make_spec(cluster=UNSUPERVISED, topology={"workers_per_node": WORKERS})
    add_running(database, make_job("reporter", spec, JobState.RUNNING, datetime.now(UTC)), steps=0)
    return copy(database, "reporter", range(_FIRST_REPORTER, _FIRST_REPORTER + REPLICAS))


def measure_reports(service: ThrowawayService, ids: Sequence[str], rounds: int, paced_s: int) -> Figures:
    """Reports per second, and how responsive the service is meanwhile."""
    paced = RATE_PER_S * paced_s
    looks = [_list() if number % 2 else _show(ids[number % len(ids)]) for number in range(paced_s * _READS_PER_S)]
    drive(service.url, _reports(ids, 0, REPLICAS), connections=4)
    usage = Usage(service)
    figures = {
        "16 clients": {**drive(service.url, _reports(ids, 1, REPLICAS * rounds), connections=16), **usage.figures()}
    }
    usage = Usage(service)
    with ThreadPoolExecutor(1) as pool:
        requests = _reports(ids, 1 + rounds, paced)
        running = pool.submit(drive, service.url, requests, connections=64, rate=RATE_PER_S)
        meanwhile = drive(service.url, looks, connections=8, rate=_READS_PER_S)
        figures["paced"] = {**running.result(), **usage.figures()}
    last_step = _FIRST_STEP + rounds + -(-paced // REPLICAS)
    with Client(service.url) as client:
        assert client.job(ids[0]).step == last_step, "a report is missing"
    return {**figures, "list and show meanwhile": meanwhile}


def _reports(ids: Sequence[str], first_round: int, count: int) -> list[Request]:
    """Rounds of reports of all replicas. In each, every worker reports one more step, at the journal's next byte."""
    requests = []
    for number in range(count):
        step = first_round + number // len(ids)
        lines = [json.dumps(render_progress(make_line(_FIRST_STEP + step, rank))) for rank in range(WORKERS)]
        length = sum(len(line) + 1 for line in lines)  # equal for every report: numbers have a fixed width
        document = {
            "version": 1, "job_id": ids[number % len(ids)], "attempt": 1, "replica": 0, "incarnation": 2,
            "progress_from": step * length, "progress": lines, "progress_to": (step + 1) * length,
        }  # fmt: skip
        requests.append(post("/api/v1/reports", document))
    return requests


def render(kinds: Figures) -> list[str]:
    """The tables. `kinds` has the figures by database."""
    parts = [(kind, name, figures) for kind, parts in kinds.items() for name, figures in parts.items()]
    submitted = [
        render_load(f"{kind}, {how}", met)
        for kind, part, figures in parts
        if part == "submissions"
        for how, met in figures.items()
        if how != "memory"
    ]
    read = [
        render_load(f"{kind}, {part}: {name}", figures[name])
        for kind, part, figures in parts
        for name in ("list", "show")
        if name in figures
    ]
    reported = [
        render_load(f"{kind}: {name}", met)
        for kind, _, figures in parts
        for name, met in figures.get("reports", {}).items()
    ]
    polled = _render_rows(parts, "pages", render_load)
    followed = [
        [*render_load(f"{kind}, {how}", met), render_number(met["mean_pass_ms"], "ms")]
        for kind, part, figures in parts if part == "followers" for how, met in figures.items()
    ]  # fmt: skip
    passed = [
        render_pass(f"{kind}, {part.removeprefix('pass over ')}: {name}", times)
        for kind, part, figures in parts if part.startswith("pass over") for name, times in figures.items()
    ]  # fmt: skip
    idled = [
        render_idle(f"{kind}, {how}", met)
        for kind, part, figures in parts if part == "idle" for how, met in figures.items()
    ]  # fmt: skip
    held = [
        [f"{kind}, {part}", *(f"{figures['memory'][key]} MB" for key in ("rss_mb", "peak_mb"))]
        for kind, part, figures in parts if "memory" in figures
    ]  # fmt: skip
    grown = _render_rows(parts, "requests", render_load)
    done = _render_rows(parts, "durations", render_duration)
    shared = _render_rows(parts, "shared", render_sharing)
    layered = [row for kind, part, figures in parts if part == "layers" for row in render_layers(kind, figures)]
    lines: list[str] = []
    for title, columns, rows in (
        ("Submissions", COLUMNS, submitted),
        ("A submission, by layer", LAYER_COLUMNS, layered),
        ("Stored jobs: one client, one request after the other", COLUMNS, read),
        ("Polls of an open page", COLUMNS, polled),
        ("Reports of agents", COLUMNS, reported),
        ("A pass over running jobs", PASS_COLUMNS, passed),
        ("A service while nothing happens", IDLE_COLUMNS, idled),
        ("Requests beside open streams", (*COLUMNS, "a pass"), followed),
        ("A long history: requests of one client", COLUMNS, grown),
        ("A long history: the service and its upkeep", DURATION_COLUMNS, done),
        ("Several services on one PostgreSQL", SHARED_COLUMNS, shared),
        ("Memory of the service", ("after", "peak"), held),
    ):
        lines += [*render_table([title, *columns], rows), ""] if rows else []
    return lines


def _render_rows(
    parts: Sequence[tuple[str, str, Figures]], key: str, render_row: Callable[[str, Figures], list[str]]
) -> list[list[str]]:
    """Render a row for each figure that the parts have under this key."""
    return [
        render_row(f"{kind}, {part}: {name}", met)
        for kind, part, figures in parts
        for name, met in figures.get(key, {}).items()
    ]


def main() -> int:
    parser = build_parser("control_plane", __doc__)
    parser.add_argument("--database", choices=("sqlite", "postgres", "both"), default="both")
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=[*PARTS, GROWTH, SHARING])
    parser.add_argument("--jobs", nargs="+", type=int, default=[1_000, 10_000, 100_000], help="stored jobs")
    parser.add_argument("--live", nargs="+", type=int, default=[1_000, 10_000], help="jobs of a pass")
    parser.add_argument("--services", nargs="+", type=int, default=[1, 2, 4], help="of the part sharing (PostgreSQL)")
    parser.add_argument("--stored", type=int, default=100_000, help="jobs of the part growth")
    parser.add_argument("--metric-rows", type=int, default=1_000_000, help="one for each step of a job that is stored")
    parser.add_argument("--submissions", type=int, default=3000)
    parser.add_argument("--reads", type=int, default=300, help="requests of each kind")
    parser.add_argument("--report-rounds", type=int, default=4, help="reports of each of the 1,250 replicas")
    parser.add_argument("--paced-s", type=int, default=20)
    parser.add_argument("--fsync", action="store_true", help="PostgreSQL writes each commit to the disk")
    parser.add_argument("--network-ms", type=float, default=0.0, help="added to each round trip to PostgreSQL")
    options = parser.parse_args()
    begin()
    figures: Figures = {}
    with ExitStack() as stack:
        if options.database != "postgres":
            figures["sqlite"] = measure(None, options)
        if options.database != "sqlite":
            server = stack.enter_context(running_postgres(durable=options.fsync, fsync=options.fsync)).url
            if options.network_ms:
                server = stack.enter_context(add_delay(server, options.network_ms))
            figures["postgresql"] = measure(server, options)
    return finish(figures, render(figures), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
