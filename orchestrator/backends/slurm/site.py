"""The adapter's configuration of one Slurm cluster."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.backends.ship import Workdirs
from orchestrator.domain.specs.spec import Placement
from orchestrator.domain.specs.workdir import WorkdirPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSite:
    """Times are in seconds. Paths are the nodes' paths, except `service_root`."""

    root: Path  # the run directory
    service_root: Path  # the run directory's path on the service's machine
    agent_dir: Path  # the agent's package, below the root
    python: str = "python3"  # on the nodes, found after modules and prolog have run
    defaults: Placement = field(default_factory=Placement)
    options: tuple[str, ...] = ()  # sbatch options for every job, one argument each
    interface: str | None = None  # the network interface between the nodes
    modules: tuple[str, ...] = ()
    prolog: str = ""  # bash lines that prepare a node
    container_options: tuple[str, ...] | None = None  # srun options; None means that pyxis is not installed
    shared_paths: tuple[Path, ...] = ()  # mounted at the same path on nodes and service
    policy: WorkdirPolicy = field(default_factory=WorkdirPolicy)  # which folders may be copied to the nodes
    notice_s: int = 60  # Slurm signals the job this long before its time limit
    gpus_per_node: int = 0
    listing_s: float = 1.0  # maximum age of a cached listing
    settle_s: float = 30.0  # maximum delay of a record on a network file system
    forget_s: float = 60.0  # time between two queries for a job that Slurm does not list

    @property
    def workdirs(self) -> Workdirs:
        return Workdirs(root=self.root, service_root=self.service_root, shared=self.shared_paths, policy=self.policy)

    def seen_by_service(self, path: Path) -> Path:
        return self.service_root / path.relative_to(self.root)
