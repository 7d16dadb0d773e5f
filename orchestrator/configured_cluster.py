"""A configured cluster, with its backend."""

from __future__ import annotations

import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.domain.job.attempt import Attempt
from orchestrator.domain.job.job import Job
from orchestrator.domain.job.launch_plan import LaunchPlan
from orchestrator.domain.observation.node_record import Partition
from orchestrator.domain.queueing.admission import Limits
from orchestrator.domain.specs.ineffective_fields import ClusterTraits
from orchestrator.domain.specs.time_limit import Notice
from orchestrator.jobfolder.folder import JobFolder
from orchestrator.ports.cluster import Backend
from trainer.contract import layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    name: str
    kind: str  # "local", "slurm", "kubernetes", or "torchx:" and a scheduler
    backend: Backend
    job_root: Path  # the run directory: a job's folder is <job_root>/<job id>
    plan: Callable[[Job, Attempt], LaunchPlan]
    ports: range  # for rendezvous
    gpus: int  # per node
    gpu_type: str | None = None  # the driver's name of the GPUs, if it is known and all are of one type
    images: bool = False  # whether jobs may name an image
    shares_files: bool = True  # whether its nodes see the service's files, such as the run directory
    max_jobs: int | None = None  # how many jobs may run at one time
    check: Callable[[LaunchPlan], Sequence[str]] | None = None  # returns the cluster's objections to a plan
    node_root: Path | None = None  # the run directory on the nodes, if its path differs there
    why_no_workdir: Callable[[Path], str | None] | None = None  # why the cluster refuses a workdir, as a phrase
    notice: Notice | None = None  # None if the cluster sends no signal before a time limit
    partitions: Callable[[], Sequence[Partition]] | None = None  # None if the cluster has none

    @property
    def traits(self) -> ClusterTraits:
        """The traits that decide which fields of a spec have an effect on this cluster."""
        return ClusterTraits(kind=self.kind, gpus_per_node=self.gpus)

    def limits(self, limits: Limits, slots: int | None) -> Limits:
        """Return the limits of admission: those of every cluster, with this one's own."""
        return replace(limits, slots=slots, gpus_per_node=self.gpus, max_jobs=self.max_jobs)

    def job_dir(self, job_id: str) -> Path:
        return self.job_root / job_id

    def folder(self, job_id: str) -> JobFolder:
        """Return the job's folder. The service opens the job's files only through it."""
        return JobFolder(self.job_root, job_id)

    def has_snapshot(self, job: Job, name: str) -> bool:
        """Whether the job has a committed snapshot of this name. Raises OSError."""
        named = job.spec.snapshot.dir
        folder = self.folder(job.id) if named is None else JobFolder(Path(named), job.id)
        below = layout.snapshots_dir(Path()) if named is None else Path()
        with folder.open() as opened:
            status = opened.status(below / name / layout.MANIFEST)
        return status is not None and stat.S_ISREG(status.st_mode)
