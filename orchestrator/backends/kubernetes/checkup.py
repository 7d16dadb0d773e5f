"""Check whether a cluster can run jobs: the API server, the service's rights, and what two test pods find."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from orchestrator.backends.kubernetes.client import KubernetesClient
from orchestrator.backends.kubernetes.probe import CheckResult, ProbeOptions, probe
from orchestrator.backends.kubernetes.rights import RIGHTS, Right
from orchestrator.backends.kubernetes.site import KUEUE, KubernetesSite
from orchestrator.domain.errors import BackendBusy, BackendUnavailable, LaunchRefused

_OLDEST = (1, 31)  # the first version with stable elastic Indexed Jobs and backoffLimitPerIndex


def examine(client: KubernetesClient, site: KubernetesSite, options: ProbeOptions) -> Iterator[CheckResult]:
    """Run the checks in order. Stop at the first failure that blocks the rest. Leaves nothing behind."""
    try:
        found = client.version()
    except (BackendUnavailable, LaunchRefused) as error:
        yield CheckResult("api server", False, str(error))
        return
    yield _version(found)
    if site.shared:
        yield _users(site, os.geteuid())
    refused = False
    for right in _rights_of_interest(client):
        result = _right(client, right)
        refused |= result.good is False
        yield result
    if refused:
        return
    accepted = _dry_run(client, site)
    yield accepted
    if site.image is None:
        yield CheckResult("pods", None, "no test pods were started, because the cluster sets no `image`")
    elif accepted.good:
        yield from probe(client, site, options)


def _version(found: dict[str, Any]) -> CheckResult:
    text = str(found.get("gitVersion", ""))
    numbers = tuple(int("".join(filter(str.isdecimal, str(found.get(name, "")))) or 0) for name in ("major", "minor"))
    if numbers >= _OLDEST:
        return CheckResult("api server", True, f"Kubernetes {text}")
    return CheckResult(
        "api server", None, f"Kubernetes {text or 'of an unknown version'}; 1.31 is required, 1.36 is tested"
    )


def _users(site: KubernetesSite, own: int) -> CheckResult:
    """Compare users. Pods have no capabilities, so not even root in a pod can write another user's files."""
    if site.user is None:
        return CheckResult(
            "users", None, f"pods run as their image's user and the service as {own}; both must write the same files"
        )
    if site.user != own:
        words = f"pods run as user {site.user} and the service as {own}, but they share files; set run_as = {own}"
        return CheckResult("users", None, f"{words}, or let each user write the other's files")
    return CheckResult("users", True, f"pods and service run as user {own}")


def _rights_of_interest(client: KubernetesClient) -> Iterator[Right]:
    """Yield the rights, without those on the objects of Kueue if the cluster does not have it."""
    has_kueue = True
    with suppress(BackendUnavailable, LaunchRefused):
        has_kueue = client.preferred_version(KUEUE) is not None
    yield from (right for right in RIGHTS if has_kueue or right.api_group != KUEUE)


def _right(client: KubernetesClient, right: Right) -> CheckResult:
    name = f"{right.resource} ({', '.join(right.verbs)})"
    try:
        missing = [verb for verb in right.verbs if not client.may(right, verb)]
    except (BackendUnavailable, LaunchRefused) as error:
        return CheckResult(right.resource, None, f"could not check the right to {name}: {error}")
    if not missing:
        return CheckResult(right.resource, True, name)
    sentence = f"no right to {', '.join(missing)} {right.resource}: {right.why}"
    return CheckResult(right.resource, None if right.optional else False, sentence)


def _dry_run(client: KubernetesClient, site: KubernetesSite) -> CheckResult:
    """Check by a dry run whether admission accepts a Job of one pod."""
    pod = {
        "restartPolicy": "Never",
        "containers": [{"name": "agent", "image": site.image or "image", "command": ["true"]}],
    }
    meta = {"name": "elastic-orchestrator-doctor", "namespace": site.namespace}
    spec = {"suspend": True, "template": {"spec": pod}}
    try:
        client.create("jobs", {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec}, dry_run=True)
    except (LaunchRefused, BackendBusy, BackendUnavailable) as error:
        return CheckResult("dry run", False, str(error))
    return CheckResult("dry run", True, f"namespace {site.namespace} accepts a Job")
