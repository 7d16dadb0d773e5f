"""Warnings of `plan` and `submit` about fields that were changed and have no effect on this job. Pure.

A field with its default value gives no warning. Fields that must be refused are in `unsupported`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.domain.specs.spec import JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTraits:
    """The traits of a cluster that decide which fields have an effect."""

    kind: str
    gpus_per_node: int


@dataclass(frozen=True, slots=True)
class Ineffective:
    """Warn about `field` if `holds`. If it depends on the program or the queue (`maybe`), only `plan` warns."""

    field: str
    holds: Callable[[JobSpec, ClusterTraits], bool]
    sentence: str
    maybe: bool = False


# Fields by the option of sbatch, by its long name, that overrides them.
_OVERRULED = {
    "account": ("placement.account",),
    "constraint": ("placement.constraint",),
    "cpus-per-task": ("resources.cpus",),
    "dependency": ("placement.dependency",),
    "gres": ("resources.gpus", "resources.gpu_type", "resources.extra"),
    "mem": ("resources.memory_gb",),
    "partition": ("placement.partition",),
    "qos": ("placement.qos",),
    "reservation": ("placement.reservation",),
    "time": ("placement.time_limit_s",),
}


def _is_own_program(spec: JobSpec) -> bool:
    return spec.run.trainer is None


def _is_fixed(spec: JobSpec) -> bool:
    return spec.topology.min_nodes == spec.topology.max_nodes


def keeps_copies(spec: JobSpec) -> bool:
    """Return whether the bundled trainer, if the job uses it, can keep copies of its state in the nodes' memory."""
    return spec.launcher == "elasticrun"


INEFFECTIVE: tuple[Ineffective, ...] = (
    *(
        Ineffective(
            f"resources.{name}",
            lambda _, traits: traits.kind == "local",
            "is not enforced: cluster kind local counts workers only",
        )
        for name in ("cpus", "memory_gb", "gpus")
    ),
    Ineffective(
        "resources.gpu_type",
        lambda spec, traits: traits.kind == "slurm" and not (spec.resources.gpus or traits.gpus_per_node),
        "has no effect: the job asks for no GPU; set resources.gpus",
    ),
    *(
        Ineffective(
            field,
            lambda spec, traits, option=option: traits.kind == "slurm" and option in spec.placement.options,  # type: ignore[misc]
            f"has no effect: placement.options.{option} overrides it",
        )
        for option, fields in _OVERRULED.items()
        for field in fields
    ),
    Ineffective(
        "supervise.heartbeat_timeout_s",
        lambda spec, _: spec.launcher == "torchrun" and _is_own_program(spec),
        "has no effect on workers that report no steps: launcher torchrun does not watch them",
    ),
    Ineffective(
        "supervise.grow_back_after_s",
        lambda spec, _: _is_fixed(spec),
        "has no effect: topology.nodes is one number, so the job never has fewer nodes",
    ),
    Ineffective(
        "supervise.grow_back_after_s",
        lambda spec, traits: traits.kind == "kubernetes" and not _is_fixed(spec),
        "has no effect: Kubernetes does not say which nodes are free; use `orchestrator scale` to grow the job",
    ),
    Ineffective(
        "supervise.grow_back_after_s",
        lambda spec, traits: traits.kind != "kubernetes" and not _is_fixed(spec) and _is_own_program(spec),
        "has an effect only once the program takes snapshots (`Supervised`)",
        maybe=True,
    ),
    Ineffective(
        "supervise.exclude_bad_nodes",
        lambda _, traits: traits.kind == "local",
        "has no effect: cluster kind local is a single machine, which is never avoided",
    ),
    Ineffective(
        "supervise.exclude_bad_nodes",
        lambda _, traits: traits.kind.startswith("torchx:"),
        "has no effect: torchx gives no way to avoid nodes",
    ),
    *(
        Ineffective(
            f"snapshot.{name}",
            lambda spec, _: _is_own_program(spec),
            "has an effect only if the program uses `Supervised`",
            maybe=True,
        )
        for name in ("dir", "from", "interval", "keep", "keep_every")
    ),
    Ineffective(
        "snapshot.memory",
        lambda spec, _: _is_own_program(spec),
        "has no effect: only the bundled trainer keeps copies in memory",
    ),
    Ineffective(
        "snapshot.memory",
        lambda spec, _: not _is_own_program(spec) and not keeps_copies(spec),
        "has no effect: copies in memory need the launcher elasticrun",
    ),
    Ineffective(
        "priority",
        lambda _, traits: traits.kind != "local",
        "orders only jobs that wait for a limit of the service; the cluster's own queue orders all other jobs",
        maybe=True,
    ),
)


def list_ineffective(spec: JobSpec, traits: ClusterTraits, *, is_plan: bool) -> list[str]:
    """Return one sentence for each changed field without effect. A plan also lists fields that may have none."""
    changed = spec.model_dump(by_alias=True, exclude_defaults=True)
    return [
        f"{row.field} {row.sentence}"
        for row in INEFFECTIVE
        if (is_plan or not row.maybe) and _holds_value(changed, row.field) and row.holds(spec, traits)
    ]


def _holds_value(document: Mapping[str, Any], field: str) -> bool:
    first, _, rest = field.partition(".")
    return first in document and (not rest or _holds_value(document[first], rest))
