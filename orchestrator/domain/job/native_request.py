"""NativeRequest: what is submitted to a cluster, as text."""

from __future__ import annotations

from dataclasses import dataclass

PROCESSES = "processes"  # the kind of a request that is only the replicas' commands, on this machine


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeRequest:
    """The commands, the batch script, the manifest, or what torchx gets."""

    kind: str  # PROCESSES, "sbatch", "slurmrestd", "manifest", or "torchx:" and a scheduler
    text: str
