"""Render an attempt's pods: one container that runs the agent, and its mounts. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from orchestrator.backends.kubernetes.agent import agent_mounts, agent_volumes, render_unpack_container, start_agent
from orchestrator.backends.kubernetes.security import secure_container, secure_pod
from orchestrator.backends.kubernetes.site import (
    ATTEMPT_LABEL,
    CONTAINER,
    DISRUPTIONS_ANNOTATION,
    FAILURES_ANNOTATION,
    KubernetesSite,
)
from orchestrator.domain.job.launch_plan import LaunchPlan
from orchestrator.domain.specs.spec import Placement
from trainer.contract import env

LAUNCH_FILE = "launch.json"
_LAUNCH_DIR = "/etc/elastic-orchestrator"
_HEAVIEST = 100  # the largest weight of a preference (the API allows 1 to 100)
_LAST_WORDS = "/dev/termination-log"  # the API's default for terminationMessagePath
_USER = "trainer"  # images have no name for this user id, and torch calls getpass.getuser, which would raise

Manifest = dict[str, Any]


def render_pod(plan: LaunchPlan, site: KubernetesSite, place: Placement, name: str) -> Manifest:
    pod: Manifest = {
        "restartPolicy": "Never",
        "subdomain": name,
        "terminationGracePeriodSeconds": site.grace_s,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "containers": [_container(plan, site, name)],
        "volumes": _volumes(site, name),
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {ATTEMPT_LABEL: name}},
            }
        ],
        "tolerations": [*_node_tolerations(site), *(dict(each) for each in place.tolerations)],
    }
    optional = {
        "initContainers": [render_unpack_container(site)] if site.agent_image else None,
        "serviceAccountName": site.service_account,
        "imagePullSecrets": [{"name": each} for each in site.pull_secrets] or None,
        "priorityClassName": site.priority_class,
        "nodeSelector": _selector(plan, site, place) or None,
        "affinity": {**_node_affinity(plan, place), **_pod_affinity(place, name)} or None,
        "securityContext": secure_pod(site),
    }
    return pod | {key: value for key, value in optional.items() if value is not None}


def _container(plan: LaunchPlan, site: KubernetesSite, name: str) -> Manifest:
    image = plan.image or site.image
    return {
        "name": CONTAINER,
        "image": image,
        "command": [site.python, *start_agent(site, f"{_LAUNCH_DIR}/{LAUNCH_FILE}")],
        "env": [
            {"name": "HOME", "value": "/tmp"},
            *([] if site.user is None else [{"name": "USER", "value": _USER}]),
            *([] if image is None else [{"name": env.IMAGE, "value": image}]),
            {"name": "ORCHESTRATOR_HEAD", "value": f"{name}-0.{name}"},
            {"name": "ORCHESTRATOR_LAST_WORDS", "value": _LAST_WORDS},
            _field("ORCHESTRATOR_POD_IP", "status.podIP"),
            _field(env.NODE, "spec.nodeName"),
            _field("ORCHESTRATOR_JOB_UID", "metadata.labels['batch.kubernetes.io/controller-uid']"),
            *(_predecessors() if plan.takes_back else []),
        ],
        "resources": _resources(plan, site),
        "terminationMessagePath": _LAST_WORDS,
        "terminationMessagePolicy": "FallbackToLogsOnError",  # for an agent that did not start, its output
        "securityContext": secure_container(site),
        "volumeMounts": [
            {"name": "launch", "mountPath": _LAUNCH_DIR, "readOnly": True},
            {"name": "run", "mountPath": str(site.root)},
            {"name": "shm", "mountPath": "/dev/shm"},
            {"name": "tmp", "mountPath": "/tmp"},
            *agent_mounts(site),
        ],
    }


def _volumes(site: KubernetesSite, name: str) -> list[Manifest]:
    # The default /dev/shm of a pod has 64 MB, which data loaders and NCCL soon fill.
    shm = {"medium": "Memory"} | ({} if site.shm_gb is None else {"sizeLimit": f"{math.ceil(site.shm_gb * 1024)}Mi"})
    run: Manifest = {"emptyDir": {}}
    if site.claim is not None:
        run = {"persistentVolumeClaim": {"claimName": site.claim}}
    elif site.host_path is not None:
        run = {"hostPath": {"path": site.host_path, "type": "DirectoryOrCreate"}}
    return [
        {"name": "launch", "secret": {"secretName": name}},
        {"name": "run", **run},
        {"name": "shm", "emptyDir": shm},
        {"name": "tmp", "emptyDir": {}},
        *agent_volumes(site),
    ]


def _resources(plan: LaunchPlan, site: KubernetesSite) -> Manifest:
    """Request CPUs without a limit, so that no pod is throttled. Request and limit memory and devices."""
    wanted = plan.resources
    gpus = wanted.gpus or (plan.workers_per_node if site.gpus_per_node else 0)
    limits = {} if wanted.memory_gb is None else {"memory": f"{math.ceil(wanted.memory_gb * 1024)}Mi"}
    limits |= {site.gpu_resource: str(gpus)} if gpus else {}
    limits |= dict(wanted.extra)
    cpus = {} if wanted.cpus is None else {"cpu": f"{math.ceil(wanted.cpus * 1000)}m"}
    return {"requests": {**cpus, **limits}, "limits": limits}


def _selector(plan: LaunchPlan, site: KubernetesSite, place: Placement) -> dict[str, str]:
    kind = {} if plan.resources.gpu_type is None else {site.gpu_label: plan.resources.gpu_type}
    return {**kind, **place.node_selector}


def _node_affinity(plan: LaunchPlan, place: Placement) -> Manifest:
    """Require that excluded nodes are avoided. Only prefer it for suspect nodes, since one fault may mark them all."""
    affinity: Manifest = {}
    if place.exclude:
        demand = {"nodeSelectorTerms": [_none_of(place.exclude)]}
        affinity["requiredDuringSchedulingIgnoredDuringExecution"] = demand
    if plan.excluded_nodes:
        preference = {"weight": _HEAVIEST, "preference": _none_of(plan.excluded_nodes)}
        affinity["preferredDuringSchedulingIgnoredDuringExecution"] = [preference]
    return {"nodeAffinity": affinity} if affinity else {}


def _none_of(names: Iterable[str]) -> Manifest:
    """Match nodes by their objects' names, since the label kubernetes.io/hostname may differ."""
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in sorted(set(names))]
    return {"matchFields": fields}


