"""Fields that this version or a cluster cannot honor. They are refused, never silently ignored. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.domain.errors import FieldProblem
from orchestrator.domain.specs.spec import JobSpec, Placement

_NO_SCHEDULER = "cluster kind local has no scheduler that could honor it; remove it"
_NOT_FOR_TORCHX = "torchx has no field for it; remove it, or set an option of the scheduler in the cluster's cfg"


# Options of sbatch that the service needs itself (to find the job and its output), that would make it another kind of
# job or another user's, that have a field in the spec, or that would make the service read a file for the job.
_SLURMS_OWN = frozenset(
    {"array", "batch", "bbf", "chdir", "clusters", "comment", "error", "exclude", "export", "export-file", "gid"}
    | {"help", "hold", "input", "job-name", "kill-on-invalid-dep", "no-kill", "no-requeue", "nodefile", "nodelist"}
    | {"nodes", "ntasks", "ntasks-per-node", "open-mode", "output", "parsable", "quiet", "requeue", "signal"}
    | {"test-only", "uid", "usage", "version", "wait", "wrap"}
)

_JOBS_OWN = frozenset({"apiVersion", "kind", "status"})


@dataclass(frozen=True, slots=True)
class Unsupported:
    pointer: str
    asked: Callable[[JobSpec, str], bool]  # (spec, the cluster's kind)
    sentence: str


def _is_slurms_own(option: str) -> bool:
    """Whether sbatch would read the option as one of these. It accepts prefixes of long options (getopt_long(3))."""
    return any(own.startswith(option) for own in _SLURMS_OWN)


def _names_a_file(nodes: tuple[str, ...]) -> bool:
    """Whether sbatch(1) would read the nodes from a file on the service's disk, as it does for a text with a slash."""
    return any("/" in node for node in nodes)


def _is_local(kind: str) -> bool:
    return kind == "local"


def _is_torchx(kind: str) -> bool:
    return kind.startswith("torchx:")


def _placement(name: str, is_without: Callable[[str], bool], sentence: str) -> Unsupported:
    neutral = getattr(Placement(), name)
    return Unsupported(
        f"/placement/{name}",
        lambda spec, kind: is_without(kind) and getattr(spec.placement, name) != neutral,
        sentence,
    )


UNSUPPORTED: tuple[Unsupported, ...] = (
    Unsupported(
        "/snapshot/on_preemption",
        lambda spec, _: not spec.snapshot.on_preemption,
        "this version always takes a snapshot on preemption",
    ),
    Unsupported(
        "/topology/nodes",
        lambda spec, _: spec.launcher == "torchrun" and spec.topology.min_nodes != spec.topology.max_nodes,
        "a range of nodes needs launcher elasticrun; give torchrun one number",
    ),
    *(
        Unsupported(
            f"/placement/{name}",
            lambda spec, kind, name=name: kind == "slurm" and bool(getattr(spec.placement, name)),  # type: ignore[misc]
            "applies to Kubernetes only; on Slurm use placement.partition and placement.constraint",
        )
        for name in (
            *("queue", "priority_class", "required_topology", "preferred_topology"),
            *("node_selector", "tolerations", "overlay"),
        )
    ),
    *(
        Unsupported(
            f"/placement/{name}",
            lambda spec, kind, name=name: (
                kind == "kubernetes"  # type: ignore[misc]
                and getattr(spec.placement, name) != getattr(Placement(), name)
            ),
            "applies to Slurm only; on Kubernetes use placement.node_selector, queue, tolerations and overlay",
        )
        for name in (
            *("partition", "account", "qos", "reservation", "nodelist"),
            *("exclusive", "dependency", "options", "constraint"),
        )
    ),
    Unsupported(
        "/placement/preferred_topology",
        lambda spec, _: None not in (spec.placement.required_topology, spec.placement.preferred_topology),
        "excludes placement.required_topology; remove one of the two",
    ),
    Unsupported(
        "/placement/overlay",
        lambda spec, kind: kind == "kubernetes" and not _JOBS_OWN.isdisjoint(spec.placement.overlay),
        "may patch only `spec`, and annotations and labels of `metadata`",
    ),
    Unsupported(
        "/placement/options",
        lambda spec, kind: kind == "slurm" and any(map(_is_slurms_own, spec.placement.options)),
        f"contains an option that the service sets itself or does not allow: {', '.join(sorted(_SLURMS_OWN))}",
    ),
    *(
        Unsupported(
            f"/placement/{name}",
            lambda spec, kind, name=name: (
                kind == "slurm"  # type: ignore[misc]
                and _names_a_file(getattr(spec.placement, name))
            ),
            "contains a slash, so sbatch would read it as a file name; name nodes, such as n1 or n[2-5]",
        )
        for name in ("nodelist", "exclude")
    ),
    Unsupported(
        "/resources/gpu_type",
        lambda spec, kind: kind == "local" and spec.resources.gpu_type is not None,
        _NO_SCHEDULER,
    ),
    Unsupported("/resources/extra", lambda spec, kind: kind == "local" and bool(spec.resources.extra), _NO_SCHEDULER),
    Unsupported(
        "/resources/gpu_type",
        lambda spec, kind: _is_torchx(kind) and spec.resources.gpu_type is not None,
        _NOT_FOR_TORCHX,
    ),
    Unsupported(
        "/resources/extra", lambda spec, kind: _is_torchx(kind) and bool(spec.resources.extra), _NOT_FOR_TORCHX
    ),
    *(_placement(name, _is_local, _NO_SCHEDULER) for name in Placement.model_fields),
    *(_placement(name, _is_torchx, _NOT_FOR_TORCHX) for name in Placement.model_fields),
)


def find_unsupported(spec: JobSpec, cluster_kind: str) -> list[FieldProblem]:
    return [FieldProblem(row.pointer, row.sentence) for row in UNSUPPORTED if row.asked(spec, cluster_kind)]
