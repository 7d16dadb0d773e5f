"""Build this machine as a cluster, and the settings that all clusters share."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

from orchestrator.backends.local.backend import LocalBackend
from orchestrator.bootstrap.cluster_backends import ClusterSetup, build_kubernetes, build_slurm, build_torchx
from orchestrator.bootstrap.from_settings import ports_of
from orchestrator.cluster_settings import (
    ClusterSettings,
    KubernetesClusterSettings,
    LocalClusterSettings,
    SlurmClusterSettings,
    TorchxClusterSettings,
)
from orchestrator.configured_cluster import Cluster
from orchestrator.domain.errors import ConfigurationError
from orchestrator.domain.job.launch_plan import Site, build_plan
from orchestrator.settings import Settings

_SUBMIT_TIMEOUT_S = 1.0  # processes on this machine start, or fail to start, at once


def build_clusters(settings: Settings, gpus: int, worker_key: bytes) -> list[ClusterSetup]:
    """Build the configured clusters, or this machine if there are none. Raises ConfigurationError."""
    common = replace(build_site(settings, gpus), worker_key=worker_key)
    configured = settings.clusters or {"local": LocalClusterSettings(backend="local")}
    return [_build_setup(name, given, settings, common) for name, given in sorted(configured.items())]


def _build_setup(name: str, given: ClusterSettings, settings: Settings, common: Site) -> ClusterSetup:
    match given:
        case LocalClusterSettings():
            return _this_machine(name, settings, common)
        case SlurmClusterSettings():
            return build_slurm(name, given, settings, common)
        case KubernetesClusterSettings():
            return build_kubernetes(name, given, settings, common)
        case TorchxClusterSettings():
            return build_torchx(name, given, settings, common)


def _this_machine(name: str, settings: Settings, site: Site) -> ClusterSetup:
    cluster = Cluster(
        name=name,
        kind="local",
        backend=LocalBackend(settings.root, slots=settings.local_slots),
        job_root=settings.root,
        plan=lambda job, attempt: build_plan(job, attempt, site),
        ports=ports_of(settings),
        gpus=site.gpus_per_node,
        gpu_type=_gpu_type(),
        max_jobs=settings.max_jobs,
    )
    return ClusterSetup(
        cluster=cluster,
        site=site,
        poll_s=settings.poll_s,
        submit_timeout_s=_SUBMIT_TIMEOUT_S,
        stop_timeout_s=settings.stop_timeout_s,
    )


def build_site(settings: Settings, gpus: int) -> Site:
    return Site(
        root=settings.root,
        python=sys.executable,
        child=str(_trainer_folder() / "elastic" / "child.py"),
        rendezvous_host="127.0.0.1",
        gpus_per_node=gpus,
        report_url=None if settings.advertise_url is None else f"{settings.advertise_url.rstrip('/')}/api/v1/reports",
        stop_timeout_s=settings.stop_timeout_s,
        log_limit_bytes=int(settings.log_limit_mb * 1024 * 1024),
        failure_patterns=tuple(each.pattern() for each in settings.failure_patterns),
    )


def count_gpus() -> int:
    """Count this machine's NVIDIA devices, as the driver lists them."""
    return sum(1 for path in Path("/dev").glob("nvidia[0-9]*") if path.name.removeprefix("nvidia").isdigit())


def _gpu_type() -> str | None:
    """Return the model of the GPUs. None if they differ. See /proc/driver/nvidia/gpus in the NVIDIA driver README."""
    infos = (path.read_text() for path in Path("/proc/driver/nvidia/gpus").glob("*/information"))
    models = {
        line.partition(":")[2].strip() for text in infos for line in text.splitlines() if line.startswith("Model")
    }
    return models.pop() if len(models) == 1 else None


def _trainer_folder() -> Path:
    found = importlib.util.find_spec("trainer")
    if found is None or found.origin is None:
        raise ConfigurationError("the package `trainer` is not installed in the service's environment")
    return Path(found.origin).parent
