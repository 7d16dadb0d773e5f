"""`doctor` on Kubernetes: two workers in a pod, started as a job's are."""

from __future__ import annotations

import sys
from pathlib import Path

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


def test_two_workers_meet_in_a_pod_and_nothing_is_left(
    api: FakeApi, backend: KubernetesBackend, tmp_path: Path
) -> None:
    given = site_of(tmp_path)
    _, verdict, sentence = try_group(cluster_of(backend, tmp_path, given, shares_files=True), given)
    assert (verdict, "two workers formed a group" in sentence) == (Verdict.OK, True), sentence
    assert api.store.all("jobs") == []
    own = [each.name for each in tmp_path.glob("doctor-*") if "-a1-" not in each.name]  # the others are the pods'
    assert own == []


def test_pods_that_share_no_files_tell_how_it_ended(api: FakeApi, apart: KubernetesBackend, tmp_path: Path) -> None:
    (tmp_path / "pods").mkdir()
    given = site_of(tmp_path / "pods", str(write_python_with_a_wrong_torch(tmp_path)))
    cluster = cluster_of(apart, tmp_path / "service", given, shares_files=False)
    _, verdict, sentence = try_group(cluster, given)
    assert verdict is Verdict.FAILED
    assert "the agent cannot start with" in sentence, sentence
    assert api.store.all("jobs") == []


def test_a_cluster_without_room_is_no_failure(api: FakeApi, backend: KubernetesBackend, tmp_path: Path) -> None:
    api.cluster.held = recorded_status("07-unschedulable-gpu", 2.0)
    given = site_of(tmp_path)
    cluster = cluster_of(backend, tmp_path, given, shares_files=True)
    _, verdict, sentence = try_group(cluster, given, Timeouts(begin_s=2))
    assert verdict is Verdict.WARNING
    assert "Insufficient nvidia.com/gpu" in sentence
    assert api.store.all("jobs") == []


def test_an_image_that_cannot_be_pulled_is_told_in_the_kubelets_words(
    api: FakeApi, backend: KubernetesBackend, tmp_path: Path
) -> None:
    api.cluster.held = recorded_status("06-image-registry-unreachable", 2.0)
    given = site_of(tmp_path)
    cluster = cluster_of(backend, tmp_path, given, shares_files=True)
    _, _, sentence = try_group(cluster, given, Timeouts(begin_s=2))
    assert "no such host" in sentence
