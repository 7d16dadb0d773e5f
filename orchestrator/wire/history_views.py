"""The history of a job: snapshots, workers, nodes, stacks, metrics."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from orchestrator.wire.answers import Answer


class SnapshotView(Answer):
    name: str
    step: int
    attempt: int
    generation: int
    state: str  # committed, quarantined, deleted
    size_bytes: int | None
    world_size: int | None = None  # of the group that took the snapshot
    at: datetime
    verified_at: datetime | None = None  # when all of its bytes were last compared with the manifest

    @property
    def exists(self) -> bool:
        """Whether the files exist. Those of a quarantined snapshot do."""
        return self.state != "deleted"


class WorkerView(Answer):
    attempt: int
    replica: int
    local_rank: int
    rank: int
    world_size: int
    generation: int
    pid: int
    phase: str
    step: int | None
    memory_bytes: int | None
    utilisation: float | None = None  # of the worker's device, 0 to 1
    at: datetime


class JobNodeView(Answer):
    """A node of the job's newest attempt: one incarnation of a replica's agent. `name` is the machine's host name."""

    attempt: int
    replica: int
    incarnation: int
    name: str | None
    pid: int | None  # the agent's
    ranks: list[int]  # the ranks that its workers reported
    ended: str | None  # the outcome in the agent's exit record, if there is one


class StacksView(Answer):
    """The Python stack of one rank, on request or before its worker was stopped. `text` is null if the rank did not
    answer."""

    rank: int
    attempt: int
    generation: int | None
    at: datetime
    wish: int | None  # the number of the request that this stack answers
    text: str | None


class MetricsView(Answer):
    """Series by name. Position i of `steps`, `at`, `attempts`, `generations` and each series belongs to one step.

    Null is a value that is not known, NaN or infinite. `not_finite` has the step at which a series became NaN or
    infinite. Only the first four of the requested names are in it.
    """

    steps: list[int]
    at: list[datetime]
    attempts: list[int]
    generations: list[int]
    series: dict[str, list[float | None]]
    not_finite: dict[str, int] = Field(default_factory=dict)

    def newest(self) -> dict[str, float]:
        """Return the last value of each series."""
        known = {name: [value for value in values if value is not None] for name, values in self.series.items()}
        return {name: values[-1] for name, values in known.items() if values}


class RankSeriesView(Answer):
    """What one rank used. Position i of each list belongs to position i of `at` in ResourcesView."""

    rank: int
    memory_bytes: list[int | None]  # the resident sets of its process and the processes below it
    cpu_cores: list[float | None]  # 1.0 is one busy core
    gpu_memory_bytes: list[int | None]
    gpu_utilization: list[float | None]  # 0 to 1


class GenerationStartView(Answer):
    """The first sample of a generation."""

    at: datetime
    attempt: int
    generation: int


class RankUseView(Answer):
    """The newest sample of one rank, as in RankSeriesView."""

    rank: int
    attempt: int
    generation: int
    at: datetime
    memory_bytes: int | None
    cpu_cores: float | None
    gpu_memory_bytes: int | None
    gpu_utilization: float | None


class ResourcesView(Answer):
    """What the ranks of a job use, sampled by their agents. Everything is empty without samples.

    `ranks` has at most 16 ranks: those with the most memory of all `sampled_ranks`. The time is divided into equal
    intervals. An item has the highest memory and the mean load of one interval, and `at` its middle. `newest` has all
    ranks of the newest generation. `partial`: the job has more attempts or nodes than one answer covers.
    """

    at: list[datetime]
    ranks: list[RankSeriesView]
    sampled_ranks: int
    starts: list[GenerationStartView]
    newest: list[RankUseView]
    partial: bool
