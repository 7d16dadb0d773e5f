"""The functions of the service that read or write in a job's folder, by name."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from orchestrator import rundir
from orchestrator.backends import ship, traces
from orchestrator.backends.kubernetes import attempt_folder as kubernetes
from orchestrator.backends.kubernetes.printed import Printed
from orchestrator.backends.local.backend import LocalBackend
from orchestrator.backends.slurm import attempt_folder as slurm
from orchestrator.backends.slurm.sight import Traces
from orchestrator.configured_cluster import Cluster
from orchestrator.domain.errors import BackendUnavailable
from orchestrator.domain.job.attempt import AttemptKey, AttemptState
from orchestrator.domain.job.job import Job
from orchestrator.domain.job.launch_plan import build_plan
from orchestrator.jobfolder.folder import Folder, JobFolder
from orchestrator.jobfolder.removal import JobFolders
from orchestrator.logs.log_files import find_agent_logs, find_worker_logs, open_log
from orchestrator.logs.reader import LogRequest, Selection, tail
from orchestrator.ports.cluster import Backend
from orchestrator.queries.resource_files import read_samples
from orchestrator.upkeep.housekeeping import TRASH, discard
from orchestrator.upkeep.trash import TrashSweeper
from tests.builders import with_command
from tests.jobfolder.plants import ATTEMPT
from tests.unit.situations import NOW, a_job, a_spec, an_attempt
from tests.unit.test_launch import SITE
from trainer.contract import layout
from trainer.contract.exit_record import ExitRecord, Outcome
from trainer.contract.launch import DesiredDocument, DesiredState, LaunchPolicy
from trainer.contract.pod import LastWords

REPLICAS = 2
JOB = "job-1"
KEY = AttemptKey(JOB, ATTEMPT)
_ENDED = ExitRecord(outcome=Outcome.FAILED, at="2026-11-20T12:00:00Z", generation=1, restarts=0)
_STOP = DesiredDocument(state=DesiredState.STOP, number=3)


@dataclass(frozen=True)
class Ground:
    """A run directory with the folder of JOB in it, and a folder of code to ship."""

    root: Path
    code: Path

    @property
    def job(self) -> JobFolder:
        return JobFolder(self.root, JOB)


def _logs(ground: Ground) -> object:
    found = [*find_worker_logs(ground.job, ATTEMPT), *find_agent_logs(ground.job, ATTEMPT)]
    selection = Selection(ground.job, ATTEMPT, found, over=True)
    opened = [open_log(ground.job, source.path) for source in found]
    first = [file.read(4096) for file in opened if file is not None]
    for file in opened:
        if file is not None:
            file.close()
    return tail(selection, LogRequest(attempt=ATTEMPT, tail=50)), first


def _submit_here(ground: Ground) -> object:
    job, attempt = a_job(id=JOB, spec=a_spec(topology={"nodes": "2"})), an_attempt(AttemptState.INTENDED, nodes="2")
    plan = build_plan(job, replace(attempt, key=KEY), replace(SITE, root=ground.root))
    command = (sys.executable, "-S", "-c", "")
    backend = LocalBackend(ground.root, slots=2)
    try:
        return backend.submit(replace(with_command(plan, *command), workdir="/"))
    finally:
        for child in backend._children:
            child.process.wait()


def _print(ground: Ground) -> object:
    with Printed(ground.job, layout.replica_dir(Path(), ATTEMPT, 0), limit_bytes=4096) as printed:
        printed.keep([b"2026-11-22T12:00:00.5Z a line"])
    return None


def _discard(ground: Ground) -> object:
    with Folder.of(ground.root) as root:
        discard(root, Path(JOB, "attempts"))
        discard(root, Path(JOB, "cache"))
    return None


def _cluster(ground: Ground) -> Cluster:
    backend = cast(Backend, LocalBackend(ground.root, slots=1))
    return Cluster(
        name="c", kind="local", backend=backend, job_root=ground.root, plan=lambda *_: None, ports=range(1), gpus=0
    )  # type: ignore[arg-type]


def _slurm(ground: Ground) -> object:
    traces = slurm.read_traces(ground.job, KEY, REPLICAS)
    return traces, slurm.look_closely(Traces(replicas=REPLICAS), ground.job, KEY, 7)


def _snapshot(ground: Ground) -> object:
    job: Job = a_job(id=JOB)
    return _cluster(ground).has_snapshot(job, "step-00000001-a1-g1")


CALLS: dict[str, Callable[[Ground], object]] = {
    "fence": lambda ground: rundir.LocalRunDirectories(ground.root).fence(JOB, ATTEMPT + 1),
    "withdraw": lambda ground: rundir.LocalRunDirectories(ground.root).withdraw(JOB, ATTEMPT),
    "write desired": lambda ground: rundir.LocalRunDirectories(ground.root).write_desired(JOB, ATTEMPT, _STOP),
    "write launch": lambda ground: rundir.write_launch(
        ground.job, ATTEMPT, LaunchPolicy(max_restarts=1, stop_timeout_s=1, log_limit_bytes=1), replicas=REPLICAS
    ),
    "read news": lambda ground: list(rundir.read_news(ground.job, KEY, REPLICAS, {})),
    "submit here": _submit_here,
    "observe here": lambda ground: LocalBackend(ground.root, slots=1).observe({KEY: REPLICAS}),
    "cancel here": lambda ground: LocalBackend(ground.root, slots=1).cancel(KEY, force=False),
    "Slurm: note a submission": lambda ground: slurm.note_submission(ground.job, ATTEMPT, 7),
    "Slurm: read traces": _slurm,
    "traces: last sign": lambda ground: traces.last_sign(ground.job, KEY, REPLICAS),
    "Kubernetes: note a submission": lambda ground: kubernetes.note_submission(ground.job, ATTEMPT, "uid"),
    "Kubernetes: note a beginning": lambda ground: kubernetes.note_beginning(ground.job, ATTEMPT),
    "Kubernetes: keep last words": lambda ground: kubernetes.keep_last_words(
        ground.job, ATTEMPT, LastWords(replica=0, incarnation=1, record=_ENDED)
    ),
    "Kubernetes: read traces": lambda ground: kubernetes.read_traces(ground.job, KEY, REPLICAS),
    "Kubernetes: keep what a pod prints": _print,
    "show logs": _logs,
    "show resources": lambda ground: read_samples(
        ground.job, [an_attempt(key=KEY, nodes=str(REPLICAS), created_at=NOW)], NOW
    ),
    "look for a snapshot": _snapshot,
    "ship a workdir": lambda ground: ship.ship_workdir(
        ground.code, ground.root, pin=ship.Pin(ground.job, "workdir-0.json")
    ),
    "discard": _discard,
    "sweep the trash": lambda ground: TrashSweeper([ground.root]).sweep(),
    "remove the folder": lambda ground: JobFolders(ground.root).remove(JOB, None, lambda: True),
}


def use(ground: Ground, names: Iterable[str]) -> list[str]:
    """Call them; returns their results as text. An OSError is a result: callers wait for the next pass."""
    answers = []
    for name in names:
        try:
            answers.append(repr(CALLS[name](ground)))
        except (OSError, BackendUnavailable) as error:
            answers.append(repr(error))
    return answers


def make_ground(folder: Path) -> Ground:
    root, code = folder / f"runs-{uuid.uuid4().hex[:8]}", folder / "code"
    (root / JOB / f"attempts/{ATTEMPT}/replica-0/1/g1/local-0").mkdir(parents=True)
    (root / TRASH).mkdir()
    code.mkdir(exist_ok=True)
    (code / "train.py").write_text("print(1)\n")
    return Ground(root, code)
