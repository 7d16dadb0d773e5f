"""Check the service's setup, and whether the configured clusters can run jobs.

On Slurm the doctor starts a one-minute job on a compute node, on Kubernetes a Job of two pods. On every cluster it then
starts two workers as in a job (`group`). It leaves behind only what jobs share.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from torchx.specs import AppDef, Resource, Role

from orchestrator.backends.kubernetes import checkup
from orchestrator.backends.kubernetes.backend import KubernetesBackend
from orchestrator.backends.kubernetes.probe import ProbeOptions
from orchestrator.backends.torchx.backend import TorchxBackend
from orchestrator.backends.torchx.client import TorchxClient
from orchestrator.bootstrap.cluster_backends import (
    build_kubernetes_client,
    build_kubernetes_site,
    build_torchx_client,
)
from orchestrator.bootstrap.machine import build_clusters
from orchestrator.cluster_settings import (
    ClusterSettings,
    KubernetesClusterSettings,
    LocalClusterSettings,
    SlurmClusterSettings,
    TorchxClusterSettings,
)
from orchestrator.doctor.finding import CheckResult, Finding, Verdict
from orchestrator.doctor.service_checks import examine_service
from orchestrator.doctor.slurm_checks import examine_slurm
from orchestrator.doctor.trial_group import try_group
from orchestrator.domain.errors import BackendUnavailable, ConfigurationError, LaunchRefused
from orchestrator.ports.cluster import Backend
from orchestrator.settings import Settings

_WEAKER = (
    "torchx reports neither nodes nor causes, cannot avoid nodes, and cannot find an app whose id was lost; "
    "docs/torchx.md says what follows from that"
)


def examine(settings: Settings, cluster: str | None = None) -> Iterator[Finding]:
    """Check the service and all clusters, or only the named cluster. Raises ConfigurationError for an unknown name."""
    configured = settings.clusters or {"local": LocalClusterSettings(backend="local")}
    chosen = {name: given for name, given in sorted(configured.items()) if cluster in (None, name)}
    if cluster is None:
        yield from examine_service(settings)
    elif not chosen:
        raise ConfigurationError(
            f"no cluster {cluster} is configured: see docs/slurm.md, docs/kubernetes.md and docs/torchx.md"
        )
    for name, given in chosen.items():
        failed = False
        for check, verdict, sentence in _examine_cluster(given, settings):
            failed |= verdict is Verdict.FAILED
            yield Finding(cluster=name, check=check, verdict=verdict, sentence=sentence)
        if not failed:  # otherwise the group would fail for the same reason
            for check, verdict, sentence in _try_group(name, given, settings):
                yield Finding(cluster=name, check=check, verdict=verdict, sentence=sentence)


def _examine_cluster(given: ClusterSettings, settings: Settings) -> Iterator[CheckResult]:
    match given:
        case LocalClusterSettings():
            yield from ()
        case SlurmClusterSettings():
            yield from examine_slurm(given, settings)
        case KubernetesClusterSettings():
            yield from _examine_kubernetes(given, settings)
        case TorchxClusterSettings():
            yield from _examine_torchx(given, settings)


def _try_group(name: str, given: ClusterSettings, settings: Settings) -> Iterator[CheckResult]:
    """Start two workers. They request no device, so they do not wait for one."""
    if isinstance(given, KubernetesClusterSettings) and given.image is None:
        return  # already reported
    if not isinstance(given, LocalClusterSettings):
        given = given.model_copy(update={"gpus_per_node": 0})
    temporary = (Path(tempfile.gettempdir()),)  # holds the empty working directory that is copied
    alone = settings.model_copy(update={"clusters": {name: given}, "workdirs": temporary})
    (setup,) = build_clusters(alone, 0, b"")
    fresh = not settings.root.exists()
    try:
        with _closed(setup.cluster.backend):
            yield try_group(setup.cluster, setup.site)
    finally:
        if fresh:
            with suppress(OSError):
                settings.root.rmdir()  # if it is empty


@contextmanager
def _closed(backend: Backend) -> Iterator[None]:
    """Close the backend's threads, if it has any."""
    try:
        yield
    finally:
        if isinstance(backend, KubernetesBackend | TorchxBackend):
            backend.close()


def _examine_torchx(given: TorchxClusterSettings, settings: Settings) -> Iterator[CheckResult]:
    with tempfile.TemporaryDirectory() as folder:
        client = build_torchx_client(given, Path(folder))
        try:
            yield _ask_torchx(client, given, settings)
        except BackendUnavailable as error:
            yield "torchx", Verdict.FAILED, f"{error}: torchx_python is {given.torchx_python or sys.executable}"
        finally:
            client.close()
    yield "guarantees", Verdict.WARNING, _WEAKER


def _ask_torchx(client: TorchxClient, given: TorchxClusterSettings, settings: Settings) -> CheckResult:
    """Look for the scheduler, and let it plan an app. Raises BackendUnavailable."""
    known = client.schedulers()
    if given.scheduler not in known:
        return "torchx", Verdict.FAILED, f"torchx knows no scheduler {given.scheduler}, only {', '.join(known)}"
    image, least = str(given.root or settings.root), Resource(cpu=1, gpu=0, memMB=-1)
    role = Role(name="doctor", image=image, entrypoint=given.python, args=["--version"], resource=least)
    try:
        client.plan(AppDef(name="doctor", roles=[role]), given.cfg)
    except LaunchRefused as error:
        return "torchx", Verdict.FAILED, f"cfg is refused: {error}"
    return "torchx", Verdict.OK, f"torchx knows the scheduler {given.scheduler}, and accepts cfg"


def _examine_kubernetes(given: KubernetesClusterSettings, settings: Settings) -> Iterator[CheckResult]:
    verdicts = {True: Verdict.OK, None: Verdict.WARNING, False: Verdict.FAILED}
    client = build_kubernetes_client(given)
    site = build_kubernetes_site(given, settings, namespace=client.namespace)
    try:
        for result in checkup.examine(client, site, ProbeOptions(url=settings.advertise_url)):
            yield result.check, verdicts[result.good], result.sentence
    finally:
        client.close()
