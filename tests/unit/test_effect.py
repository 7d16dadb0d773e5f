"""Every field of a spec either has an effect on the job or gives a warning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from orchestrator.domain.specs.ineffective_fields import INEFFECTIVE, ClusterTraits, list_ineffective
from orchestrator.domain.specs.spec import JobSpec
from orchestrator.domain.specs.unsupported import find_unsupported
from tests.builders import make_spec

# These have an effect on every job that accepts them.
EFFECTIVE = frozenset(
    {"name", "project", "cluster", "launcher", "after", "labels", "notify", "array"}
    | {f"run.{name}" for name in ("trainer", "script", "module", "command", "args", "pass_local_rank")}
    | {f"run.{name}" for name in ("workdir", "image", "env", "secrets")}
    | {"topology.nodes", "topology.workers_per_node", "resources.extra"}
    | {f"placement.{name}" for name in ("nodelist", "exclusive", "options", "queue", "exclude")}
    | {f"placement.{name}" for name in ("node_selector", "tolerations", "overlay", "priority_class")}
    | {f"placement.{name}" for name in ("required_topology", "preferred_topology")}
    | {"snapshot.on_preemption"}
    | {f"supervise.{name}" for name in ("startup_timeout_s", "max_runtime_s", "refund_after_s", "backoff_s")}
    | {f"supervise.budgets.{name}" for name in ("application", "launch", "node", "hang", "storage", "preemption")}
)

KINDS = ("local", "slurm", "kubernetes")
TRAINER: dict[str, Any] = {"run": {"trainer": {}}}
RANGE: dict[str, Any] = {"topology": {"nodes": "1:4"}}


def fields_of(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from fields_of(inner, f"{prefix}{name}.")
        else:
            yield prefix + (field.alias or name)


def idle(kind: str = "local", *, gpus: int = 0, is_plan: bool = False, **spec: Any) -> list[str]:
    return list_ineffective(make_spec(**spec), ClusterTraits(kind=kind, gpus_per_node=gpus), is_plan=is_plan)


def named(sentences: list[str]) -> list[str]:
    return [sentence.partition(" ")[0] for sentence in sentences]


def test_every_field_of_a_spec_is_classified() -> None:
    """A new field fails here until it is classified."""
    ruled = {row.field for row in INEFFECTIVE}
    assert set(fields_of(JobSpec)) == EFFECTIVE | ruled
    assert EFFECTIVE & ruled == {"resources.extra"}  # unless an option of sbatch overrides it


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("launcher", ["elasticrun", "torchrun"])
@pytest.mark.parametrize(
    "run", [{"trainer": {}}, {"script": "a.py"}, {"module": "a"}, {"command": ["a"]}], ids=lambda run: next(iter(run))
)
def test_a_spec_without_options_gives_no_warning(kind: str, launcher: str, run: dict[str, object]) -> None:
    spec = make_spec(run=run, launcher=launcher)
    whole = JobSpec.model_validate(spec.model_dump(by_alias=True))  # every field is given, with its default
    for each in (spec, whole):
        assert list_ineffective(each, ClusterTraits(kind=kind, gpus_per_node=0), is_plan=True) == []


CASES: list[tuple[str, dict[str, Any], str, dict[str, Any]]] = [
    # field, a spec on which it has no effect, the kind of cluster, and a change that gives it one
    ("resources.cpus", {"resources": {"cpus": 2}}, "local", {"kind": "slurm"}),
    ("resources.memory_gb", {"resources": {"memory_gb": 2}}, "local", {"kind": "kubernetes"}),
    ("resources.gpus", {"resources": {"gpus": 1}}, "local", {"kind": "slurm"}),
    ("resources.gpu_type", {"resources": {"gpu_type": "a100"}}, "slurm", {"resources": {"gpu_type": "a", "gpus": 1}}),
    ("resources.gpu_type", {"resources": {"gpu_type": "a100"}}, "slurm", {"gpus": 8}),
    (
        "supervise.heartbeat_timeout_s",
        {"launcher": "torchrun", "supervise": {"heartbeat_timeout_s": 60}},
        "local",
        TRAINER,
    ),
    (
        "supervise.heartbeat_timeout_s",
        {"launcher": "torchrun", "supervise": {"heartbeat_timeout_s": 60}},
        "slurm",
        {"launcher": "elasticrun"},
    ),
    ("supervise.grow_back_after_s", {"supervise": {"grow_back_after_s": 60}}, "local", RANGE),
    ("supervise.grow_back_after_s", {"supervise": {"grow_back_after_s": None}}, "slurm", RANGE),
    ("supervise.grow_back_after_s", {**RANGE, "supervise": {"grow_back_after_s": 60}}, "kubernetes", {"kind": "slurm"}),
    ("snapshot.memory", {"snapshot": {"memory": "off"}}, "local", TRAINER),
    (
        "snapshot.memory",
        {**TRAINER, "snapshot": {"memory": "9s"}, "launcher": "torchrun"},
        "local",
        {"launcher": "elasticrun"},
    ),
    ("supervise.exclude_bad_nodes", {"supervise": {"exclude_bad_nodes": False}}, "local", {"kind": "slurm"}),
    ("supervise.exclude_bad_nodes", {"supervise": {"exclude_bad_nodes": False}}, "torchx:lsf", {"kind": "slurm"}),
    (
        "resources.memory_gb",
        {"resources": {"memory_gb": 2}, "placement": {"options": {"mem": "1G"}}},
        "slurm",
        {"placement": {}},
    ),
]


@pytest.mark.parametrize(("field", "spec", "kind", "change"), CASES)
def test_only_a_field_without_effect_gives_a_warning(
    field: str, spec: dict[str, Any], kind: str, change: dict[str, Any]
) -> None:
    assert named(idle(kind, **spec)) == [field]
    assert idle(**{"kind": kind, **spec, **change}) == []


@pytest.mark.parametrize(
    ("field", "spec", "kind", "change"),
    [
        *(
            (f"snapshot.{name}", {"snapshot": {name: value}}, "local", TRAINER)
            for name, value in {"dir": "/s", "from": "/s/a", "interval": "9", "keep": 9, "keep_every": 9}.items()
        ),
        ("supervise.grow_back_after_s", {**RANGE, "supervise": {"grow_back_after_s": 60}}, "slurm", TRAINER),
        ("priority", {"priority": 5}, "kubernetes", {"kind": "local"}),
    ],
)
def test_a_field_whose_effect_depends_on_the_program_gives_a_warning_only_in_a_plan(
    field: str, spec: dict[str, Any], kind: str, change: dict[str, Any]
) -> None:
    assert idle(kind, **spec) == []
    assert named(idle(kind, is_plan=True, **spec)) == [field]
    assert idle(**{"kind": kind, "is_plan": True, **spec, **change}) == []


def test_every_rule_has_a_case_above() -> None:
    sentences = {sentence for _, spec, kind, _ in CASES for sentence in idle(kind, **spec)}
    untried = {f"{row.field} {row.sentence}" for row in INEFFECTIVE if not row.maybe} - sentences
    assert {sentence for sentence in untried if "placement.options." not in sentence} == set()


@pytest.mark.parametrize(
    ("option", "given"),
    [
        ("account", {"placement": {"account": "x"}}),
        ("constraint", {"placement": {"constraint": "x"}}),
        ("cpus-per-task", {"resources": {"cpus": 2}}),
        ("dependency", {"placement": {"dependency": "x"}}),
        ("gres", {"resources": {"gpus": 1, "gpu_type": "x", "extra": {"nvme": "1"}}}),
        ("mem", {"resources": {"memory_gb": 2}}),
        ("partition", {"placement": {"partition": "x"}}),
        ("qos", {"placement": {"qos": "x"}}),
        ("reservation", {"placement": {"reservation": "x"}}),
        ("time", {"placement": {"time_limit_s": 60}}),
    ],
)
def test_an_option_of_sbatch_that_overrides_a_field_gives_a_warning(option: str, given: dict[str, Any]) -> None:
    [(part, values)] = given.items()
    both = {**given, "placement": {**given.get("placement", {}), "options": {option: "1"}}}
    assert named(idle("slurm", gpus=8, **both)) == [f"{part}.{name}" for name in values]
    assert idle("slurm", gpus=8, **given) == []
    assert find_unsupported(make_spec(**both), "slurm") == []
