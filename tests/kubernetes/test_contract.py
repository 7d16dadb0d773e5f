"""The contract of backends on the fake cluster, whose containers are real agents."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.dev.crash_points.launcher import write_lean_python
from orchestrator.backends.kubernetes.backend import KubernetesBackend
from orchestrator.domain.errors import BackendUnavailable, LaunchRefused
from tests.contract.backend_contract import BackendContract, over, until
from tests.contract.backends import BackendWorld, RealWorld, site
from tests.kubernetes.fake_api import FakeApi, recorded
from trainer.contract import layout
from trainer.contract.node import HEAD, LOCAL


class TestKubernetes(BackendContract):
    @pytest.fixture
    def world(self, backend: KubernetesBackend, tmp_path: Path) -> BackendWorld:
        return world_of(tmp_path, backend)


def world_of(root: Path, backend: KubernetesBackend) -> RealWorld:
    given = site(root, python=str(write_lean_python(root)), rendezvous_host=HEAD, local_address=LOCAL)
    return RealWorld(root, backend, given, patience_s=30)


def test_without_shared_files_records_and_logs_come_through_the_cluster(
    apart: KubernetesBackend, tmp_path: Path
) -> None:
    pods, service = tmp_path / "pods", tmp_path / "service"
    pods.mkdir()
    world = world_of(pods, apart)
    plan = world.plan("apart", seconds=0.1)
    apart.submit(plan)
    ended = until(world, plan, over)
    (replica,) = ended.replicas
    assert "left its record" in replica.evidence
    folder = layout.replica_dir(service / "apart", 1, 0)
    assert (folder / "1" / layout.EXIT).read_text().count("succeeded") == 1
    # The agent's output arrives over a separate stream.
    log = folder / layout.AGENT_LOG
    until(world, plan, lambda _: log.exists() and "replica 0 succeeded" in log.read_text())
    assert not (service / "apart" / "started").exists()


@pytest.mark.parametrize(
    ("answer", "raised", "words"),
    [
        ("forbidden: a service account without a role, create", BackendUnavailable, "no right"),
        ("negative parallelism", LaunchRefused, "refused"),
    ],
)
def test_without_a_config_map_for_the_agent_nothing_starts(
    api: FakeApi, apart: KubernetesBackend, tmp_path: Path, answer: str, raised: type[Exception], words: str
) -> None:
    """A right may still be granted, so the job waits. A permanent refusal ends it."""
    api.store.next_refusal["configmaps", "create"] = recorded(answer)
    (tmp_path / "pods").mkdir()
    with pytest.raises(raised, match=words):
        apart.submit(world_of(tmp_path / "pods", apart).plan("apart"))
    assert api.store.all("jobs") == []
