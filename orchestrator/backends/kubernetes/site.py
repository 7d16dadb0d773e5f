"""What is configured of one Kubernetes cluster, as the adapter goes by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.backends.ship import Workdirs
from orchestrator.domain.specs.spec import Placement
from orchestrator.domain.specs.workdir import WorkdirPolicy

ATTEMPT_LABEL = "elastic-orchestrator/attempt"  # its value is the Job's name
MANAGER_LABEL, MANAGER = "app.kubernetes.io/managed-by", "elastic-orchestrator"
KEY_ANNOTATION = "elastic-orchestrator/key"  # the attempt's whole name, where the Job's had to be shortened
WHOLE_ANNOTATION = "elastic-orchestrator/whole"  # Secret and Service are there too: the submission was not cut off
NODES_ANNOTATION = "elastic-orchestrator/nodes"  # "least:most" or one number
KUEUE = "kueue.x-k8s.io"  # its API group
QUEUE_LABEL = f"{KUEUE}/queue-name"
INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
CONTAINER = "agent"


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesSite:
    """Times in seconds. Paths are as the pods see them, but for `service_root`."""

    namespace: str
    image: str | None  # of jobs that name none
    root: Path  # the run directory
    service_root: Path  # the same as the service sees it, or the service's own copy of what it is told
    shared: bool  # whether the service sees the pods' run directory
    agent_dir: Path | None  # the package that the job brings with it; None: the image has it
    agent_map: str | None = None  # the ConfigMap that has the package, for pods that share no files with the service
    agent_image: str | None = None  # whose package an init container copies into the pod
    python: str = "python3"
    policy: WorkdirPolicy = field(default_factory=WorkdirPolicy)  # which folders may be copied to the pods
    claim: str | None = None  # a PersistentVolumeClaim that holds the run directory
    host_path: str | None = None  # or a folder that all nodes share; neither: each pod has a folder of its own
    defaults: Placement = field(default_factory=Placement)
    overlay: Mapping[str, object] = field(default_factory=dict)  # a strategic merge patch of every Job
    free_overlays: bool = False  # a job's own overlay may make its pods more than a job's
    service_account: str | None = None
    pull_secrets: tuple[str, ...] = ()
    priority_class: str | None = None
    gpu_resource: str = "nvidia.com/gpu"
    gpu_label: str = "nvidia.com/gpu.product"  # of nodes: what resources.gpu_type is compared with
    gpus_per_node: int = 0
    user: int | None = 1000  # that the container runs as, and its group; None: as the image says
    read_only_root: bool = True
    shm_gb: float | None = None  # None: as much as the container's memory
    grace_s: int = 45  # from SIGTERM to SIGKILL
    unreachable_s: int = 60  # how long a silent node keeps its pods
    keep_s: int = 7 * 86400  # how long a finished Job is kept
    settle_s: float = 30.0  # how late a network file system may show a record
    image_patience_s: float = 300.0  # how long an image that cannot be pulled is waited for

    @property
    def workdirs(self) -> Workdirs:
        return Workdirs(root=self.root, service_root=self.service_root, policy=self.policy)

    def seen_by_service(self, path: Path) -> Path:
        return self.service_root / path.relative_to(self.root)


def effective_placement(wanted: Placement, site: KubernetesSite) -> Placement:
    """The job's placement over the cluster's defaults."""
    neutral = Placement()
    given = {
        name: value for name in Placement.model_fields if (value := getattr(wanted, name)) != getattr(neutral, name)
    }
    selector = {**site.defaults.node_selector, **wanted.node_selector}
    return site.defaults.model_copy(update={**given, "node_selector": selector})
