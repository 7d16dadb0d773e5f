"""Build the configured Slurm, Kubernetes and torchx clusters from their settings."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.backends import ship
from orchestrator.backends.kubernetes.agent import agent_path
from orchestrator.backends.kubernetes.backend import KubernetesBackend
from orchestrator.backends.kubernetes.client import KubernetesClient
from orchestrator.backends.kubernetes.kubeconfig import load_access
from orchestrator.backends.kubernetes.site import KubernetesSite
from orchestrator.backends.kubernetes.watcher import WatchTimes
from orchestrator.backends.slurm.backend import SlurmBackend
from orchestrator.backends.slurm.commands import SlurmCommands
from orchestrator.backends.slurm.rest import RestAccess, SlurmRest
from orchestrator.backends.slurm.site import SlurmSite
from orchestrator.backends.torchx.backend import TorchxBackend
from orchestrator.backends.torchx.client import TorchxClient
from orchestrator.backends.torchx.site import TorchxSite
from orchestrator.bootstrap.from_settings import ports_of
from orchestrator.bootstrap.workdirs import build_policy
from orchestrator.cluster_settings import KubernetesClusterSettings, SlurmClusterSettings, TorchxClusterSettings
from orchestrator.configured_cluster import Cluster
from orchestrator.domain.errors import ConfigurationError
from orchestrator.domain.job.launch_plan import Site, build_plan
from orchestrator.domain.specs.time_limit import Notice
from orchestrator.settings import Settings
from trainer.contract.node import HEAD, LOCAL

# A command may still take effect this long after its timeout.
_LATE_S = 30.0
_WATCH = WatchTimes(watch_s=30.0, silent_s=60.0)
_GRACE_S = 15  # beyond the agent's own stop timeout, before the kubelet kills it
# Pods start and pull images one by one, so early pods wait for the others. The supervisor ends the attempt if a pod can
# never start.
_JOIN_S = 7 * 86400
_REPEAT_S = 10.0  # submissions are idempotent, because a name gets one Job
_DEFAULT_NAMESPACE = "default"
_AGENT_MAP = "elastic-orchestrator-agent"
_TORCHX = ".torchx"  # a folder below the run directory


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSetup:
    """A cluster with the settings of its supervision. Times are in seconds."""

    cluster: Cluster
    site: Site
    poll_s: float
    submit_timeout_s: float
    stop_timeout_s: float
    repeat_s: float | None = None  # when a submission may be repeated; None means after submit_timeout_s


def build_slurm(name: str, given: SlurmClusterSettings, settings: Settings, common: Site) -> ClusterSetup:
    """Build a cluster. `common` has what all clusters of the service share. Raises ConfigurationError."""
    own = build_slurm_site(given, settings)
    stop_timeout_s = settings.stop_timeout_s if given.stop_timeout_s is None else given.stop_timeout_s
    site = _share_files(common, own, gpus_per_node=given.gpus_per_node, stop_timeout_s=stop_timeout_s)
    backend = SlurmBackend(own, build_client(given), package=ship.find_package())
    cluster = Cluster(
        name=name,
        kind="slurm",
        backend=backend,
        job_root=own.service_root,
        plan=lambda job, attempt: build_plan(job, attempt, site),
        ports=ports_of(settings),
        gpus=given.gpus_per_node,
        gpu_type=given.gpu_type,
        images=given.containers,
        max_jobs=given.max_jobs or settings.max_jobs,
        node_root=own.root,
        why_no_workdir=own.workdirs.why_refused,
        notice=Notice(before_s=given.notice_s, default_limit_s=given.defaults.time_limit_s),
        partitions=backend.partitions,
    )
    return ClusterSetup(
        cluster=cluster,
        site=site,
        poll_s=given.poll_s,
        submit_timeout_s=given.command_timeout_s + _LATE_S,
        stop_timeout_s=stop_timeout_s,
    )


def _share_files(common: Site, own: SlurmSite | TorchxSite, *, gpus_per_node: int, stop_timeout_s: float) -> Site:
    """Return the site of nodes that share the run directory with the service. They fill in the addresses."""
    return replace(
        common,
        root=own.root,
        python=own.python,
        child=str(own.agent_dir / "trainer" / "elastic" / "child.py"),
        rendezvous_host=HEAD,
        local_address=LOCAL,
        gpus_per_node=gpus_per_node,
        stop_timeout_s=stop_timeout_s,
    )


def build_client(given: SlurmClusterSettings) -> SlurmCommands | SlurmRest:
    """Raises ConfigurationError."""
    if given.rest_url is not None and given.defaults.partition is not None:  # the settings ask for both
        access = RestAccess(
            url=given.rest_url,
            default_partition=given.defaults.partition,
            user=given.rest_user,
            token_file=given.rest_token_file,
        )
        return SlurmRest(access, timeout_s=given.command_timeout_s)
    return SlurmCommands(timeout_s=given.command_timeout_s, bin_dir=given.bin_dir, conf=given.conf)


def build_slurm_site(given: SlurmClusterSettings, settings: Settings) -> SlurmSite:
    """Raises ConfigurationError."""
    root = given.root or settings.root
    return SlurmSite(
        root=root,
        service_root=given.service_root or root,
        agent_dir=root / ship.agent_folder(ship.find_package()),
        python=given.python,
        defaults=given.defaults,
        options=given.options,
        interface=given.interface,
        modules=given.modules,
        prolog=given.prolog,
        container_options=given.container_options if given.containers else None,
        shared_paths=given.shared_paths,
        policy=build_policy(settings),
        notice_s=given.notice_s,
        gpus_per_node=given.gpus_per_node,
        settle_s=given.settle_s,
    )


def build_torchx(name: str, given: TorchxClusterSettings, settings: Settings, common: Site) -> ClusterSetup:
    """Build a cluster. `common` has what all clusters of the service share. Raises ConfigurationError."""
    own = build_torchx_site(given, settings)
    stop_timeout_s = settings.stop_timeout_s if given.stop_timeout_s is None else given.stop_timeout_s
    site = _share_files(common, own, gpus_per_node=given.gpus_per_node, stop_timeout_s=stop_timeout_s)
    folder = own.service_root / _TORCHX / name
    backend = TorchxBackend(
        own, build_torchx_client(given, folder), folder / "submissions", package=ship.find_package()
    )
    cluster = Cluster(
        name=name,
        kind=f"torchx:{given.scheduler}",
        backend=backend,
        job_root=own.service_root,
        plan=lambda job, attempt: build_plan(job, attempt, site),
        ports=ports_of(settings),
        gpus=given.gpus_per_node,
        gpu_type=given.gpu_type,
        images=True,
        max_jobs=given.max_jobs or settings.max_jobs,
        node_root=own.root,
        why_no_workdir=own.workdirs.why_refused,
    )
    return ClusterSetup(
        cluster=cluster,
        site=site,
        poll_s=given.poll_s,
        submit_timeout_s=given.call_timeout_s + _LATE_S,
        stop_timeout_s=stop_timeout_s,
    )


def build_torchx_client(given: TorchxClusterSettings, folder: Path) -> TorchxClient:
    python = given.torchx_python or sys.executable
    return TorchxClient(given.scheduler, python=python, folder=folder, timeout_s=given.call_timeout_s)


def build_torchx_site(given: TorchxClusterSettings, settings: Settings) -> TorchxSite:
    """Raises ConfigurationError."""
    root = given.root or settings.root
    return TorchxSite(
        scheduler=given.scheduler,
        cfg=given.cfg,
        root=root,
        service_root=given.service_root or root,
        agent_dir=root / ship.agent_folder(ship.find_package()),
        python=given.python,
        interface=given.interface,
        shared_paths=given.shared_paths,
        policy=build_policy(settings),
        settle_s=given.settle_s,
    )


def build_kubernetes(name: str, given: KubernetesClusterSettings, settings: Settings, common: Site) -> ClusterSetup:
    """Build a cluster. `common` has what all clusters of the service share. Raises ConfigurationError."""
    client = build_kubernetes_client(given)
    own = build_kubernetes_site(given, settings, namespace=client.namespace)
    site = replace(
        common,
        root=own.root,
        python=own.python,
        child=str((agent_path(own) or Path("/")) / "trainer" / "elastic" / "child.py"),
        rendezvous_host=HEAD,
        join_timeout_s=_JOIN_S,
        local_address=LOCAL,
        gpus_per_node=given.gpus_per_node,
        stop_timeout_s=given.stop_timeout_s,
    )
    backend = KubernetesBackend(own, client, package=ship.find_package(), times=_WATCH)
    cluster = Cluster(
        name=name,
        kind="kubernetes",
        backend=backend,
        job_root=own.service_root,
        plan=lambda job, attempt: build_plan(job, attempt, site),
        ports=ports_of(settings),
        gpus=given.gpus_per_node,
        gpu_type=given.gpu_type,
        images=True,
        shares_files=own.shared,
        max_jobs=given.max_jobs or settings.max_jobs,
        node_root=own.root,
        why_no_workdir=own.workdirs.why_refused if own.shared else None,
        check=backend.check,
    )
    return ClusterSetup(
        cluster=cluster,
        site=site,
        poll_s=given.poll_s,
        # By then, every service's watcher has seen a Job that was created.
        submit_timeout_s=given.request_timeout_s + _WATCH.silent_s,
        stop_timeout_s=own.grace_s,
        repeat_s=_REPEAT_S,
    )


def build_kubernetes_client(given: KubernetesClusterSettings) -> KubernetesClient:
    """Raises ConfigurationError."""
    access = load_access(given.kubeconfig, given.context)
    namespace = given.namespace or access.namespace or _DEFAULT_NAMESPACE
    return KubernetesClient(access, namespace=namespace, timeout_s=given.request_timeout_s)


def build_kubernetes_site(given: KubernetesClusterSettings, settings: Settings, *, namespace: str) -> KubernetesSite:
    """Raises ConfigurationError."""
    shared = given.service_root is not None
    if not shared and settings.advertise_url is None:
        raise ConfigurationError(
            "setting ORCHESTRATOR_ADVERTISE_URL is missing: without service_root, pods share no files with the service "
            "and report to it over HTTP; set the address at which they reach it"
        )
    folder = ship.agent_folder(ship.find_package())
    brings = given.agent_image is None
    return KubernetesSite(
        namespace=namespace,
        image=given.image,
        root=given.root,
        service_root=given.service_root or settings.root,
        shared=shared,
        agent_dir=given.root / folder if brings and shared else None,
        agent_map=f"{_AGENT_MAP}-{folder.name[:16]}" if brings and not shared else None,
        agent_image=given.agent_image,
        python=given.python,
        policy=build_policy(settings),
        claim=given.claim,
        host_path=given.host_path,
        defaults=given.defaults,
        overlay=given.overlay,
        free_overlays=given.free_overlays,
        service_account=given.service_account,
        pull_secrets=given.pull_secrets,
        priority_class=given.priority_class,
        gpu_resource=given.gpu_resource,
        gpu_label=given.gpu_label,
        gpus_per_node=given.gpus_per_node,
        user=None if given.run_as == "image" else given.run_as,
        read_only_root=given.read_only_root,
        shm_gb=given.shm_gb,
        grace_s=round(given.stop_timeout_s) + _GRACE_S,
        unreachable_s=given.unreachable_s,
        keep_s=given.keep_finished_s,
        settle_s=(30.0 if shared else 5.0) if given.settle_s is None else given.settle_s,
        image_patience_s=given.image_patience_s,
    )
