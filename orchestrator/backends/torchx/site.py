"""The settings of a torchx cluster that rendering and observing need. Paths are those of its nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.backends.ship import Workdirs
from orchestrator.domain.specs.workdir import WorkdirPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchxSite:
    """`service_root` is the run directory on the service's host, `root` the same directory on the nodes."""

    scheduler: str  # torchx's name of it
    cfg: Mapping[str, object] = field(default_factory=dict)  # run options, as for `torchx run -cfg`
    root: Path
    service_root: Path
    agent_dir: Path
    python: str = "python3"
    interface: str | None = None
    shared_paths: tuple[Path, ...] = ()
    policy: WorkdirPolicy = field(default_factory=WorkdirPolicy)
    settle_s: float = 30.0  # how late a shared file system may show a node's files

    @property
    def workdirs(self) -> Workdirs:
        return Workdirs(root=self.root, service_root=self.service_root, shared=self.shared_paths, policy=self.policy)
