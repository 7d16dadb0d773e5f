"""What a spec may say and this version cannot do: refused with a sentence, never accepted and forgotten."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.domain.errors import FieldProblem
from orchestrator.domain.spec import JobSpec, Placement

_NO_SCHEDULER = "cluster kind local has no scheduler that could honour it; remove it"


@dataclass(frozen=True, slots=True)
class Unsupported:
    pointer: str
    asked: Callable[[JobSpec, str], bool]  # (spec, the cluster's kind)
    sentence: str


def _placement(name: str) -> Unsupported:
    neutral = getattr(Placement(), name)
    return Unsupported(
        f"/placement/{name}",
        lambda spec, kind: kind == "local" and getattr(spec.placement, name) != neutral,
        _NO_SCHEDULER,
    )


UNSUPPORTED: tuple[Unsupported, ...] = (
    Unsupported("/run/secrets", lambda spec, _: bool(spec.run.secrets), "this version has no store of secrets yet"),
    Unsupported(
        "/snapshot/on_preemption",
        lambda spec, _: not spec.snapshot.on_preemption,
        "this version always takes a snapshot when it is told to go",
    ),
    Unsupported(
        "/topology/nodes",
        lambda spec, _: spec.launcher == "torchrun" and spec.topology.min_nodes != spec.topology.max_nodes,
        "a range of nodes needs launcher elasticrun; give torchrun one number",
    ),
    Unsupported(
        "/run/image",
        lambda spec, kind: kind == "local" and spec.run.image is not None,
        "cluster kind local runs processes on this machine, not images; remove it",
    ),
    Unsupported(
        "/resources/gpu_type",
        lambda spec, kind: kind == "local" and spec.resources.gpu_type is not None,
        _NO_SCHEDULER,
    ),
    Unsupported("/resources/extra", lambda spec, kind: kind == "local" and bool(spec.resources.extra), _NO_SCHEDULER),
    *(_placement(name) for name in Placement.model_fields),
)


def find_unsupported(spec: JobSpec, cluster_kind: str) -> list[FieldProblem]:
    return [FieldProblem(row.pointer, row.sentence) for row in UNSUPPORTED if row.asked(spec, cluster_kind)]
