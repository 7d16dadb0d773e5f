"""The cost of an idle service: with many queued jobs, and with many running jobs that report nothing."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.control_plane.load import Usage, read_memory, serve
from benchmarks.control_plane.passes import write_incarnation
from benchmarks.control_plane.stored import WORKERS, add_job, add_queue, add_running, copy, make_job, make_spec, settle
from benchmarks.frame import Figures, render_number
from deploy.dev.service import ThrowawayService
from orchestrator.backends.local.client import boot_id, host_name
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.job.job import JobState
from orchestrator.store.engine import Database
from trainer.contract.agent_record import ProcessIdentity
from trainer.elastic.health.processes import stat_fields

IDLE_COLUMNS = ("passes", "CPU, of a core", "memory", "peak")
_WATCHED_S = 60
_LOOK_S, _QUIET_CORES = 10, 0.1
_PATIENCE_S = 300.0
_START_TICKS = 22 - 3  # its position in /proc/<pid>/stat (proc(5)), counted from the third field


def measure_idle(folder: Path, url: str, count: int, *, live: bool) -> Figures:
    """A minute of a service with `count` jobs. They wait in the queue, or (`live`) run on this machine.

    A running job has one agent, a process that sleeps. The service keeps a descriptor of each, if it may open twice as
    many files (`ulimit -Hn`). The minute begins once the service is quiet.
    """
    with _sleepers(count if live else 0) as agents:
        with Database(url) as database:
            add_queue(database, "local")
            spec, now = make_spec(topology={"workers_per_node": WORKERS}), datetime.now(UTC)
            if live:
                add_running(database, make_job("template", spec, JobState.RUNNING, now), steps=1)
            else:
                add_job(database, make_job("template", spec, JobState.QUEUED, now))
            ids = ["template", *copy(database, "template", range(count - 1))]
            settle(database)
        for job_id, agent in zip(ids, agents, strict=False):
            write_incarnation(folder / "root", AttemptKey(job_id, 1), process=agent)
        with serve(folder, url) as service:
            _await_quiet(service)
            usage = Usage(service)
            time.sleep(_WATCHED_S)
            return {**usage.figures(), **read_memory(service)}


def _await_quiet(service: ThrowawayService) -> None:
    """At first, the service looks at every job and stores what each one waits for."""
    deadline, is_quiet = time.monotonic() + _PATIENCE_S, False
    while not is_quiet:
        assert time.monotonic() < deadline, "the service does not become quiet"
        usage = Usage(service)
        time.sleep(_LOOK_S)
        is_quiet = usage.figures()["service_cores"] < _QUIET_CORES


@contextmanager
def _sleepers(count: int) -> Iterator[Sequence[ProcessIdentity]]:
    """Processes that do nothing, in place of agents."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        processes += (subprocess.Popen(["sleep", "infinity"], start_new_session=True) for _ in range(count))
        yield [_identify(process.pid) for process in processes]
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


def _identify(pid: int) -> ProcessIdentity:
    return ProcessIdentity(
        pid=pid, start_ticks=int(stat_fields(pid)[_START_TICKS]), boot_id=boot_id(), host=host_name()
    )


def render_idle(name: str, met: Figures) -> list[str]:
    """A row under IDLE_COLUMNS."""
    share = f"{render_number(100 * met['service_cores'])} %"
    return [name, str(met["passes"]), share, f"{met['rss_mb']} MB", f"{met['peak_mb']} MB"]
