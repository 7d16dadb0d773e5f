"""The chart, rendered by Helm: schemas, rights, matching names, and the plain manifests."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import tomllib
import yaml

from orchestrator.backends.kubernetes.rights import RIGHTS
from orchestrator.settings import Settings
from tests.deploy.settings import unknown_variables
from tests.deploy.tools import missing

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
VERSIONS = ("1.31", "1.36")  # the oldest supported version, and a current one
# Kinds of the Prometheus operator, which Kubernetes' schemas do not have.
_OPERATOR = {"ServiceMonitor", "PrometheusRule"}
_SCHEMAS = yaml.safe_load((Path(__file__).parent / "operator.yaml").read_text())

Manifest = dict[str, Any]

EVERYTHING: dict[str, Any] = {
    "image": {"repository": "registry.example/o", "digest": "sha256:" + "0" * 64},
    "imagePullSecrets": ["pull"],
    "rbac": {"nodes": True},
    "ingress": {"enabled": True, "className": "nginx", "annotations": {"a/b": "c"}},
    "tls": {"secret": "orchestrator-own-tls"},
    "secretKeys": {"secret": "more-keys", "key": "all"},
    "serviceMonitor": {"enabled": True, "tokenSecret": "viewer", "labels": {"release": "prometheus"}},
    "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
    "grafanaDashboard": {"enabled": True},
    "secretEnv": [{"name": "ORCHESTRATOR_PAGER_SECRET", "secret": "pager", "key": "secret"}],
    "env": [{"name": "ORCHESTRATOR_LOG_LEVEL", "value": "debug"}],
    "nodeSelector": {"pool": "services"},
    "tolerations": [{"key": "services", "operator": "Exists"}],
    "priorityClassName": "high",
    "podAnnotations": {"note": "1"},
    "networkPolicy": {
        "database": [{"podSelector": {"matchLabels": {"app": "postgres"}}}],
        "egress": [{"ports": [{"protocol": "TCP", "port": 4318}]}],
    },
}
SMALL: dict[str, Any] = {
    "replicas": 1,
    "rbac": {"create": False},
    "serviceAccount": {"create": False, "name": "given"},
    "runs": {"existingClaim": "shared"},
    "networkPolicy": {"enabled": False},
    "podDisruptionBudget": {"enabled": False},
}
VARIANTS: dict[str, dict[str, Any]] = {"default": {}, "everything": EVERYTHING, "small": SMALL}
EACH = pytest.mark.parametrize("variant", VARIANTS)


def _chart(*arguments: str, values: dict[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
    if importlib.util.find_spec("helm_python") is None:
        missing("Helm's library is not installed: pip install -c constraints.txt helm-python-sdk")
    command = [sys.executable, "-m", "deploy.dev.chart", *([] if values is None else ["--values", "-"]), *arguments]
    document = None if values is None else json.dumps(values)
    return subprocess.run(command, input=document, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


@cache
def _text(variant: str) -> str:
    done = _chart(values=VARIANTS[variant])
    assert done.returncode == 0, done.stderr
    return done.stdout


def _manifests(variant: str) -> list[Manifest]:
    return [each for each in yaml.safe_load_all(_text(variant)) if each]


def _of_kind(variant: str, kind: str) -> list[Manifest]:
    return [each for each in _manifests(variant) if each["kind"] == kind]


def _pod(variant: str) -> Manifest:
    (deployment,) = _of_kind(variant, "Deployment")
    found: Manifest = deployment["spec"]["template"]["spec"]
    return found


def _containers(variant: str) -> Iterator[Manifest]:
    yield from _pod(variant)["initContainers"]
    yield from _pod(variant)["containers"]


def test_helm_lint_passes() -> None:
    done = _chart("--lint")
    assert done.returncode == 0, done.stderr


def _validate(manifest: Manifest, version: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of the validator's libraries
        kubernetes_validate.validate(manifest, version, strict=True)


@EACH
@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_is_valid_by_its_schema(variant: str, version: str) -> None:
    for manifest in _manifests(variant):
        if manifest["kind"] not in _OPERATOR:
            _validate(manifest, version)


@pytest.mark.parametrize("kind", sorted(_OPERATOR))
def test_every_object_of_the_operator_is_valid(kind: str) -> None:
    validator = jsonschema.Draft202012Validator(_SCHEMAS[kind])
    (manifest,) = _of_kind("everything", kind)
    assert [error.message for error in validator.iter_errors(manifest)] == []
    wrong = json.loads(json.dumps(manifest).replace('"path"', '"paths"').replace('"alert"', '"alarm"'))
    assert list(validator.iter_errors(wrong)) != [], "the definition is checked at all"


@pytest.mark.parametrize("kind", ["Deployment", "NetworkPolicy", "Role"])
def test_the_schema_check_refuses_a_misspelled_field(kind: str) -> None:
    manifest = next(each for each in _manifests("default") if each["kind"] == kind)
    manifest["specc"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        _validate(manifest, VERSIONS[0])


@EACH
def test_the_key_for_secrets_is_not_in_the_run_directory(variant: str) -> None:
    """Without this variable the service creates a key in its root, which is the run directory."""
    for container in _containers(variant):
        named = {each["name"]: each.get("valueFrom", {}) for each in container["env"]}
        assert named["ORCHESTRATOR_SECRET_KEYS"].keys() == {"secretKeyRef"}


def test_the_plain_manifests_are_the_chart_with_its_defaults() -> None:
    text = (KUBERNETES / "manifests.yaml").read_text()
    written = [each for each in yaml.safe_load_all(text) if each]
    assert written == _manifests("default"), "run python -m deploy.dev.chart --write"


@pytest.mark.parametrize(
    "values",
    [
        {"replica": 3},
        {"replicas": 0},
        {"image": {"repository": ""}},
        {"database": {"secrets": "s"}},
        {"secretKeys": {"secret": ""}},
        {"ingress": {"hosts": []}},
    ],
    ids=str,
)
def test_invalid_values_are_refused(values: dict[str, Any]) -> None:
    done = _chart(values=values)
    assert done.returncode != 0
    assert "Helm" in done.stderr


def _granted(variant: str, kind: str) -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for role in _of_kind(variant, kind)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def _asked(*, namespaced: bool) -> set[tuple[str, str, str]]:
    return {
        (right.api_group, right.resource, verb)
        for right in RIGHTS
        if right.namespaced is namespaced
        for verb in right.verbs
    }


def test_the_role_grants_exactly_what_the_client_calls() -> None:
    assert _granted("default", "Role") == _asked(namespaced=True)
    assert _granted("everything", "Role") == _asked(namespaced=True)


def test_cluster_wide_rights_are_granted_only_if_requested() -> None:
    assert _granted("default", "ClusterRole") == set()
    assert _of_kind("default", "ClusterRoleBinding") == []
    assert _granted("everything", "ClusterRole") == _asked(namespaced=False)


@pytest.mark.parametrize("variant", ["default", "everything"])
def test_rights_are_bound_only_to_the_service(variant: str) -> None:
    for kind in ("Role", "ClusterRole"):
        roles = {role["metadata"]["name"] for role in _of_kind(variant, kind)}
        for binding in _of_kind(variant, f"{kind}Binding"):
            assert binding["roleRef"]["name"] in roles
            subject = {
                "kind": "ServiceAccount",
                "name": _pod(variant)["serviceAccountName"],
                "namespace": "orchestrator",
            }
            assert binding["subjects"] == [subject]


@EACH
def test_containers_satisfy_the_restricted_standard(variant: str) -> None:
    """https://kubernetes.io/docs/concepts/security/pod-security-standards/"""
    pod = _pod(variant)
    context = pod["securityContext"]
    assert context["runAsNonRoot"] is True
    assert context["runAsUser"] == context["fsGroup"] == 1000
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in _containers(variant):
        own = container["securityContext"]
        assert own["allowPrivilegeEscalation"] is False
        assert own["readOnlyRootFilesystem"] is True
        assert own["capabilities"] == {"drop": ["ALL"]}
        assert "memory" in container["resources"]["limits"]
    assert not any("hostPath" in volume for volume in pod["volumes"])


