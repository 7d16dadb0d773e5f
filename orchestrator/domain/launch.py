"""LaunchPlan: one attempt, made concrete. Pure: from a job and an attempt to commands and environments."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.domain.attempt import AttemptKey
from trainer.contract.launch import LaunchPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """What a backend needs to start an attempt. `commands[r]` and `environments[r]` belong to replica r."""

    key: AttemptKey
    name: str
    rendezvous_id: str
    rendezvous_host: str
    port: int
    min_nodes: int
    max_nodes: int
    workers_per_node: int
    job_dir: str
    workdir: str
    commands: tuple[tuple[str, ...], ...]
    environments: tuple[dict[str, str], ...]
    policy: LaunchPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeRequest:
    """What the cluster is really told: a text that a person can read and, where there is one, a file to submit."""

    kind: str  # "processes", "sbatch", "manifest"
    text: str
