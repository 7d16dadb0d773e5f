"""The fields of `[clusters.<name>]` for each kind of cluster, which settings.py reads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import httpx
from pydantic import BaseModel, ConfigDict, Field, JsonValue, field_validator, model_validator

from orchestrator.domain.field_rules import NAME
from orchestrator.domain.specs.spec import Placement


class LocalClusterSettings(BaseModel):
    """`[clusters.<name>]` with `backend = "local"`: this machine, in the service's own run directory."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    backend: Literal["local"]


class SlurmClusterSettings(BaseModel):
    """`[clusters.<name>]` with `backend = "slurm"`. Times are in seconds; see docs/slurm.md."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    backend: Literal["slurm"]
    root: Path | None = None  # the run directory on the nodes; default: the service's own
    service_root: Path | None = None  # the same directory on the service's host, if its path differs there
    shared_paths: tuple[Path, ...] = ()  # folders that nodes share with the service; a workdir in them is not copied
    defaults: Placement = Placement()
    options: tuple[str, ...] = ()  # sbatch options for every job
    python: str = "python3"  # the Python on the nodes, found after modules and prolog have run
    modules: tuple[str, ...] = ()
    prolog: str = ""  # lines of bash that prepare a node
    interface: str | None = None
    containers: bool = False  # pyxis is installed: jobs may name an image
    container_options: tuple[str, ...] = ()  # srun options for jobs with an image
    gpus_per_node: Annotated[int, Field(ge=0, le=1024)] = 0
    gpu_type: str | None = None
    notice_s: Annotated[int, Field(ge=1, le=65535)] = 60  # Slurm signals a job this long before its time limit
    max_jobs: Annotated[int, Field(ge=1)] | None = None  # how many jobs may wait in Slurm's queue or run at one time
    poll_s: Annotated[float, Field(gt=0, le=60)] = 5.0
    command_timeout_s: Annotated[float, Field(gt=0, le=600)] = 30.0
    settle_s: Annotated[float, Field(ge=0, le=3600)] = 30.0  # how late a shared file system may show a node's files
    stop_timeout_s: Annotated[float, Field(gt=0, le=3600)] | None = None
    bin_dir: str | None = None  # the folder of Slurm's commands; default: PATH
    conf: str | None = None  # SLURM_CONF
    rest_url: str | None = None  # slurmrestd instead of the commands: http(s)://HOST:PORT, or unix:PATH of its socket
    rest_user: str | None = None  # the name of the token's user; default: that of the service's user
    rest_token_file: Path | None = None  # a JSON web token, as `scontrol token` prints it

    @field_validator("root", "service_root")
    @classmethod
    def _root_is_plain(cls, value: Path | None) -> Path | None:
        if value is not None and (not value.is_absolute() or "%" in str(value)):
            raise ValueError("must be an absolute path without '%', which Slurm replaces in the names of logs")
        return value

    @model_validator(mode="after")
    def _one_client(self) -> SlurmClusterSettings:
        if self.rest_url is None:
            if self.rest_user is not None or self.rest_token_file is not None:
                raise ValueError("rest_user and rest_token_file need rest_url")
            return self
        if self.bin_dir is not None or self.conf is not None:
            raise ValueError("bin_dir and conf are for Slurm's commands, which rest_url replaces")
        if not self.rest_url.startswith(("http://", "https://", "unix:/")):
            raise ValueError("rest_url must be http(s)://HOST:PORT, or unix:/PATH of a socket")
        try:
            url = httpx.URL(self.rest_url)
        except httpx.InvalidURL as error:
            raise ValueError(f"rest_url: {error}") from None
        if url.userinfo or url.query or url.fragment:
            raise ValueError("rest_url must have no password and no query; rest_token_file holds the credentials")
        if self.rest_token_file is None and not self.rest_url.startswith("unix:"):
            raise ValueError("rest_url needs rest_token_file, except for a socket")
        if self.rest_token_file is None and self.rest_user is not None:
            raise ValueError("rest_user needs rest_token_file: it is the name of the token's user")
        if self.defaults.partition is None:
            raise ValueError("rest_url needs defaults.partition: slurmrestd does not report which one is the default")
        return self


class KubernetesClusterSettings(BaseModel):
    """`[clusters.<name>]` with `backend = "kubernetes"`. Times are in seconds; see docs/kubernetes.md."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    backend: Literal["kubernetes"]
    kubeconfig: Path | None = None  # default: KUBECONFIG, or ~/.kube/config
    context: str | None = None  # a context of the kubeconfig; default: the current one, or the pod's service account
    namespace: str | None = None  # default: the context's, or the service's own
    image: str | None = None  # the image of jobs that name none
    agent_image: str | None = None  # this project's image; adds the agent to jobs whose image lacks it
    python: str = "python3"  # the Python in the jobs' image
    root: Path = Path("/run/orchestrator")  # the run directory in the pods
    claim: str | None = None  # the PersistentVolumeClaim with the run directory
    host_path: str | None = None  # a folder that all nodes share, instead of a claim
    service_root: Path | None = None  # the run directory on the service's host; default: no shared files
    defaults: Placement = Placement()
    overlay: dict[str, object] = {}  # a strategic merge patch for every Job
    free_overlays: bool = False  # a job's overlay may use Secrets, accounts, files of the node and privileges
    service_account: str | None = None  # the service account of the jobs' pods
    pull_secrets: tuple[str, ...] = ()
    priority_class: str | None = None
    gpu_resource: str = "nvidia.com/gpu"
    gpu_label: str = "nvidia.com/gpu.product"
    gpus_per_node: Annotated[int, Field(ge=0, le=1024)] = 0
    gpu_type: str | None = None
    run_as: Annotated[int, Field(ge=0)] | Literal["image"] = 1000  # user and group of the pods
    read_only_root: bool = True
    shm_gb: Annotated[float, Field(gt=0)] | None = None
    unreachable_s: Annotated[int, Field(ge=0, le=86400)] = 60  # how long an unreachable node keeps its pods
    keep_finished_s: Annotated[int, Field(ge=60)] = 7 * 86400
    image_patience_s: Annotated[float, Field(ge=0)] = 300.0
    settle_s: Annotated[float, Field(ge=0, le=3600)] | None = None  # default: 30 with shared files, else 5
    stop_timeout_s: Annotated[float, Field(gt=0, le=3600)] = 30.0
    request_timeout_s: Annotated[float, Field(gt=0, le=600)] = 15.0
    max_jobs: Annotated[int, Field(ge=1)] | None = None  # how many jobs may wait or run at one time
    poll_s: Annotated[float, Field(gt=0, le=60)] = 1.0  # the time between two passes of the supervisor

    @field_validator("root")
    @classmethod
    def _root_is_absolute(cls, value: Path) -> Path:
        if not value.is_absolute():
            raise ValueError("must be an absolute path in the pods")
        return value

    @model_validator(mode="after")
    def _one_storage(self) -> KubernetesClusterSettings:
        if self.claim is not None and self.host_path is not None:
            raise ValueError("needs at most one of claim and host_path")
        if self.service_root is not None and self.claim is None and self.host_path is None:
            raise ValueError("service_root needs claim or host_path: they say where the pods have the shared files")
        return self


