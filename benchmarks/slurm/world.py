"""The service's parts that make a pass, put together as bootstrap does it, with jobs in every table."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from benchmarks.control_plane.passes import CLUSTER, build_reconciler
from benchmarks.control_plane.stored import add_job, copy, make_job, make_line, make_spec, settle
from deploy.dev.slurm.crowd import CrowdedSlurm
from orchestrator.backends.slurm.backend import SlurmBackend
from orchestrator.backends.slurm.client import SlurmClient
from orchestrator.backends.slurm.site import SlurmSite
from orchestrator.domain.job.attempt import Attempt, AttemptKey, AttemptState
from orchestrator.domain.job.event import Event
from orchestrator.domain.job.job import JobState
from orchestrator.ports.supervision import Change
from orchestrator.store import schema
from orchestrator.store.engine import Database
from orchestrator.store.lease_store import SqlLeaseStore
from orchestrator.store.supervisor_store import SqlSupervisorStore
from trainer.contract import layout
from trainer.contract.agent_record import AgentRecord, ProcessIdentity, render_agent_record
from trainer.contract.clock import render_time
from trainer.contract.exit_record import JournalEvent, render_journal_event
from trainer.contract.progress import render_progress

_NODES = 2
_TEMPLATE = "template"


class World:
    """So many jobs with an attempt each, on a crowded Slurm. Leaving the context closes the database."""

    def __init__(self, folder: Path, jobs: int, foreign: int) -> None:
        root = folder / "runs"
        url = f"sqlite:///{folder / 'orchestrator.db'}"
        schema.upgrade(url)
        self._database = Database(url)
        self._keys = _store_jobs(self._database, jobs)
        self.slurm = CrowdedSlurm(folder, root, self._keys, foreign=foreign)
        self._journals = [_write_life(root, key, replica) for key in self.slurm.running for replica in range(_NODES)]
        client = SlurmClient(timeout_s=60, bin_dir=str(self.slurm.bin_dir))
        site = SlurmSite(root=root, service_root=root, agent_dir=root, listing_s=0)
        self._backend = SlurmBackend(site, client, package=root)
        self.reconciler = build_reconciler(self._database, root, self._backend)
        self._step = 0

    def __enter__(self) -> World:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._database.dispose()

    def write_lines(self) -> None:
        """Every rank of a running job made a step."""
        self._step += 1
        for number, journal in enumerate(self._journals):
            line = json.dumps(render_progress(make_line(self._step, number % _NODES))) + "\n"
            with journal.open("a") as file:
                file.write(line)

    def look(self) -> None:
        """The cluster's part of a pass: one listing, and the traces in the run directories."""
        self._backend.observe(dict.fromkeys(self._keys, _NODES))


def _store_jobs(database: Database, count: int) -> list[AttemptKey]:
    """Jobs that began; what each attempt is now the first passes find out."""
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


def _write_life(root: Path, key: AttemptKey, replica: int) -> Path:
    """What a replica's agent has left so far; returns its progress journal."""
    life = layout.replica_dir(root / key.job_id, key.number, replica) / "1"
    life.mkdir(parents=True)
    process = ProcessIdentity(pid=4711, start_ticks=1, boot_id="boot", host=f"n{replica + 1}")
    at = render_time(datetime.now(UTC))
    record = AgentRecord(process=process, claim="claim", incarnation=1, at=at)
    (life / layout.AGENT).write_text(json.dumps(render_agent_record(record)))
    formed = JournalEvent(
        kind="generation.started", at=at, sentence="began", generation=1, evidence={"world_size": _NODES}
    )
    (life / layout.EVENTS).write_text(json.dumps(render_journal_event(formed)) + "\n")
    (life / layout.PROGRESS).touch()
    return life / layout.PROGRESS
