"""Fields that a job's overlay may set, and fields that would give its pods more privileges."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.backends.kubernetes.guard import find_excess
from orchestrator.backends.kubernetes.render import render_manifests
from orchestrator.backends.kubernetes.site import QUEUE_LABEL
from orchestrator.domain.errors import LaunchRefused
from tests.kubernetes.test_render import OWN, plan_of

POD = "spec.template.spec"


def of_pod(**patch: Any) -> dict[str, Any]:
    return {"spec": {"template": {"spec": patch}}}


def of_agent(**patch: Any) -> dict[str, Any]:
    return of_pod(containers=[{"name": "agent", **patch}])


def excess_of(overlay: dict[str, Any], cluster_overlay: dict[str, Any] | None = None) -> str | None:
    return find_excess(overlay, cluster_overlay=cluster_overlay or {}, agent="agent")


def secret(name: str) -> dict[str, Any]:
    return {"name": "x", "valueFrom": {"secretKeyRef": {"name": name, "key": "token"}}}


@pytest.mark.parametrize(
    ("overlay", "excess"),
    [
        (of_pod(volumes=[{"name": "x", "secret": {"secretName": "orchestrator-token"}}]), f"{POD}.volumes.secret"),
        (of_pod(volumes=[{"name": "x", "hostPath": {"path": "/"}}]), f"{POD}.volumes.hostPath"),
        (of_pod(volumes=[{"name": "x", "projected": {"sources": []}}]), f"{POD}.volumes.projected"),
        (of_pod(volumes=[{"name": "x", "csi": {"driver": "secrets"}}]), f"{POD}.volumes.csi"),
        (of_agent(env=[secret("orchestrator-token")]), f"{POD}.containers.env.valueFrom.secretKeyRef"),
        (of_agent(envFrom=[{"secretRef": {"name": "orchestrator-token"}}]), f"{POD}.containers.envFrom"),
        (
            of_pod(initContainers=[{"name": "a", "env": [secret("x")]}]),
            f"{POD}.initContainers.env.valueFrom.secretKeyRef",
        ),
        (of_pod(serviceAccountName="orchestrator"), f"{POD}.serviceAccountName"),
        (of_pod(automountServiceAccountToken=True), f"{POD}.automountServiceAccountToken"),
        (of_pod(securityContext={"runAsUser": 0}), f"{POD}.securityContext"),
        (of_agent(securityContext={"privileged": True}), f"{POD}.containers.securityContext"),
        (of_agent(securityContext=None), f"{POD}.containers.securityContext"),
        (of_agent(ports=[{"containerPort": 1, "hostPort": 80}]), f"{POD}.containers.ports.hostPort"),
        (of_agent(livenessProbe={"httpGet": {"host": "169.254.169.254"}}), f"{POD}.containers.livenessProbe"),
        (of_agent(lifecycle={"postStart": {"httpGet": {"host": "x"}}}), f"{POD}.containers.lifecycle"),
        (of_pod(hostNetwork=True), f"{POD}.hostNetwork"),
        (of_pod(hostPID=True), f"{POD}.hostPID"),
        (of_pod(nodeName="control-plane"), f"{POD}.nodeName"),
        (of_pod(priorityClassName="system-node-critical"), f"{POD}.priorityClassName"),
        ({"spec": {"template": {"metadata": {"labels": {"app": "orchestrator"}}}}}, "spec.template.metadata.labels"),
        ({"spec": {"manualSelector": True, "selector": {}}}, "spec.manualSelector"),
        ({"spec": {"completions": 9}}, "spec.completions"),
        ({"metadata": {"finalizers": ["x/y"]}}, "metadata.finalizers"),
        ({"metadata": {"ownerReferences": []}}, "metadata.ownerReferences"),
        ({"status": {}}, "status"),
        (of_pod(**{"$patch": "replace"}, containers=[]), f"{POD}.$patch"),
        (of_pod(containers=[{"$patch": "replace"}, {"name": "agent", "image": "x"}]), f"{POD}.containers.$patch"),
        ({"spec": {"$patch": "replace"}}, "spec.$patch"),
        ({"spec": {"ttlSecondsAfterFinished": 0}}, "spec.ttlSecondsAfterFinished"),
        (of_pod(terminationGracePeriodSeconds=10**6), f"{POD}.terminationGracePeriodSeconds"),
        (
            {"spec": {"template": {"metadata": {"annotations": {"iam.amazonaws.com/role": "admin"}}}}},
            "spec.template.metadata.annotations",
        ),
        ({"metadata": {"labels": {QUEUE_LABEL: None}}}, f"metadata.labels.{QUEUE_LABEL}"),
        (
            {"metadata": {"annotations": {"elastic-orchestrator/whole": "true"}}},
            "metadata.annotations.elastic-orchestrator/whole",
        ),
        (
            of_pod(
                volumes=[{"name": "x", "ephemeral": {"volumeClaimTemplate": {"spec": {"dataSource": {"name": "y"}}}}}]
            ),
            f"{POD}.volumes.ephemeral.dataSource",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_privileged_fields_of_an_overlay_are_refused_by_name(overlay: dict[str, Any], excess: str) -> None:
    assert excess_of(overlay) == excess
    plan = plan_of({"placement": {"overlay": overlay}}, {})
    with pytest.raises(LaunchRefused, match="cannot be set by a job") as raised:
        render_manifests(plan, OWN, workdir="/")
    assert excess in str(raised.value)


def test_harmless_fields_of_an_overlay_are_accepted() -> None:
    volumes = [
        {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "more", "emptyDir": {"medium": "Memory"}},
        {"name": "tmp", "$patch": "delete"},
    ]
    agent = {
        "name": "agent",
        "env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        "resources": {"limits": {"cpu": "2"}},
        "ports": [{"containerPort": 9090}],
    }
    sidecar = {"name": "watch", "image": "x", "args": ["y"], "restartPolicy": "Always"}
    pod = {"containers": [agent], "initContainers": [sidecar], "volumes": volumes, "affinity": {}}
    overlay = {
        "metadata": {"labels": {"team": "a"}, "annotations": {"b": "c"}},
        "spec": {"activeDeadlineSeconds": 60, "template": {"spec": pod}},
    }
    assert excess_of(overlay) is None


@pytest.mark.parametrize("name", [[], {}, 7, None])
def test_a_name_that_is_not_text_is_refused(name: object) -> None:
    for patch in (of_pod(containers=[{"name": name}]), of_agent(volumeMounts=[{"name": name, "mountPath": "/x"}])):
        assert excess_of(patch, of_pod(containers=[{"name": "side"}], volumes=[{"name": "v"}])) is None
    with pytest.raises(LaunchRefused, match="not a list of containers with names"):
        render_manifests(plan_of({"placement": {"overlay": of_pod(containers=[{"name": name}])}}, {}), OWN, workdir="/")


@pytest.mark.parametrize(
    "overlay", [{}, {"spec": None}, {"spec": "x"}, of_pod(containers="x", volumes=[1]), of_agent(env=["x"])]
)
def test_an_overlay_of_the_wrong_shape_has_no_excess(overlay: dict[str, Any]) -> None:
    assert excess_of(overlay) is None


THEIRS = of_pod(
    initContainers=[{"name": "tune", "securityContext": {"privileged": True}}],
    containers=[{"name": "agent", "env": [{"name": "A", "value": "1"}]}],
    volumes=[{"name": "secrets", "secret": {"secretName": "cluster_overlay"}}],
    nodeSelector={"pool": "batch"},
    tolerations=[{"key": "batch"}],
)


@pytest.mark.parametrize(
    ("overlay", "excess"),
    [
        (of_pod(initContainers=[{"name": "tune", "command": ["sh"]}]), f"{POD}.initContainers.tune"),
        (of_pod(initContainers=None), f"{POD}.initContainers"),
        (of_pod(volumes=[{"name": "secrets", "emptyDir": {}}]), f"{POD}.volumes.secrets"),
        (of_pod(nodeSelector=None), f"{POD}.nodeSelector"),
        (of_pod(nodeSelector={"pool": "other"}), f"{POD}.nodeSelector"),
        (
            of_agent(volumeMounts=[{"name": "secrets", "mountPath": "/x"}]),
            f"{POD}.containers.volumeMounts.secrets",
        ),
        (of_agent(image="mine"), None),
        (of_pod(tolerations=[{"key": "mine"}], initContainers=[{"name": "mine"}]), None),
    ],
)
def test_a_job_cannot_change_the_cluster_s_own_overlay(overlay: dict[str, Any], excess: str | None) -> None:
    assert excess_of(overlay, cluster_overlay=THEIRS) == excess


def test_a_container_that_a_job_adds_has_the_agent_s_security_context() -> None:
    plan = plan_of({"placement": {"overlay": of_pod(initContainers=[{"name": "mine", "image": "x"}])}}, {})
    site = replace(OWN, overlay=THEIRS)
    agent, tune, mine = (
        each
        for kind in ("containers", "initContainers")
        for each in render_manifests(plan, site, workdir="/").job["spec"]["template"]["spec"][kind]
        if each["name"] in ("agent", "tune", "mine")
    )
    assert mine["securityContext"] == agent["securityContext"]
    assert tune["securityContext"] == {"privileged": True}
    free = render_manifests(plan, replace(site, free_overlays=True), workdir="/").job["spec"]["template"]["spec"]
    assert "securityContext" not in free["initContainers"][-1]


def test_the_cluster_s_overlay_and_defaults_and_jobs_with_free_overlays_are_not_limited() -> None:
    overlay = of_pod(serviceAccountName="trainer")
    plan = plan_of({"placement": {"overlay": overlay}}, {})
    placed = OWN.defaults.model_copy(update={"overlay": overlay})
    for job in (
        render_manifests(plan, replace(OWN, free_overlays=True), workdir="/").job,
        render_manifests(plan_of({}, {}), replace(OWN, overlay=overlay), workdir="/").job,
        render_manifests(plan_of({}, {}), replace(OWN, defaults=placed), workdir="/").job,
    ):
        assert job["spec"]["template"]["spec"]["serviceAccountName"] == "trainer"