class TorchxClusterSettings(BaseModel):
    """`[clusters.<name>]` with `backend = "torchx"`. Times are in seconds; see docs/torchx.md."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    backend: Literal["torchx"]
    scheduler: str  # torchx's name of it; `torchx runopts` lists those that are installed
    cfg: dict[str, JsonValue] = {}  # run options of the scheduler
    torchx_python: str | None = None  # a Python on the service's host with torchx and plugins; default: the service's
    root: Path | None = None  # the run directory on the nodes; default: the service's own
    service_root: Path | None = None  # the same directory on the service's host, if its path differs there
    shared_paths: tuple[Path, ...] = ()  # folders that nodes share with the service; a workdir in them is not copied
    python: str = "python3"  # the Python on the nodes
    interface: str | None = None  # the network interface between the nodes, such as ib0
    gpus_per_node: Annotated[int, Field(ge=0, le=1024)] = 0  # for `workers_per_node: gpu`
    gpu_type: str | None = None
    max_jobs: Annotated[int, Field(ge=1)] | None = None  # how many jobs may wait or run at one time
    poll_s: Annotated[float, Field(gt=0, le=60)] = 5.0  # between two passes
    call_timeout_s: Annotated[float, Field(gt=0, le=600)] = 60.0  # of one call to torchx's runner
    settle_s: Annotated[float, Field(ge=0, le=3600)] = 30.0  # how late a shared file system may show a node's files
    # From the request that an attempt ends to its cancellation; default: the service's.
    stop_timeout_s: Annotated[float, Field(gt=0, le=3600)] | None = None

    @field_validator("scheduler")
    @classmethod
    def _scheduler_is_another(cls, value: str) -> str:
        if value == "orchestrator":
            raise ValueError("is this service's own: its jobs would be submitted to itself")
        return value


ClusterSettings = Annotated[
    LocalClusterSettings | SlurmClusterSettings | KubernetesClusterSettings | TorchxClusterSettings,
    Field(discriminator="backend"),
]
ClusterName = Annotated[str, Field(pattern=NAME)]
