"""LaunchPlan -> the three objects of an attempt: an Indexed Job, a headless Service, and a Secret. Pure.

Nothing of the user's is in the Job but its image and what its placement says: command and environment stand in the
Secret, which is mounted as a file, so that no value is expanded by the kubelet or shown by `kubectl describe`.
Service and Secret name the Job as their owner: deleting the Job removes all.
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

from orchestrator.backends.kubernetes.agent import find_agent
from orchestrator.backends.kubernetes.guard import find_excess
from orchestrator.backends.kubernetes.overlay import apply_overlay, find_fault
from orchestrator.backends.kubernetes.security import secure_others
from orchestrator.backends.kubernetes.site import (
    ATTEMPT_LABEL,
    CONTAINER,
    KEY_ANNOTATION,
    MANAGER,
    MANAGER_LABEL,
    NODES_ANNOTATION,
    QUEUE_LABEL,
    KubernetesSite,
    effective_placement,
)
from orchestrator.backends.kubernetes.template import LAUNCH_FILE, render_pod
from orchestrator.domain.errors import LaunchRefused
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.job.launch_plan import LaunchPlan, NativeRequest
from trainer.contract import env
from trainer.contract.node import NodeLaunch
from trainer.contract.pod import PodLaunch, render_pod_launch

# An Indexed Job's name, a dash and its largest index must be a DNS label (RFC 1123) of at most 63 characters; the
# Service has the same name, and before Kubernetes 1.34 a Service's had to begin with a letter (RFC 1035).
_LONGEST_NAME = 52
_LABEL = re.compile(r"[a-z](?:[-a-z0-9]*[a-z0-9])?\Z")
_HIDDEN = "********"

Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifests:
    """In the order in which they are created; the Job is suspended until all are there."""

    job: Manifest
    service: Manifest
    secret: Manifest


def render_name(key: AttemptKey) -> str:
    """What the attempt is found by. Where its own name is too long or no label, it is shortened, with a hash."""
    text = str(key)
    if len(text) <= _LONGEST_NAME and _LABEL.match(text):
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:10]
    words = re.sub(r"[^-a-z0-9]+", "-", text.lower()).strip("-")
    begin = words if words[:1].isalpha() else f"j-{words}"
    return f"{begin[: _LONGEST_NAME - 11].rstrip('-')}-{digest}"


def render_manifests(plan: LaunchPlan, site: KubernetesSite, *, workdir: str) -> Manifests:
    """Raises LaunchRefused for an overlay that is too much for a job's own, or leaves no Job of ours."""
    theirs = apply_overlay(site.overlay, site.defaults.overlay)
    excess = None if site.free_overlays else find_excess(plan.placement.overlay, theirs=theirs, agent=CONTAINER)
    if excess is not None:
        words = "is not a job's to set: it belongs into the cluster's overlay, or the cluster allows free_overlays"
        raise LaunchRefused(f"placement.overlay: {excess} {words}")
    name = render_name(plan.key)
    labels = {MANAGER_LABEL: MANAGER, ATTEMPT_LABEL: name}
    plain = _job(plan, site, name, labels)
    job = apply_overlay(apply_overlay(plain, site.overlay), effective_placement(plan.placement, site).overlay)
    fault = find_fault(job, CONTAINER)
    if fault is not None:
        raise LaunchRefused(f"the overlay of the cluster or of placement leaves no Job that can be run: {fault}")
    if not site.free_overlays:
        job = secure_others(job, apply_overlay(plain, theirs), site)
    return Manifests(
        job=_found_again(find_agent(job, site), plain),
        service=_service(site, name, labels),
        secret=_secret(plan, site, name, labels, workdir),
    )


def render_native(manifests: Manifests) -> NativeRequest:
    """YAML for a person to read. What the Secret holds is not shown."""
    data = dict.fromkeys(manifests.secret["data"], _HIDDEN)
    documents = (manifests.job, manifests.service, {**manifests.secret, "data": data})
    texts = [yaml.safe_dump(each, sort_keys=False, width=120, default_flow_style=False) for each in documents]
    return NativeRequest(kind="manifest", text="---\n".join(texts))


def owned(manifest: Manifest, job: Mapping[str, Any]) -> Manifest:
    """The manifest with the created Job as its owner."""
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": job["metadata"]["name"],
        "uid": job["metadata"]["uid"],
        "controller": True,
    }
    return {**manifest, "metadata": {**manifest["metadata"], "ownerReferences": [owner]}}


def render_pod_document(plan: LaunchPlan, *, workdir: str) -> PodLaunch:
    common = {name: value for name, value in plan.environments[0].items() if name != env.REPLICA}
    node = NodeLaunch(
        host_command=plan.commands[0],
        command=plan.commands[-1],
        environment={**plan.secrets, **common},
        workdir=workdir,
    )
    return PodLaunch(node=node, policy=plan.policy, replicas=plan.max_nodes)


def _job(plan: LaunchPlan, site: KubernetesSite, name: str, labels: Mapping[str, str]) -> Manifest:
    place = effective_placement(plan.placement, site)
    queue = {} if place.queue is None else {QUEUE_LABEL: place.queue}
    spec: Manifest = {
        "suspend": True,  # until Secret and Service are there; Kueue's jobs until they are admitted
        "completionMode": "Indexed",
        "completions": plan.max_nodes,
        "parallelism": plan.max_nodes,
        "backoffLimitPerIndex": 0,  # nobody replaces a pod but a new attempt: docs/adr/0009-kubernetes.md
        "podReplacementPolicy": "Failed",
        "ttlSecondsAfterFinished": site.keep_s,
        "template": {"metadata": {"labels": dict(labels)}, "spec": render_pod(plan, site, place, name)},
    }
    if place.time_limit_s is not None:
        spec["activeDeadlineSeconds"] = max(1, math.ceil(place.time_limit_s))
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": site.namespace,
            "labels": {**labels, **queue},
            "annotations": {KEY_ANNOTATION: plan.rendezvous_id, NODES_ANNOTATION: _nodes(plan)},
        },
        "spec": spec,
    }


def _nodes(plan: LaunchPlan) -> str:
    return str(plan.max_nodes) if plan.min_nodes == plan.max_nodes else f"{plan.min_nodes}:{plan.max_nodes}"


def _found_again(job: Manifest, plain: Manifest) -> Manifest:
    """Whatever an overlay says, the Job and its pods keep what they are found by, and it begins suspended."""
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
