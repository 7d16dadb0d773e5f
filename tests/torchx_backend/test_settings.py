"""Settings of a torchx cluster, and fields of a job that it cannot honor."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import TypeAdapter

from orchestrator.bootstrap.cluster_backends import build_torchx_site
from orchestrator.cluster_settings import ClusterSettings, TorchxClusterSettings
from orchestrator.domain.specs.ineffective_fields import ClusterTraits, list_ineffective
from orchestrator.domain.specs.unsupported import find_unsupported
from orchestrator.settings import Settings
from tests.unit.situations import a_spec

KIND = "torchx:lsf"


def test_a_cluster_needs_the_name_of_its_scheduler() -> None:
    read = TypeAdapter(ClusterSettings).validate_python
    given = read({"backend": "torchx", "scheduler": "lsf", "cfg": {"queue": "normal"}})
    assert isinstance(given, TorchxClusterSettings)
    assert given.cfg == {"queue": "normal"}
    with pytest.raises(ValueError, match="scheduler"):
        read({"backend": "torchx"})


def test_the_nodes_may_see_the_run_directory_under_another_path(tmp_path: Path) -> None:
    given = TorchxClusterSettings(backend="torchx", scheduler="lsf", root=Path("/far/runs"), service_root=tmp_path)
    own = build_torchx_site(given, Settings(root=tmp_path / "own"))
    assert (own.root, own.service_root) == (Path("/far/runs"), tmp_path)
    assert own.agent_dir.parent == Path("/far/runs/.agents")


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        ("placement", "partition", "gpu"),
        ("placement", "exclude", ["n1"]),
        ("placement", "time_limit_s", 60),
        ("placement", "overlay", {"spec": {}}),
        ("resources", "gpu_type", "a100"),
        ("resources", "extra", {"nvme": "1"}),
    ],
)
def test_what_torchx_has_no_field_for_is_refused(section: str, name: str, value: object) -> None:
    (problem,) = find_unsupported(a_spec(**{section: {name: value}}), KIND)
    assert (problem.pointer, "torchx has no field for it" in problem.message) == (f"/{section}/{name}", True)


def test_resources_that_torchx_has_are_accepted_and_nodes_are_not_avoided() -> None:
    spec = a_spec(resources={"cpus": 2, "memory_gb": 4, "gpus": 1}, supervise={"exclude_bad_nodes": False})
    assert find_unsupported(spec, KIND) == []
    (warning,) = list_ineffective(spec, ClusterTraits(kind=KIND, gpus_per_node=0), is_plan=False)
    assert warning == "supervise.exclude_bad_nodes has no effect: torchx gives no way to avoid nodes"
