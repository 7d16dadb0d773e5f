"""The control plane under load: submissions, lists and shows, reports, passes of the supervisor, followers, memory.

    python -m benchmarks.control_plane [--database sqlite|postgres|both] [--json] [--parts ...]

A service process on a throw-away database, its client in processes of their own, all on this machine. PostgreSQL
runs without fsync (deploy/dev/postgres.py). Jobs wait in the queue or belong to a cluster that the service does not
have: nothing is started, but for the one job whose log is followed. Exit status 1 when followers slow requests or
passes by a quarter or more, or when knowing who asks costs a tenth of a request or more.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks.control_plane.followers import FOLLOWERS_LIMITS, measure_followers
from benchmarks.control_plane.identity import IDENTITY_LIMITS, measure_identity
from benchmarks.control_plane.load import Clients, ask
from benchmarks.control_plane.passes import measure_passes
from benchmarks.control_plane.reads import measure_reads
from benchmarks.control_plane.reports import add_reporters, measure_reports
from benchmarks.control_plane.stored import add_many
from benchmarks.control_plane.submissions import measure_submissions
from benchmarks.control_plane.world import describe_machine, fresh_database, memory, serve, server_version
from deploy.dev.postgres import postgres_server
from orchestrator.store.engine import Database

Figures = dict[str, object]
_LIMITS = {**FOLLOWERS_LIMITS, **IDENTITY_LIMITS}


def measure(server: str | None, options: argparse.Namespace) -> Figures:
    """All parts on one kind of database, each on a database and a service of its own."""
    figures: Figures = {}
    if "submissions" in options.parts:
        figures["submissions"] = _alone(server, partial(measure_submissions, count=options.submissions))
    for count in options.jobs if {"reads", "identity", "reports"} & set(options.parts) else []:
        figures[f"{count} jobs"] = _alone(server, partial(_measure_stored, count=count, options=options))
    for count in options.live if "passes" in options.parts else []:
        figures[f"pass over {count} jobs"] = _alone(server, partial(measure_passes, count=count))
    if "followers" in options.parts:
        followed = partial(measure_followers, count=options.followers, rounds=options.rounds, round_s=options.paced_s)
        figures["followers"] = _alone(server, followed)
    return figures


def _measure_stored(folder: Path, url: str, count: int, options: argparse.Namespace) -> Figures:
    """Reads, and on the largest database reports too."""
    database = Database(url)
    ids = add_many(database, count)
    reporting = "reports" in options.parts and count == max(options.jobs)
    reporters = add_reporters(database) if reporting else []
    database.dispose()
    figures: Figures = {}
    with serve(folder, url) as service, Clients(service.url) as clients:
        if "reads" in options.parts:
            figures |= measure_reads(clients, service.url, ids, options.reads)
        if "identity" in options.parts:
            project = str(ask(service.url, f"/api/v1/jobs/{ids[0]}")[1]["project"])
            figures["identity"] = measure_identity(clients, service.url, service.pid, ids[0], project, options.asked)
        if reporting:
            rounds, paced_s = options.report_rounds, options.paced_s
            figures["reports"] = measure_reports(clients, service.url, service.pid, reporters, rounds, paced_s)
        figures["memory"] = memory(service.pid)
    return figures


def _alone(server: str | None, measured: Callable[[Path, str], Figures]) -> Figures:
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder, fresh_database(server, Path(folder)) as url:
        return {**measured(Path(folder), url), "load_before": round(load, 2)}


def render_rows(figures: Figures, path: Sequence[str] = ()) -> list[str]:
    """A line for each group of figures."""
    flat = {name: value for name, value in figures.items() if not isinstance(value, dict)}
    lines = [f"{' · '.join(path):48} " + "  ".join(f"{name} {value}" for name, value in flat.items())] if flat else []
    for name, value in figures.items():
        if isinstance(value, dict):
            lines += render_rows(value, (*path, name))
    return lines


def keeps_limits(figures: Figures) -> bool:
    """Those of followers and of identity, wherever they were measured."""
    within = [
        value < _LIMITS[name] for name, value in figures.items() if name in _LIMITS and isinstance(value, int | float)
    ]
    return all(within) and all(keeps_limits(part) for part in figures.values() if isinstance(part, dict))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", choices=("sqlite", "postgres", "both"), default="both")
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--jobs", nargs="+", type=int, default=[1_000, 10_000, 100_000], help="stored ones")
    parser.add_argument("--live", nargs="+", type=int, default=[1_000, 10_000], help="jobs of a pass")
    parser.add_argument("--submissions", type=int, default=3000)
    parser.add_argument("--reads", type=int, default=300, help="requests of each kind")
    parser.add_argument("--asked", type=int, default=3000, help="requests of each caller, for what identity costs")
    parser.add_argument("--report-rounds", type=int, default=4, help="reports of each of the 1,250 replicas")
    parser.add_argument("--paced-s", type=int, default=20)
    parser.add_argument("--followers", type=int, default=200, help="connections, half logs and half events")
    parser.add_argument("--rounds", type=int, default=4, help="with the followers and without them")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a service of ours ends with us
    figures: Figures = {"machine": describe_machine()}
    with ExitStack() as stack:
        if options.database != "postgres":
            figures["sqlite"] = measure(None, options)
        if options.database != "sqlite":
            server = stack.enter_context(postgres_server())
            figures["postgresql"] = {"server": server_version(server), **measure(server, options)}
    print(json.dumps(figures) if options.json else "\n".join(render_rows(figures)))
    return 0 if keeps_limits(figures) else 1


PARTS = ("submissions", "reads", "identity", "reports", "passes", "followers")

if __name__ == "__main__":
    sys.exit(main())
