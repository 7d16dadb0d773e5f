"""The adapter's configuration of one Kubernetes cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.backends.ship import Workdirs
from orchestrator.domain.specs.spec import Placement
from orchestrator.domain.specs.workdir import WorkdirPolicy

ATTEMPT_LABEL = "elastic-orchestrator/attempt"  # its value is the Job's name
MANAGER_LABEL, MANAGER = "app.kubernetes.io/managed-by", "elastic-orchestrator"
KEY_ANNOTATION = "elastic-orchestrator/key"  # the attempt's full name, since the Job's may be shortened
WHOLE_ANNOTATION = "elastic-orchestrator/whole"  # Secret and Service exist, so the submission is complete
NODES_ANNOTATION = "elastic-orchestrator/nodes"  # "min:max" or one number
KUEUE = "kueue.x-k8s.io"  # its API group
QUEUE_LABEL = f"{KUEUE}/queue-name"
PRIORITY_LABEL = f"{KUEUE}/priority-class"
MIN_PARALLELISM_ANNOTATION = f"{KUEUE}/job-min-parallelism"  # Kueue may admit fewer pods than requested
EQUAL_COMPLETIONS_ANNOTATION = f"{KUEUE}/job-completions-equal-parallelism"  # it then lowers spec.completions too
REQUIRED_TOPOLOGY_ANNOTATION = f"{KUEUE}/podset-required-topology"
PREFERRED_TOPOLOGY_ANNOTATION = f"{KUEUE}/podset-preferred-topology"
INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
# How many pods of an index ended before this one, if the Job controller replaces pods.
FAILURES_ANNOTATION = "batch.kubernetes.io/job-index-failure-count"
DISRUPTIONS_ANNOTATION = "batch.kubernetes.io/job-index-ignored-failure-count"
CONTAINER, UNPACKER = "agent", "unpack-agent"
_TOPOLOGIES = ("required_topology", "preferred_topology")


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesSite:
    """Times are in seconds. Paths are the pods' paths, except `service_root`."""

    namespace: str
    image: str | None  # for jobs that name none
    root: Path  # the run directory
    service_root: Path  # the run directory on the service's machine, or the service's own copy of reported data
    shared: bool  # whether the service mounts the pods' run directory
    agent_dir: Path | None  # the package's folder; None means that the image contains it
    agent_map: str | None = None  # the ConfigMap with the package, for pods that share no files with the service
    agent_image: str | None = None  # an init container copies the package from this image
    python: str = "python3"
    policy: WorkdirPolicy = field(default_factory=WorkdirPolicy)  # which folders may be copied to the pods
    claim: str | None = None  # a PersistentVolumeClaim that holds the run directory
    host_path: str | None = None  # or a folder that all nodes share; with neither, each pod has its own folder
    defaults: Placement = field(default_factory=Placement)
    overlay: Mapping[str, object] = field(default_factory=dict)  # a strategic merge patch for every Job
    free_overlays: bool = False  # a job's own overlay may set any field
    service_account: str | None = None
    pull_secrets: tuple[str, ...] = ()
    priority_class: str | None = None
    gpu_resource: str = "nvidia.com/gpu"
    gpu_label: str = "nvidia.com/gpu.product"  # the node label that resources.gpu_type must match
    gpus_per_node: int = 0
    user: int | None = 1000  # user and group of the container; None means the image's
    read_only_root: bool = True
    shm_gb: float | None = None  # None means up to the container's memory
    grace_s: int = 45  # from SIGTERM to SIGKILL
    unreachable_s: int = 60  # how long a silent node keeps its pods
    keep_s: int = 7 * 86400  # how long a finished Job is kept
    settle_s: float = 30.0  # maximum delay of a record on a network file system
    image_patience_s: float = 300.0  # how long to wait for an image that cannot be pulled

    @property
    def workdirs(self) -> Workdirs:
        return Workdirs(root=self.root, service_root=self.service_root, policy=self.policy)

    def seen_by_service(self, path: Path) -> Path:
        return self.service_root / path.relative_to(self.root)


def effective_placement(wanted: Placement, site: KubernetesSite) -> Placement:
    """Merge the job's placement over the cluster's defaults."""
    neutral = Placement()
    given = {
        name: value for name in Placement.model_fields if (value := getattr(wanted, name)) != getattr(neutral, name)
    }
    if not given.keys().isdisjoint(_TOPOLOGIES):
        given = dict.fromkeys(_TOPOLOGIES) | given  # a job has one of them
    selector = {**site.defaults.node_selector, **wanted.node_selector}
    return site.defaults.model_copy(update={**given, "node_selector": selector})
