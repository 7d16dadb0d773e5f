"""Render a LaunchPlan as an Indexed Job, a headless Service and a Secret. Pure.

The Job contains only the image and the placement. Command and environment are in the Secret, which is mounted as a
file, so the kubelet expands no value and `kubectl describe` shows none. The Job owns the Service and the Secret, so
deleting it removes all three.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from orchestrator.backends.kubernetes.agent import add_agent_path
from orchestrator.backends.kubernetes.guard import find_excess
from orchestrator.backends.kubernetes.kueue_request import annotate_job, annotate_pods, label_job
from orchestrator.backends.kubernetes.overlay import apply_overlay, find_fault
from orchestrator.backends.kubernetes.security import secure_others
from orchestrator.backends.kubernetes.site import (
    ATTEMPT_LABEL,
    CONTAINER,
    KEY_ANNOTATION,
    MANAGER,
    MANAGER_LABEL,
    NODES_ANNOTATION,
    UNPACKER,
    KubernetesSite,
    effective_placement,
)
from orchestrator.backends.kubernetes.states import EXIT_REPLACED
from orchestrator.backends.kubernetes.template import LAUNCH_FILE, render_pod
from orchestrator.domain.errors import LaunchRefused
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.job.launch_plan import LaunchPlan
from orchestrator.domain.job.native_request import NativeRequest
from trainer.contract.node import NodeLaunch
from trainer.contract.pod import PodLaunch, render_pod_launch

# An Indexed Job's name, a dash and its largest index must form a DNS label of at most 63 characters (RFC 1123). The
# Service has the same name, which had to begin with a letter before Kubernetes 1.34 (RFC 1035).
_LONGEST_NAME = 52
_LABEL = re.compile(r"[a-z](?:[-a-z0-9]*[a-z0-9])?\Z")
_HIDDEN = "********"
_MOST_REPLACEMENTS = 6  # pods of one index that are deleted or killed; the default of a Job's backoffLimit

Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifests:
    """The objects in order of creation. The Job is suspended until all exist."""

    job: Manifest
    service: Manifest
    secret: Manifest


def render_name(key: AttemptKey) -> str:
    """Return the attempt's name in the cluster. A name that is too long or not a label is shortened, with a hash."""
    text = str(key)
    if len(text) <= _LONGEST_NAME and _LABEL.match(text):
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:10]
    words = re.sub(r"[^-a-z0-9]+", "-", text.lower()).strip("-")
    begin = words if words[:1].isalpha() else f"j-{words}"
    return f"{begin[: _LONGEST_NAME - 11].rstrip('-')}-{digest}"


def render_manifests(plan: LaunchPlan, site: KubernetesSite, *, workdir: str) -> Manifests:
    """Render the objects. Raises LaunchRefused for an overlay that exceeds a job's rights or breaks the Job."""
    cluster_overlay = apply_overlay(site.overlay, site.defaults.overlay)
    excess = (
        None
        if site.free_overlays
        else find_excess(plan.placement.overlay, cluster_overlay=cluster_overlay, agent=CONTAINER)
    )
    if excess is not None:
        words = "cannot be set by a job; set it in the cluster's overlay, or set free_overlays on the cluster"
        raise LaunchRefused(f"placement.overlay: {excess} {words}")
    name = render_name(plan.key)
    labels = {MANAGER_LABEL: MANAGER, ATTEMPT_LABEL: name}
    plain = _job(plan, site, name, labels)
    job = apply_overlay(apply_overlay(plain, site.overlay), effective_placement(plan.placement, site).overlay)
    fault = find_fault(job, CONTAINER)
    if fault is not None:
        raise LaunchRefused(f"the cluster's overlay or placement.overlay breaks the Job: {fault}")
    if not site.free_overlays:
        job = secure_others(job, apply_overlay(plain, cluster_overlay), site)
    return Manifests(
        job=_restore_identity(add_agent_path(job, site), plain),
        service=_service(site, name, labels),
        secret=_secret(plan, site, name, labels, workdir),
    )


def render_native(manifests: Manifests) -> NativeRequest:
    """Render YAML for a person to read. Hides the Secret's data."""
    data = dict.fromkeys(manifests.secret["data"], _HIDDEN)
    documents = (manifests.job, manifests.service, {**manifests.secret, "data": data})
    texts = [yaml.safe_dump(each, sort_keys=False, width=120, default_flow_style=False) for each in documents]
    return NativeRequest(kind="manifest", text="---\n".join(texts))


