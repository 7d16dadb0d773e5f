"""Passes of the supervisor over many running jobs: real store, observer and actor, a cluster that says "running"."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from benchmarks.control_plane.stored import WORKERS, add_running, copy, make_job, make_line, make_spec, settle
from orchestrator.collector import calm_collector
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.job.job import JobState
from orchestrator.domain.job.launch import LaunchPlan, NativeRequest, Site
from orchestrator.domain.observation.observation import Liveness, Presence, ReplicaSighting, Sighting
from orchestrator.domain.queueing.admission import Limits
from orchestrator.intake.intake import Intake
from orchestrator.jobfolder.folder import JobFolder
from orchestrator.ports.cluster import Backend
from orchestrator.rundir import LocalRunDirectories
from orchestrator.store.engine import Database
from orchestrator.store.job_reader import SqlJobReader
from orchestrator.store.journal_store import SqlJournalStore
from orchestrator.store.lease_store import SqlLeaseStore
from orchestrator.store.supervisor_store import SqlSupervisorStore
from orchestrator.supervisor.act import Actor
from orchestrator.supervisor.observe import Observer
from orchestrator.supervisor.reconcile import Reconciler, Terms
from trainer.contract import layout
from trainer.contract.agent_record import AgentRecord, ProcessIdentity, render_agent_record
from trainer.contract.clock import render_time
from trainer.contract.progress import render_progress

CLUSTER = "supervised"
_PASSES = 5


class Clock:
    def now(self) -> datetime:
        return datetime.now(UTC)


class SteadyCluster:
    """Everything that it is asked about runs."""

    def render(self, plan: LaunchPlan) -> NativeRequest:
        raise AssertionError("nothing is planned here")

    def submit(self, plan: LaunchPlan) -> str:
        raise AssertionError("nothing is started here")

    def observe(self, launched: Mapping[AttemptKey, int]) -> Mapping[AttemptKey, Sighting]:
        replica = (ReplicaSighting(replica=0, liveness=Liveness.ALIVE, evidence="replica 0's agent runs"),)
        return {
            key: Sighting(key=key, presence=Presence.RUNNING, evidence="runs", replicas=replica) for key in launched
        }

    def cancel(self, key: AttemptKey, *, force: bool) -> None:
        raise AssertionError("nothing is cancelled here")

    def slots(self) -> int | None:
        return None


def measure_passes(folder: Path, url: str, count: int) -> dict[str, object]:
    """So many running jobs of one replica; in every second of the two rounds each wrote a line since the last pass."""
    database = Database(url)
    spec = make_spec(cluster=CLUSTER, topology={"workers_per_node": WORKERS})
    add_running(database, make_job("template", spec, JobState.RUNNING, datetime.now(UTC)), steps=0)
    ids = ["template", *copy(database, "template", range(count - 1))]
    settle(database)
    journals = [_write_run_directory(folder, job_id) for job_id in ids]
    calm_collector()
    reconciler = build_reconciler(database, folder, SteadyCluster())
    for _ in range(3):  # what was written so far is taken in, and what follows from it is decided
        reconciler.reconcile()
    figures: dict[str, object] = {"quiet": _passes(reconciler, lambda step: None)}
    figures["a line from each"] = _passes(reconciler, lambda step: _tell(journals, step))
    told = SqlJobReader(database).standing(ids[-1])
    assert (told.training.step, told.job.state) == (_PASSES, JobState.RUNNING), told
    database.dispose()
    return figures


def build_reconciler(database: Database, root: Path, backend: Backend) -> Reconciler:
    """The service's own, holding the lease of CLUSTER."""
    clock, ports = Clock(), range(20_000, 30_000)
    lease = SqlLeaseStore(database).acquire(CLUSTER, "benchmark", ttl_s=3600)
    assert lease is not None
    store = SqlSupervisorStore(database, lease)
    intake = Intake(SqlJournalStore(database), SqlJobReader(database), clock, partial(JobFolder, root))
    site = Site(
        root=root, python="python", child="child.py", rendezvous_host="127.0.0.1", gpus_per_node=0, report_url=None,
        stop_timeout_s=10, log_limit_bytes=1 << 20,
    )  # fmt: skip
    observer = Observer(CLUSTER, store, backend, intake, clock)
    actor = Actor(store, backend, LocalRunDirectories(root), site, ports=ports, require_lease=lambda: None)
    return Reconciler(store, observer, actor, clock, Terms(limits=Limits(), stop_timeout_s=15))


def _passes(reconciler: Reconciler, before: Callable[[int], None]) -> dict[str, float]:
    cpu_s, wall_s = [], []
    for step in range(1, _PASSES + 1):
        before(step)
        cpu, wall = time.process_time(), time.perf_counter()
        reconciler.reconcile()
        cpu_s.append(time.process_time() - cpu)
        wall_s.append(time.perf_counter() - wall)
    return {"n": _PASSES, **_spread("cpu", cpu_s), **_spread("wall", wall_s)}


def _spread(name: str, values_s: Sequence[float]) -> dict[str, float]:
    return {
        f"{name}_s": round(statistics.median(values_s), 3),
        f"{name}_min_s": round(min(values_s), 3),
        f"{name}_max_s": round(max(values_s), 3),
    }


def _write_run_directory(root: Path, job_id: str) -> Path:
    """What a first life of the replica's agent leaves; returns its progress journal."""
    attempt = layout.attempt_dir(root / job_id, 1)
    life = layout.replica_dir(root / job_id, 1, 0) / "2"  # the store has taken in one life already
    life.mkdir(parents=True)
    (attempt / layout.CLAIM).write_text("claim")
    process = ProcessIdentity(pid=4711, start_ticks=1, boot_id="boot", host="node-1")
    record = AgentRecord(process=process, claim="claim", incarnation=2, at=render_time(datetime.now(UTC)))
    (life / layout.AGENT).write_text(json.dumps(render_agent_record(record)))
    (life / layout.EVENTS).touch()
    (life / layout.PROGRESS).touch()
    return life / layout.PROGRESS


def _tell(journals: Sequence[Path], step: int) -> None:
    line = json.dumps(render_progress(make_line(step, 0))) + "\n"
    for journal in journals:
        with journal.open("a") as file:
            file.write(line)
