"""Settings of Kubernetes clusters: defaults and errors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.bootstrap import service
from orchestrator.bootstrap.cluster_backends import build_kubernetes_site
from orchestrator.bootstrap.machine import build_clusters
from orchestrator.cluster_settings import KubernetesClusterSettings
from orchestrator.commands.submission import check_submission
from orchestrator.domain.errors import ConfigurationError, InvalidSpec
from orchestrator.domain.queueing.lease import Lease
from orchestrator.domain.specs.unsupported import find_unsupported
from orchestrator.settings import Settings, load_settings
from orchestrator.store.engine import Database
from orchestrator.store.upgrade import upgrade
from orchestrator.supervisor.loop import SupervisorLoop
from tests.builders import make_spec
from tests.kubernetes.test_access import write

GKE = '[clusters.gke]\nbackend = "kubernetes"\ncontext = "lab"\nnamespace = "other"\nimage = "trainer:1"\n'

Load = Callable[..., Settings]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    monkeypatch.setenv("KUBECONFIG", str(write(tmp_path / "kubeconfig")))

    def loaded(text: str, **environ: str) -> Settings:
        path = tmp_path / "orchestrator.toml"
        path.write_text(f'root = "{tmp_path}"\n{text}')
        monkeypatch.setenv("ORCHESTRATOR_CONFIG", str(path))
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        return load_settings(path)

    return loaded


def test_a_minimal_configuration_makes_a_cluster(load: Load) -> None:
    settings = load(GKE, ORCHESTRATOR_ADVERTISE_URL="https://orchestrator.example")
    (place,) = build_clusters(settings, 0, b"key")
    cluster = place.cluster
    assert (cluster.name, cluster.kind, cluster.images, cluster.shares_files) == ("gke", "kubernetes", True, False)
    assert place.site.report_url == "https://orchestrator.example/api/v1/reports"
    assert place.site.worker_key == b"key", "reports from beyond loopback need a token"
    assert (place.submit_timeout_s, place.repeat_s) == (75, 10)
    assert cluster.backend.slots() is None


def test_pods_without_shared_files_need_an_address_for_reports(load: Load) -> None:
    with pytest.raises(ConfigurationError, match="ADVERTISE_URL"):
        build_clusters(load(GKE), 0, b"key")


def test_the_agent_is_in_the_shared_files_a_config_map_or_an_image(tmp_path: Path) -> None:
    shared = KubernetesClusterSettings(backend="kubernetes", claim="runs", service_root=tmp_path)
    apart = KubernetesClusterSettings(backend="kubernetes", claim="runs")
    image = KubernetesClusterSettings(backend="kubernetes", agent_image="agent:1")
    settings = Settings(root=tmp_path, advertise_url="http://service")
    sites = [build_kubernetes_site(each, settings, namespace="n") for each in (shared, apart, image)]
    assert [site.shared for site in sites] == [True, False, False]
    assert [site.agent_dir is not None for site in sites] == [True, False, False]
    assert [(site.agent_map or "").startswith("elastic-orchestrator-agent-") for site in sites] == [False, True, False]
    assert sites[0].seen_by_service(Path("/run/orchestrator/job")) == tmp_path / "job"
    assert sites[0].grace_s == 45


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('root = "relative"', "absolute"),
        ('claim = "runs"\nhost_path = "/srv"', "at most one"),
        ('service_root = "/mnt/runs"', "claim or host_path"),
        ("poll_s = 0", r"\.poll_s: "),
        ('run_as = "root"', r"\.run_as\."),
    ],
)
def test_a_wrong_setting_is_named(load: Load, line: str, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        load(f"{GKE}{line}\n")


@pytest.mark.parametrize(
    ("line", "alone"),
    [("", True), ('claim = "runs"\nservice_root = "/mnt/runs"\n', False)],
    ids=["apart", "shared"],
)
def test_without_shared_files_only_reports_count_as_signs_of_life(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, alone: bool
) -> None:
    made: list[tuple[str, bool]] = []

    def observer(cluster: str, *_: object, by_reports_alone: bool, **__: object) -> None:
        made.append((cluster, by_reports_alone))

    monkeypatch.setattr(service, "Observer", observer)
    settings = load(f"{GKE}{line}", ORCHESTRATOR_ADVERTISE_URL="http://service")
    upgrade(url := f"sqlite:///{tmp_path / 'orchestrator.db'}")
    database = Database(url)
    for loop in service.build(settings, database, "http://service").threads:
        if isinstance(loop, SupervisorLoop):
            loop._supervision(Lease(cluster="gke", holder="one", token=1), lambda: None)
    database.dispose()
    assert made == [("gke", alone)]


def test_an_unknown_context_is_refused_at_the_start(load: Load) -> None:
    with pytest.raises(ConfigurationError, match="no context nowhere"):
        build_clusters(load(GKE.replace('"lab"', '"nowhere"'), ORCHESTRATOR_ADVERTISE_URL="http://x"), 0, b"key")


def test_placement_fields_of_slurm_are_refused_and_those_of_kubernetes_accepted() -> None:
    wrong = make_spec(placement={"partition": "main", "qos": "high", "options": {"mail-type": "END"}})
    assert {problem.pointer for problem in find_unsupported(wrong, "kubernetes")} == {
        "/placement/partition",
        "/placement/qos",
        "/placement/options",
    }
    right = make_spec(placement={"queue": "research", "node_selector": {"a": "b"}, "overlay": {"spec": {}}})
    assert find_unsupported(right, "kubernetes") == []
    assert {problem.pointer for problem in find_unsupported(right, "slurm")} == {
        "/placement/queue",
        "/placement/node_selector",
        "/placement/overlay",
    }
    other_kind = make_spec(placement={"overlay": {"kind": "Pod"}})
    assert [problem.pointer for problem in find_unsupported(other_kind, "kubernetes")] == ["/placement/overlay"]


@pytest.mark.parametrize(
    ("cluster", "overlay", "why"),
    [
        (GKE, {"hostNetwork": True}, "spec.template.spec.hostNetwork cannot be set by a job"),
        (
            f"{GKE}free_overlays = true\n",
            {"containers": [{"name": "agent", "$patch": "delete"}]},
            "breaks the Job",
        ),
        (f"{GKE}free_overlays = true\n", {"hostNetwork": True}, None),
        (GKE, {"nodeSelector": {"zone": "b"}}, None),
    ],
)
def test_an_invalid_overlay_is_refused_at_submission(
    load: Load, tmp_path: Path, cluster: str, overlay: dict[str, object], why: str | None
) -> None:
    settings = load(cluster, ORCHESTRATOR_ADVERTISE_URL="https://orchestrator.example")
    (place,) = build_clusters(settings, 0, b"key")
    spec = make_spec(
        run={"command": ["true"], "workdir": str(tmp_path)},
        placement={"overlay": {"spec": {"template": {"spec": overlay}}}},
    )
    if why is None:
        check_submission(spec, place.cluster)
        return
    with pytest.raises(InvalidSpec) as refused:
        check_submission(spec, place.cluster)
    (problem,) = refused.value.problems
    assert problem.pointer == "/placement/overlay"
    assert why in problem.message
