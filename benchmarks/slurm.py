"""A pass of the supervisor over 1,000 jobs, on a Slurm with 50,000 jobs of other users.

    python -m benchmarks.slurm [--jobs N] [--foreign N] [--passes N] [--json]

Half of our jobs run on two nodes each, the others wait. Store (SQLite), run directories, policy and the parsers of
Slurm's output are those of the service. `squeue` is a script that prints a file: only the lines of our own user, as
slurmctld filters them, or all of them, as if the other jobs also belonged to the service's Unix user. The time that a
real slurmctld takes is not included. The project promises the limit.
"""

from __future__ import annotations

import itertools
import logging
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import structlog

from benchmarks.control_plane.passes import (
    CLUSTER,
    PASS_COLUMNS,
    build_reconciler,
    render_pass,
    time_calls,
    write_incarnation,
    write_lines,
)
from benchmarks.control_plane.stored import add_job, copy, make_job, make_spec, settle
from benchmarks.frame import Figures, begin, build_parser, finish, render_table
from orchestrator.backends.slurm.backend import SlurmBackend
from orchestrator.backends.slurm.commands import SlurmCommands
from orchestrator.backends.slurm.site import SlurmSite
from orchestrator.collector import calm_collector
from orchestrator.domain.job.attempt import Attempt, AttemptKey, AttemptState
from orchestrator.domain.job.event import Event
from orchestrator.domain.job.job import JobState
from orchestrator.ports.supervision import Change
from orchestrator.store.engine import Database
from orchestrator.store.lease_store import SqlLeaseStore
from orchestrator.store.supervisor_store import SqlSupervisorStore
from orchestrator.store.upgrade import upgrade
from tests.slurm.crowd import CrowdedSlurm

LIMIT_S = 1.0
_NODES = 2
_TEMPLATE = "template"


class World:
    """`jobs` jobs with an attempt each, on a crowded Slurm."""

    def __init__(self, folder: Path, jobs: int, foreign: int) -> None:
        root = folder / "runs"
        url = f"sqlite:///{folder / 'orchestrator.db'}"
        upgrade(url)
        self._database = Database(url)
        self._keys = _store_jobs(self._database, jobs)
        self.slurm = CrowdedSlurm(folder, root, self._keys, foreign=foreign)
        self._journals = {
            write_incarnation(root, key, replica=replica, incarnation=1): replica
            for key, replica in itertools.product(self.slurm.running, range(_NODES))
        }
        client = SlurmCommands(timeout_s=60, bin_dir=str(self.slurm.bin_dir))
        site = SlurmSite(root=root, service_root=root, agent_dir=root, listing_s=0)
        self._backend = SlurmBackend(site, client, package=root)
        self.reconciler = build_reconciler(self._database, root, self._backend)
        self._steps = itertools.count(1)

    def close(self) -> None:
        self._database.dispose()

    def write_lines(self) -> None:
        """Write a step of each rank of the running jobs."""
        write_lines(self._journals, next(self._steps))

    def look(self) -> None:
        """The cluster's part of a pass: one listing, and the files in the run directories."""
        self._backend.observe(dict.fromkeys(self._keys, _NODES))


def _store_jobs(database: Database, count: int) -> list[AttemptKey]:
    """Store jobs that have started. The first passes observe the state of each attempt."""
    topology = {"nodes": str(_NODES), "workers_per_node": 1}
    now = datetime.now(UTC)
    job = make_job(_TEMPLATE, make_spec(cluster=CLUSTER, topology=topology), JobState.STARTING, now)
    add_job(database, job)
    lease = SqlLeaseStore(database).acquire(CLUSTER, "benchmark", ttl_s=3600)
    assert lease is not None
    attempt = Attempt(
        key=AttemptKey(_TEMPLATE, 1), state=AttemptState.SUBMITTED, reason="submitted by the benchmark",
        nonce="c0ffee00", port=20000, nodes=str(_NODES), asked=str(_NODES), created_at=now,
    )  # fmt: skip
    event = Event(at=now, kind="attempt.state", sentence="submitted", attempt=1)
    SqlSupervisorStore(database, lease).apply(Change(job=job, attempt=attempt, events=[event]))
    ids = [_TEMPLATE, *copy(database, _TEMPLATE, range(count - 1))]
    settle(database)
    return [AttemptKey(job_id, 1) for job_id in ids]


def measure(world: World, passes: int) -> dict[str, Figures]:
    """The rows of the table. Each pass observes every running job, and none changes its state."""
    for _ in range(3):  # store what the first observations decide
        world.reconciler.reconcile()
    rows = {
        "no new lines": _time_passes(world, passes),
        "a line from each rank": _time_passes(world, passes, before=world.write_lines),
        "only the cluster's part": time_calls(world.look, passes),
    }
    world.slurm.give_all_to_us()
    rows["all jobs are this user's"] = _time_passes(world, passes)
    return rows


def _time_passes(world: World, count: int, *, before: Callable[[], None] = lambda: None) -> Figures:
    world.slurm.calls()
    figures = time_calls(world.reconciler.reconcile, count, before=before)
    asked = Counter(call.split()[0] for call in world.slurm.calls())
    return {**figures, "listings": asked.pop("squeue", 0) / count, "other_calls": asked.total() / count}


def main() -> int:
    parser = build_parser("slurm", __doc__)
    parser.add_argument("--jobs", type=int, default=1000, help="jobs of the service")
    parser.add_argument("--foreign", type=int, default=50_000, help="jobs of other users")
    parser.add_argument("--passes", type=int, default=7, help="passes of each row")
    options = parser.parse_args()
    begin()
    calm_collector()  # as the service does
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with tempfile.TemporaryDirectory() as folder, closing(World(Path(folder), options.jobs, options.foreign)) as world:
        rows = measure(world, options.passes)
    cells = [
        [*render_pass(name, row), *(f"{row[calls]:g}" if calls in row else "" for calls in ("listings", "other_calls"))]
        for name, row in rows.items()
    ]
    tables = [
        f"{options.jobs} jobs of the service among {options.foreign} others; limit {LIMIT_S:g} s.",
        "",
        *render_table(["a pass", *PASS_COLUMNS, "listings", "other calls"], cells),
    ]
    kept = all(row["wall_s"] <= LIMIT_S for row in rows.values())
    figures = {"jobs": options.jobs, "foreign": options.foreign, "limit_s": LIMIT_S, "rows": rows}
    return finish(figures, tables, as_json=options.json, kept=kept)


if __name__ == "__main__":
    sys.exit(main())
