"""Passes of the supervisor over many running jobs: real store, observer and actor, and a fake cluster."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from benchmarks.control_plane.stored import WORKERS, add_running, copy, make_job, make_line, make_spec, settle
from benchmarks.frame import Figures, render_number
from orchestrator.bootstrap.clock import SystemClock
from orchestrator.collector import calm_collector
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.job.job import JobState
from orchestrator.domain.job.launch_plan import LaunchPlan, Site
from orchestrator.domain.job.native_request import NativeRequest
from orchestrator.domain.observation.observation import Liveness, Presence, ReplicaSighting, Sighting
from orchestrator.domain.queueing.admission import Limits
from orchestrator.intake.intake import Intake
from orchestrator.intake.watches import Watches
from orchestrator.jobfolder.folder import JobFolder
from orchestrator.ports.cluster import Backend
from orchestrator.rundir import LocalRunDirectories
from orchestrator.store.engine import Database
from orchestrator.store.job_reader import JobReader
from orchestrator.store.journal_store import SqlJournalStore
from orchestrator.store.lease_store import SqlLeaseStore
from orchestrator.store.supervisor_store import SqlSupervisorStore
from orchestrator.supervisor.act import Actor
from orchestrator.supervisor.observe import Observer
from orchestrator.supervisor.reconcile import PassSettings, Reconciler
from trainer.contract import layout
from trainer.contract.agent_record import AgentRecord, ProcessIdentity, render_agent_record
from trainer.contract.clock import render_time
from trainer.contract.exit_record import JournalEvent, render_journal_event
from trainer.contract.progress import render_progress

CLUSTER = "supervised"
PASS_COLUMNS = ("n", "CPU, median", "least", "greatest", "wall, median")
_PASSES = 5


class SteadyCluster:
    """Every attempt runs. What was seen of it is remembered, as by the local backend."""

    def __init__(self) -> None:
        self._seen: dict[AttemptKey, Sighting] = {}

    def render(self, plan: LaunchPlan) -> NativeRequest:
        raise AssertionError("nothing is planned here")

    def submit(self, plan: LaunchPlan) -> str:
        raise AssertionError("nothing is started here")

    def observe(self, launched: Mapping[AttemptKey, int]) -> Mapping[AttemptKey, Sighting]:
        replica = (ReplicaSighting(replica=0, liveness=Liveness.ALIVE, evidence="replica 0's agent runs"),)
        for key in launched.keys() - self._seen.keys():
            self._seen[key] = Sighting(key=key, presence=Presence.RUNNING, evidence="runs", replicas=replica)
        return {key: self._seen[key] for key in launched}

    def cancel(self, key: AttemptKey, *, force: bool) -> None:
        raise AssertionError("nothing is cancelled here")

    def slots(self) -> int | None:
        return None


def measure_passes(folder: Path, url: str, count: int) -> Figures:
    """Passes over `count` running jobs of one replica. Between passes, no job writes or each writes a line."""
    database = Database(url)
    spec = make_spec(cluster=CLUSTER, topology={"workers_per_node": WORKERS})
    add_running(database, make_job("template", spec, JobState.RUNNING, datetime.now(UTC)), steps=0)
    ids = ["template", *copy(database, "template", range(count - 1))]
    settle(database)
    journals = {write_incarnation(folder, AttemptKey(job_id, 1)): 0 for job_id in ids}
    calm_collector()
    reconciler = build_reconciler(database, folder, SteadyCluster())
    for _ in range(3):  # store what was written so far, and what it decides
        reconciler.reconcile()
    figures = {"quiet": time_calls(reconciler.reconcile, _PASSES)}
    steps = iter(range(1, 1 + _PASSES))
    figures["a line from each"] = time_calls(
        reconciler.reconcile, _PASSES, before=lambda: write_lines(journals, next(steps))
    )
    reported = JobReader(database).standing(ids[-1])
    assert (reported.training.step, reported.job.state) == (_PASSES, JobState.RUNNING), reported
    database.dispose()
    return figures


def build_reconciler(database: Database, root: Path, backend: Backend) -> Reconciler:
    """The reconciler of the service, with the lease of CLUSTER."""
    clock, ports = SystemClock(), range(20_000, 30_000)
    lease = SqlLeaseStore(database).acquire(CLUSTER, "benchmark", ttl_s=3600)
    assert lease is not None
    store = SqlSupervisorStore(database, lease)
    journals, jobs = SqlJournalStore(database), JobReader(database)
    intake = Intake(journals, jobs, clock, partial(JobFolder, root), watches=Watches())
    site = Site(
        root=root, python="python", child="child.py", rendezvous_host="127.0.0.1", gpus_per_node=0, report_url=None,
        stop_timeout_s=10, log_limit_bytes=1 << 20,
    )  # fmt: skip
    observer = Observer(CLUSTER, store, backend, intake, clock)
    actor = Actor(store, backend, LocalRunDirectories(root), site, ports=ports, require_lease=lambda: None)
    return Reconciler(store, observer, actor, clock, PassSettings(limits=Limits(), stop_timeout_s=15))


def time_calls(act: Callable[[], object], count: int, *, before: Callable[[], object] = lambda: None) -> Figures:
    """Time `act`, in seconds of CPU and of the wall clock."""
    cpu_s, wall_s = [], []
    for _ in range(count):
        before()
        cpu, wall = time.process_time(), time.perf_counter()
        act()
        cpu_s.append(time.process_time() - cpu)
        wall_s.append(time.perf_counter() - wall)
    spread = {"cpu_s": statistics.median(cpu_s), "cpu_min_s": min(cpu_s), "cpu_max_s": max(cpu_s)}
    return {"n": count, **spread, "wall_s": statistics.median(wall_s), "wall_max_s": max(wall_s)}


def render_pass(name: str, reported: Figures) -> list[str]:
    """A row under PASS_COLUMNS."""
    times = [render_number(reported[key], "s") for key in ("cpu_s", "cpu_min_s", "cpu_max_s", "wall_s")]
    return [name, str(reported["n"]), *times]


def write_incarnation(
    root: Path, key: AttemptKey, *, replica: int = 0, incarnation: int = 2, process: ProcessIdentity | None = None
) -> Path:
    """Write the files of an agent's incarnation, and return its progress journal. The store knows an earlier one.

    `process` is the agent. By default it is one that does not exist.
    """
    claim = layout.attempt_dir(root / key.job_id, key.number) / layout.CLAIM
    life = layout.replica_dir(root / key.job_id, key.number, replica) / str(incarnation)
    life.mkdir(parents=True)
    if not claim.exists():
        claim.write_text("claim")
    at = render_time(datetime.now(UTC))
    nobody = ProcessIdentity(pid=4711, start_ticks=1, boot_id="boot", host=f"n{replica + 1}")
    record = AgentRecord(process=process or nobody, claim="claim", incarnation=incarnation, at=at)
    (life / layout.AGENT).write_text(json.dumps(render_agent_record(record)))
    formed = JournalEvent(kind="generation.started", at=at, sentence="began", generation=1, evidence={"world_size": 2})
    (life / layout.EVENTS).write_text(json.dumps(render_journal_event(formed)) + "\n")
    (life / layout.PROGRESS).touch()
    return life / layout.PROGRESS


def write_lines(journals: Mapping[Path, int], step: int) -> None:
    """Append a line of that step to each journal, by the rank that `journals` names."""
    for journal, rank in journals.items():
        with journal.open("a") as file:
            file.write(json.dumps(render_progress(make_line(step, rank))) + "\n")