def _pod_affinity(place: Placement, name: str) -> Manifest:
    """Keep the pods of the Job `name` in one domain of the topology. In a queue, Kueue does that."""
    if place.queue is not None:
        return {}
    affinity: Manifest = {}
    if place.required_topology is not None:
        affinity["requiredDuringSchedulingIgnoredDuringExecution"] = [_same(place.required_topology, name)]
    if place.preferred_topology is not None:
        term = {"weight": _HEAVIEST, "podAffinityTerm": _same(place.preferred_topology, name)}
        affinity["preferredDuringSchedulingIgnoredDuringExecution"] = [term]
    return {"podAffinity": affinity} if affinity else {}


def _same(label: str, name: str) -> Manifest:
    return {"topologyKey": label, "labelSelector": {"matchLabels": {ATTEMPT_LABEL: name}}}


def _node_tolerations(site: KubernetesSite) -> list[Manifest]:
    """Tolerate a silent node for this long. The server's default is 300 s."""
    return [
        {
            "key": f"node.kubernetes.io/{what}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": site.unreachable_s,
        }
        for what in ("not-ready", "unreachable")
    ]


def _predecessors() -> list[Manifest]:
    """How many earlier pods of the same index ended. The agent's incarnation is greater."""
    return [
        _field("ORCHESTRATOR_POD_FAILURES", f"metadata.annotations['{FAILURES_ANNOTATION}']"),
        _field("ORCHESTRATOR_POD_DISRUPTIONS", f"metadata.annotations['{DISRUPTIONS_ANNOTATION}']"),
    ]


def _field(name: str, path: str) -> Manifest:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
