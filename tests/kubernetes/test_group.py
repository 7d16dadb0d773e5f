"""The trial group of `doctor` on Kubernetes: two workers in a pod, started like those of a job."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from orchestrator.backends.kubernetes.backend import KubernetesBackend
from orchestrator.configured_cluster import Cluster
from orchestrator.doctor.finding import Verdict
from orchestrator.doctor.trial_group import Timeouts, try_group
from orchestrator.domain.job.launch_plan import Site, build_plan
from tests.contract.backends import site
from tests.kubernetes.fake_api import FakeApi
from tests.kubernetes.test_not_starting import recorded_status
from tests.pythons import write_python_with_a_wrong_torch
from trainer.contract.node import HEAD, LOCAL


def cluster_of(backend: KubernetesBackend, service_root: Path, given: Site, *, shares_files: bool) -> Cluster:
    return Cluster(
        name="k8s",
        kind="kubernetes",
        backend=backend,
        job_root=service_root,
        plan=lambda job, attempt: build_plan(job, attempt, given),
        ports=range(20_000, 30_000),
        gpus=0,
        shares_files=shares_files,
    )


def site_of(root: Path, python: str = sys.executable) -> Site:
    return site(root, python=python, rendezvous_host=HEAD, local_address=LOCAL)


@pytest.mark.long
def test_two_workers_form_a_group_in_a_pod_and_nothing_is_left(
    api: FakeApi, backend: KubernetesBackend, tmp_path: Path
) -> None:
    given = site_of(tmp_path)
    _, verdict, sentence = try_group(cluster_of(backend, tmp_path, given, shares_files=True), given)
    assert (verdict, "two workers formed a group" in sentence) == (Verdict.OK, True), sentence
    assert api.store.all("jobs") == []
    own = [each.name for each in tmp_path.glob("doctor-*") if "-a1-" not in each.name]  # others belong to the pods
    assert own == []


def test_the_failure_is_reported_without_shared_files(api: FakeApi, apart: KubernetesBackend, tmp_path: Path) -> None:
    (tmp_path / "pods").mkdir()
    given = site_of(tmp_path / "pods", str(write_python_with_a_wrong_torch(tmp_path)))
    cluster = cluster_of(apart, tmp_path / "service", given, shares_files=False)
    _, verdict, sentence = try_group(cluster, given)
    assert verdict is Verdict.FAILED
    assert "the agent cannot start with" in sentence, sentence
    assert api.store.all("jobs") == []


@pytest.mark.parametrize(
    ("stream", "words"),
    [
        ("07-unschedulable-gpu", "Insufficient nvidia.com/gpu"),
        pytest.param("06-image-registry-unreachable", "no such host", marks=pytest.mark.long),
    ],
)
def test_a_pod_that_does_not_start_is_a_warning_with_the_message_of_kubernetes(
    api: FakeApi, backend: KubernetesBackend, tmp_path: Path, stream: str, words: str
) -> None:
    api.cluster.held = recorded_status(stream, 2.0)
    given = site_of(tmp_path)
    cluster = cluster_of(backend, tmp_path, given, shares_files=True)
    _, verdict, sentence = try_group(cluster, given, Timeouts(begin_s=2))
    assert (verdict, words in sentence) == (Verdict.WARNING, True), sentence
    assert api.store.all("jobs") == []
