"""What is configured of one Slurm cluster, as the adapter goes by it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.backends.ship import Workdirs
from orchestrator.domain.specs.spec import Placement
from orchestrator.domain.specs.workdir import WorkdirPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSite:
    """Times in seconds. Paths are as the nodes see them, but for `service_root`."""

    root: Path  # the run directory
    service_root: Path  # the same as the service sees it
    agent_dir: Path  # below the root: the package that the jobs bring with them
    python: str = "python3"  # on the nodes, after modules and prolog
    defaults: Placement = field(default_factory=Placement)
    options: tuple[str, ...] = ()  # of sbatch, whole words, for every job
    interface: str | None = None  # of the network between the nodes
    modules: tuple[str, ...] = ()
    prolog: str = ""  # lines of bash that prepare a node
    container_options: tuple[str, ...] | None = None  # of srun; None: no pyxis here
    shared_paths: tuple[Path, ...] = ()  # that nodes see as the service does
    policy: WorkdirPolicy = field(default_factory=WorkdirPolicy)  # which folders may be copied to the nodes
    notice_s: int = 60  # before the time limit
    gpus_per_node: int = 0
    listing_s: float = 1.0  # how old a listing may be
    settle_s: float = 30.0  # how late a network file system may show a record
    forget_s: float = 60.0  # between two questions about a job that Slurm does not list

    @property
    def workdirs(self) -> Workdirs:
        return Workdirs(root=self.root, service_root=self.service_root, shared=self.shared_paths, policy=self.policy)

    def seen_by_service(self, path: Path) -> Path:
        return self.service_root / path.relative_to(self.root)
