"""JobSpec: the specification of a job, and the body of a submission. Unknown fields are refused.

Fields that this version or a cluster cannot honor are refused by `unsupported`, never silently ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from orchestrator.domain.field_rules import ENV_NAME, LABEL, MODULE, NAME
from trainer.contract.config import ConfigError, TrainerConfig, parse_config, parse_interval, parse_memory_interval

MAX_SPEC_BYTES = 1024 * 1024
_NODES = re.compile(r"([0-9]{1,5})(?::([0-9]{1,5}))?")


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("must not contain a NUL byte")
    return text


def _number_as_text(value: object) -> object:
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


Text = Annotated[str, Field(max_length=4096), AfterValidator(_without_nul)]
Argument = Annotated[str, BeforeValidator(_number_as_text), Field(max_length=32768), AfterValidator(_without_nul)]
MAX_NAME = 63  # characters


def make_name(text: str) -> str:
    """Make the name of a job from a text. Empty if the text has no letter and no digit."""
    return re.sub("[^a-z0-9]+", "-", text.lower()).strip("-")[:MAX_NAME].rstrip("-")


def add_suffix(name: str, suffix: str) -> str:
    """Return the name with "-suffix", cut to the length of a name."""
    return f"{name[: MAX_NAME - len(suffix) - 1].rstrip('-')}-{suffix}"


Name = Annotated[str, Field(pattern=NAME)]
EnvName = Annotated[str, Field(pattern=ENV_NAME)]
Label = Annotated[str, Field(pattern=LABEL)]
LabelValue = Annotated[str, Field(max_length=255), AfterValidator(_without_nul)]
Count = Annotated[int, Field(ge=1, le=100_000)]
Seconds = Annotated[float, Field(gt=0, le=10 * 365 * 86400)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """Return the part itself, because nothing changes it. Pydantic copies a default that it cannot hash."""
        return self


class Run(_Part):
    """What each worker runs: exactly one of trainer, script, module and command."""

    trainer: dict[str, object] | None = None  # the configuration of the bundled trainer
    script: Text | None = None
    module: Annotated[str, Field(pattern=MODULE)] | None = None
    command: Annotated[tuple[Argument, ...], Field(min_length=1, max_length=1000)] | None = None
    args: Annotated[tuple[Argument, ...], Field(max_length=1000)] = ()
    pass_local_rank: bool = False  # give each worker of a script or module --local-rank=N as its first argument
    workdir: Text = "."
    image: Text | None = None
    env: dict[EnvName, Argument] = Field(default_factory=dict, max_length=500)
    secrets: Annotated[tuple[EnvName, ...], Field(max_length=100)] = ()  # names; the service stores the values

    @field_validator("trainer")
    @classmethod
    def _trainer_parses(cls, value: dict[str, object] | None) -> dict[str, object] | None:
        if value is not None:
            for name in ("snapshot_interval", "snapshot_memory", "snapshot_keep", "snapshot_keep_every"):
                if name in value:
                    raise ValueError(f"{name}: is set by the job's `snapshot` section")
            parse_config(value)  # ConfigError is a ValueError that names the field
        return value

    @field_validator("script")
    @classmethod
    def _script_is_no_flag(cls, value: str | None) -> str | None:
        if value is not None and value.startswith("-"):
            raise ValueError(f"would be read as an option; write './{value}'")
        return value

    @field_validator("command")
    @classmethod
    def _command_is_no_flag(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if value is not None and value[0].startswith("-"):
            raise ValueError(f"is {value[0]!r}; the name of a program must not begin with '-'")
        return value

    @field_validator("env", "secrets")
    @classmethod
    def _env_is_the_users(cls, value: dict[str, str] | tuple[str, ...]) -> dict[str, str] | tuple[str, ...]:
        for name in value:
            if name.startswith(("ORCHESTRATOR_", "TORCHELASTIC_")) or name in _GROUP_ENV:
                raise ValueError(f"{name}: is set by the launcher")
            if name in _BREAKS_THE_LAUNCHER:
                raise ValueError(f"{name}: would prevent the launcher from starting")
        return value

    @model_validator(mode="after")
    def _one_thing(self) -> Self:
        given = [name for name in ("trainer", "script", "module", "command") if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) if given else "none of them"
            raise ValueError(f"needs exactly one of trainer, script, module and command; found {found}")
        twice = sorted(self.env.keys() & set(self.secrets))
        if twice:
            raise ValueError(f"{twice[0]} is in both env and secrets; remove one of them")
        if self.args and given[0] in ("trainer", "command"):
            raise ValueError(f"args apply to script and module; put them into {given[0]}")
        if self.pass_local_rank and given[0] in ("trainer", "command"):
            raise ValueError(f"pass_local_rank applies to script and module, not to {given[0]}")
        return self


_GROUP_ENV = frozenset(
    {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"}
)
_BREAKS_THE_LAUNCHER = frozenset({"PYTHONHOME"})


def _nodes_text(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


class Topology(_Part):
    """How many agents and workers: `nodes` "2" or "2:8", `workers_per_node` a number or "gpu"."""

    nodes: Annotated[str, BeforeValidator(_nodes_text)] = "1"
    workers_per_node: Count | Literal["gpu"] = 1

    @field_validator("nodes")
    @classmethod
    def _nodes_parse(cls, value: str) -> str:
        match = _NODES.fullmatch(value)
        if match is None:
            raise ValueError(f"is {value!r}, must be a number of nodes or a range such as '2:8'")
        low, high = int(match[1]), int(match[2] or match[1])
        if low < 1:
            raise ValueError(f"is {value!r}, must be at least 1")
        if low > high:
            raise ValueError(f"is {value!r}, the range ends before it begins; did you mean '{high}:{low}'?")
        return str(low) if low == high else f"{low}:{high}"

    @property
    def min_nodes(self) -> int:
        return int(self.nodes.partition(":")[0])

    @property
    def max_nodes(self) -> int:
        return int(self.nodes.rpartition(":")[2])

    def count_workers(self, gpus_per_node: int) -> int:
        """Return the number of workers on a node with so many GPUs."""
        return gpus_per_node if self.workers_per_node == "gpu" else self.workers_per_node


class Resources(_Part):
    cpus: Annotated[float, Field(gt=0, le=100_000)] | None = None
    memory_gb: Annotated[float, Field(gt=0, le=1_000_000)] | None = None
    gpus: Annotated[int, Field(ge=0, le=1024)] = 0
    gpu_type: Text | None = None
    extra: dict[Label, Text] = Field(default_factory=dict, max_length=100)


class Placement(_Part):
    """Where a scheduler places the job. `options` are options of sbatch by their long names."""

    partition: Text | None = None
    account: Text | None = None
    qos: Text | None = None
    reservation: Text | None = None
    nodelist: Annotated[tuple[Text, ...], Field(max_length=10_000)] = ()
    exclusive: bool = False
    time_limit_s: Seconds | None = None  # the limit of one attempt; the next attempt continues
    dependency: Text | None = None  # the scheduler's jobs to wait for, in the scheduler's syntax
    options: dict[Label, Text] = Field(default_factory=dict, max_length=100)
    queue: Text | None = None
    priority_class: Text | None = None  # Kueue's WorkloadPriorityClass
    required_topology: Label | None = None  # a node label; all nodes of the job have the same value
    preferred_topology: Label | None = None
    exclude: Annotated[tuple[Text, ...], Field(max_length=10_000)] = ()
    constraint: Text | None = None
    node_selector: dict[Label, Text] = Field(default_factory=dict, max_length=100)
    tolerations: Annotated[tuple[dict[str, object], ...], Field(max_length=100)] = ()
    overlay: dict[str, object] = Field(default_factory=dict, max_length=100)  # a patch of Kubernetes' Job


@contextmanager
def _as_value_error() -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise ValueError(error.message) from error


class Snapshot(_Part):
    dir: Text | None = None
    source: Annotated[Text | None, Field(alias="from")] = None
    interval: Annotated[str, BeforeValidator(_nodes_text)] = "auto"
    memory: Annotated[str, BeforeValidator(_nodes_text)] = "auto"  # copies in the nodes' memory
    keep: Annotated[int, Field(ge=1, le=10_000)] = 3
    keep_every: Count | None = None
    on_preemption: bool = True

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, serialize_by_alias=True)

    @field_validator("interval")
    @classmethod
    def _interval_parses(cls, value: str) -> str:
        with _as_value_error():
            parse_interval(value)
        return value

    @field_validator("memory")
    @classmethod
    def _memory_parses(cls, value: str) -> str:
        with _as_value_error():
            parse_memory_interval(value)
        return value


Pause = Annotated[float, Field(ge=0, le=30 * 86400)]
Budget = Annotated[int, Field(ge=0, le=1_000_000)] | None


class Budgets(_Part):
    """How many failures of a class a job survives; None: no limit."""

    application: Budget = 3
    launch: Budget = 3
    node: Budget = 10
    hang: Budget = 3
    storage: Budget = 3
    preemption: Budget = None


class Supervise(_Part):
    heartbeat_timeout_s: Seconds | Literal["auto"] = "auto"
    startup_timeout_s: Seconds = 600
    max_runtime_s: Seconds | None = None
    budgets: Budgets = Budgets()
    refund_after_s: Seconds = 3600
    backoff_s: tuple[Pause, Pause] = (5, 300)
    exclude_bad_nodes: bool = True
    grow_back_after_s: Seconds | None = 600  # how long an elastic job trains with fewer nodes before it tries to grow

    @field_validator("backoff_s")
    @classmethod
    def _backoff_grows(cls, value: tuple[float, float]) -> tuple[float, float]:
        if value[0] > value[1]:
            raise ValueError(f"is [{value[0]}, {value[1]}], the first must not exceed the last")
        return value


ARRAY_LABEL = "array"  # each member of an array has this label; its value is the array's id


class ArrayPlace(_Part):
    """The place of a job in an array. The service sets it when it expands a sweep."""

    id: Text
    index: Count  # from 1
    size: Count
    at_once: Count | None = None  # how many members may run at a time
    values: dict[str, str] = Field(default_factory=dict)  # the values that the sweep chose, as text


class JobSpec(_Part):
    """A training job. docs/job.md describes every field; `orchestrator plan FILE` checks a spec."""

    name: Name
    project: Name = "default"
    cluster: Name = "local"
    run: Run
    topology: Topology = Topology()
    resources: Resources = Resources()
    placement: Placement = Placement()
    launcher: Literal["elasticrun", "torchrun"] = "elasticrun"
    snapshot: Snapshot = Snapshot()
    supervise: Supervise = Supervise()
    priority: Annotated[int, Field(ge=-100, le=100)] = 0
    after: Annotated[tuple[Text, ...], Field(max_length=100)] = ()
    labels: dict[Label, LabelValue] = Field(default_factory=dict, max_length=64)
    notify: Annotated[tuple[Text, ...], Field(max_length=20)] = ()
    array: ArrayPlace | None = None  # set by the service only

    model_config = ConfigDict(extra="forbid", frozen=True, serialize_by_alias=True)

    def outside_array(self) -> JobSpec:
        """Return the spec without its place in an array."""
        labels = {name: value for name, value in self.labels.items() if name != ARRAY_LABEL}
        return self if self.array is None else self.model_copy(update={"array": None, "labels": labels})

    def trainer_config(self) -> TrainerConfig | None:
        """Return the full configuration of the bundled trainer. None for a program of the user's."""
        if self.run.trainer is None:
            return None
        rest = {
            "snapshot_interval": self.snapshot.interval,
            "snapshot_memory": self.snapshot.memory,
            "snapshot_keep": self.snapshot.keep,
            "snapshot_keep_every": self.snapshot.keep_every,
        }
        return parse_config({**self.run.trainer, **rest})
