"""Apply Kubernetes' *restricted* pod security standard, as far as the cluster's configuration allows. Pure."""

from __future__ import annotations

from typing import Any

from orchestrator.backends.kubernetes.site import KubernetesSite

Manifest = dict[str, Any]


def secure_pod(site: KubernetesSite) -> Manifest:
    given: Manifest = {"seccompProfile": {"type": "RuntimeDefault"}}
    if site.user is None:
        return given
    own = {"runAsUser": site.user, "runAsGroup": site.user, "fsGroup": site.user}
    return {**given, **({"runAsNonRoot": True} if site.user else {}), **own, "fsGroupChangePolicy": "OnRootMismatch"}


def secure_container(site: KubernetesSite) -> Manifest:
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": site.read_only_root,
    }


def secure_others(job: Manifest, given: Manifest, site: KubernetesSite) -> Manifest:
    """Secure the containers of the Job that are not in `given`, the cluster's part of it."""
    pod, known = job["spec"]["template"]["spec"], given["spec"]["template"]["spec"]
    secured = {
        kind: [
            each if each["name"] in {one["name"] for one in known.get(kind) or ()} else _secured(each, site)
            for each in pod[kind]
        ]
        for kind in ("containers", "initContainers")
        if pod.get(kind)
    }
    return {**job, "spec": {**job["spec"], "template": {**job["spec"]["template"], "spec": {**pod, **secured}}}}


def _secured(container: Manifest, site: KubernetesSite) -> Manifest:
    return {**container, "securityContext": secure_container(site)}
