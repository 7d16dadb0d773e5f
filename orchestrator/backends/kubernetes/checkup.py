"""Whether a cluster can carry jobs: what answers, which rights are missing, and what two pods find there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from orchestrator.backends.kubernetes.client import KubernetesClient
from orchestrator.backends.kubernetes.probe import Look, Word, probe
from orchestrator.backends.kubernetes.rights import RIGHTS, Right
from orchestrator.backends.kubernetes.site import KubernetesSite
from orchestrator.domain.errors import BackendBusy, BackendUnavailable, LaunchRefused

_OLDEST = (1, 31)  # elastic Indexed Jobs and backoffLimitPerIndex are settled there


def examine(client: KubernetesClient, site: KubernetesSite, look: Look) -> Iterator[Word]:
    """Ends with the first thing without which the rest cannot be asked. It leaves nothing behind."""
    try:
        found = client.version()
    except (BackendUnavailable, LaunchRefused) as error:
        yield Word("api server", False, str(error))
        return
    yield _version(found)
    if site.shared:
        yield _users(site, os.geteuid())
    refused = False
    for right in RIGHTS:
        word = _right(client, right)
        refused |= word.good is False
        yield word
    if refused:
        return
    taken = _dry_run(client, site)
    yield taken
    if site.image is None:
        yield Word("pods", None, "no pod was tried: the cluster has no `image` of its own")
    elif taken.good:
        yield from probe(client, site, look)


def _version(found: dict[str, Any]) -> Word:
    text = str(found.get("gitVersion", ""))
    numbers = tuple(int("".join(filter(str.isdecimal, str(found.get(name, "")))) or 0) for name in ("major", "minor"))
    if numbers >= _OLDEST:
        return Word("api server", True, f"Kubernetes {text}")
    return Word("api server", None, f"Kubernetes {text or 'of an unknown version'}; tried is 1.36, needed 1.31")


def _users(site: KubernetesSite, own: int) -> Word:
    """Pods have no capabilities: not even root among them writes what is another user's."""
    if site.user is None:
        return Word(
            "users", None, f"pods run as their images say, the service as {own}: both must write the same files"
        )
    if site.user != own:
        words = f"pods run as user {site.user} and the service as {own}, and share files: set run_as = {own}"
        return Word("users", None, f"{words}, or see that each may write what the other makes")
    return Word("users", True, f"pods and service run as user {own}")


def _right(client: KubernetesClient, right: Right) -> Word:
    name = f"{right.resource} ({', '.join(right.verbs)})"
    try:
        missing = [verb for verb in right.verbs if not client.may(right, verb)]
    except (BackendUnavailable, LaunchRefused) as error:
        return Word(right.resource, None, f"whether there is the right to {name} cannot be told: {error}")
    if not missing:
        return Word(right.resource, True, name)
    sentence = f"no right to {', '.join(missing)} {right.resource}: {right.why}"
    return Word(right.resource, False if right.namespaced and right.resource != "events" else None, sentence)


def _dry_run(client: KubernetesClient, site: KubernetesSite) -> Word:
    """What admission says of a Job of one pod."""
    pod = {
        "restartPolicy": "Never",
        "containers": [{"name": "agent", "image": site.image or "image", "command": ["true"]}],
    }
    meta = {"name": "elastic-orchestrator-doctor", "namespace": site.namespace}
    spec = {"suspend": True, "template": {"spec": pod}}
    try:
        client.create("jobs", {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec}, dry_run=True)
    except (LaunchRefused, BackendBusy, BackendUnavailable) as error:
        return Word("dry run", False, str(error))
    return Word("dry run", True, f"namespace {site.namespace} takes a Job")