def owned(manifest: Manifest, job: Mapping[str, Any]) -> Manifest:
    """Return the manifest with the created Job as its owner."""
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": job["metadata"]["name"],
        "uid": job["metadata"]["uid"],
        "controller": True,
    }
    return {**manifest, "metadata": {**manifest["metadata"], "ownerReferences": [owner]}}


def render_pod_document(plan: LaunchPlan, *, workdir: str) -> PodLaunch:
    node = NodeLaunch(command=plan.command, environment={**plan.secrets, **plan.shared_environment}, workdir=workdir)
    return PodLaunch(node=node, policy=plan.policy, replicas=plan.max_nodes)


def _job(plan: LaunchPlan, site: KubernetesSite, name: str, labels: Mapping[str, str]) -> Manifest:
    place = effective_placement(plan.placement, site)
    spec: Manifest = {
        "suspend": True,  # until Secret and Service exist; in a queue, until Kueue admits it
        "completionMode": "Indexed",
        "completions": plan.max_nodes,
        "parallelism": plan.max_nodes,
        **_replacement(plan, site),
        "ttlSecondsAfterFinished": site.keep_s,
        "template": {
            "metadata": {"labels": dict(labels), **annotate_pods(place)},
            "spec": render_pod(plan, site, place, name),
        },
    }
    if place.time_limit_s is not None:
        spec["activeDeadlineSeconds"] = max(1, math.ceil(place.time_limit_s))
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": site.namespace,
            "labels": {**labels, **label_job(place)},
            "annotations": {
                KEY_ANNOTATION: plan.rendezvous_id,
                NODES_ANNOTATION: _nodes(plan),
                **annotate_job(place, plan),
            },
        },
        "spec": spec,
    }


def _replacement(plan: LaunchPlan, site: KubernetesSite) -> Manifest:
    """Let Kubernetes replace pods if the group can go on without them and take them back (docs/adr/0009-kubernetes.md).

    Disrupted pods do not count. An agent that ends by itself is not started again. No index has two pods that run.
    """
    if not plan.takes_back:
        return {"backoffLimitPerIndex": 0, "podReplacementPolicy": "Failed"}
    ends = [
        {
            "action": "FailIndex",
            "onExitCodes": {"containerName": name, "operator": "NotIn", "values": list(EXIT_REPLACED)},
        }
        for name in (CONTAINER, *([UNPACKER] if site.agent_image else []))
    ]
    disrupted = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    return {
        "backoffLimitPerIndex": _MOST_REPLACEMENTS,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {"rules": [disrupted, *ends]},
    }


def _nodes(plan: LaunchPlan) -> str:
    return str(plan.max_nodes) if plan.min_nodes == plan.max_nodes else f"{plan.min_nodes}:{plan.max_nodes}"


def _restore_identity(job: Manifest, plain: Manifest) -> Manifest:
    """Restore the names and labels that find the Job and its pods, and suspend it, whatever an overlay says."""
    meta, own = job["metadata"], plain["metadata"]
    template = job["spec"]["template"]
    labels = {**template["metadata"].get("labels", {}), **plain["spec"]["template"]["metadata"]["labels"]}
    return {
        **job,
        "metadata": {
            **meta,
            "name": own["name"],
            "namespace": own["namespace"],
            "labels": {**meta.get("labels", {}), **own["labels"]},
            "annotations": {**meta.get("annotations", {}), **own["annotations"]},
        },
        "spec": {
            **job["spec"],
            "suspend": True,
            "template": {**template, "metadata": {**template["metadata"], "labels": labels}},
        },
    }


def _service(site: KubernetesSite, name: str, labels: Mapping[str, str]) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": site.namespace, "labels": dict(labels)},
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {ATTEMPT_LABEL: name}},
    }


def _secret(plan: LaunchPlan, site: KubernetesSite, name: str, labels: Mapping[str, str], workdir: str) -> Manifest:
    document = json.dumps(render_pod_launch(render_pod_document(plan, workdir=workdir)))
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": site.namespace, "labels": dict(labels)},
        "type": "Opaque",
        "immutable": True,
        "data": {LAUNCH_FILE: b64encode(document.encode()).decode()},
    }