@EACH
def test_mounts_and_volumes_match(variant: str) -> None:
    volumes = {volume["name"] for volume in _pod(variant)["volumes"]}
    for container in _containers(variant):
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes


@EACH
def test_selectors_match_the_service_s_pods(variant: str) -> None:
    (deployment,) = _of_kind(variant, "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"].items()
    (service,) = _of_kind(variant, "Service")
    assert service["spec"]["selector"].items() <= labels
    for kind in ("PodDisruptionBudget", "NetworkPolicy"):
        for each in _of_kind(variant, kind):
            if not each["metadata"]["name"].endswith("-jobs"):
                selector = each["spec"].get("selector", each["spec"].get("podSelector"))
                assert selector["matchLabels"].items() <= labels
    for monitor in _of_kind(variant, "ServiceMonitor"):
        assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
        assert {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]} <= {
            port["name"] for port in service["spec"]["ports"]
        }


@EACH
def test_the_mounted_claim_is_created_or_given(variant: str) -> None:
    (claim,) = [
        each["persistentVolumeClaim"]["claimName"] for each in _pod(variant)["volumes"] if each["name"] == "runs"
    ]
    made = {each["metadata"]["name"] for each in _of_kind(variant, "PersistentVolumeClaim")}
    assert made == (set() if variant == "small" else {claim})
    for each in _of_kind(variant, "PersistentVolumeClaim"):
        assert each["spec"]["accessModes"] == ["ReadWriteMany"]
        assert each["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_two_services_run_and_a_drain_evicts_one_at_a_time() -> None:
    (deployment,), (budget,) = _of_kind("default", "Deployment"), _of_kind("default", "PodDisruptionBudget")
    assert deployment["spec"]["replicas"] == 2
    assert budget["spec"]["maxUnavailable"] == 1
    assert _of_kind("small", "PodDisruptionBudget") == []


def test_two_versions_of_the_service_never_run_together() -> None:
    (deployment,) = _of_kind("default", "Deployment")
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    (upgrade,) = _pod("default")["initContainers"]
    assert upgrade["args"] == ["db", "upgrade"]


@EACH
def test_probes_use_the_host_name_localhost(variant: str) -> None:
    (container,) = _pod(variant)["containers"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        request = container[probe]["httpGet"]
        assert request["httpHeaders"] == [{"name": "Host", "value": "localhost"}]
        assert request["scheme"] == ("HTTPS" if variant == "everything" else "HTTP")
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz", (
        "an unreachable database must not restart the service"
    )
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"


@EACH
def test_secrets_come_from_secrets(variant: str) -> None:
    for container in _containers(variant):
        for variable in container["env"]:
            if (
                variable["name"].endswith(("_URL", "_TOKEN", "_SECRET", "_KEYS"))
                and "ADVERTISE" not in variable["name"]
            ):
                assert "secretKeyRef" in variable["valueFrom"], variable["name"]
    assert _of_kind(variant, "Secret") == []


@EACH
def test_variables_are_settings(variant: str) -> None:
    names = {variable["name"] for container in _containers(variant) for variable in container["env"]}
    assert unknown_variables(" ".join(names)) <= {"ORCHESTRATOR_PAGER_SECRET"}  # named by a webhook's secret_env


@EACH
def test_the_configuration_is_valid_for_the_service(variant: str) -> None:
    (config,) = [each for each in _of_kind(variant, "ConfigMap") if "orchestrator.toml" in each["data"]]
    document = tomllib.loads(config["data"]["orchestrator.toml"])
    cluster = document["clusters"]["kubernetes"]
    (claim,) = [
        each["persistentVolumeClaim"]["claimName"] for each in _pod(variant)["volumes"] if each["name"] == "runs"
    ]
    assert (cluster["claim"], cluster["namespace"]) == (claim, "orchestrator")
    assert "kubernetes" in Settings.model_validate(document).clusters


def test_alerts_and_dashboard_of_the_chart_are_up_to_date() -> None:
    (rule,) = _of_kind("everything", "PrometheusRule")
    assert rule["spec"] == yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yaml").read_text())
    (config,) = [each for each in _of_kind("everything", "ConfigMap") if "orchestrator.json" in each["data"]]
    assert json.loads(config["data"]["orchestrator.json"]) == json.loads(
        (ROOT / "deploy" / "grafana" / "dashboard.json").read_text()
    )


def test_only_jobs_reach_jobs_and_agents_reach_the_service() -> None:
    by_name = {each["metadata"]["name"]: each["spec"] for each in _of_kind("default", "NetworkPolicy")}
    jobs = {"podSelector": {"matchLabels": {"app.kubernetes.io/managed-by": "elastic-orchestrator"}}}
    assert by_name["orchestrator-jobs"]["ingress"] == [{"from": [jobs]}]
    assert jobs in by_name["orchestrator"]["ingress"][0]["from"]
    assert set(by_name["orchestrator"]["policyTypes"]) == {"Ingress", "Egress"}
