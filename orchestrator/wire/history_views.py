"""The history of a job: snapshots, workers, nodes, stacks, metrics."""

from __future__ import annotations

from datetime import datetime

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
    """Series by name. Position i of `steps`, `at`, `attempts`, `generations` and each series belongs to one step."""

    steps: list[int]
    at: list[datetime]
    attempts: list[int]
    generations: list[int]
    series: dict[str, list[float | None]]

    def newest(self) -> dict[str, float]:
        """Return the last value of each series."""
        known = {name: [value for value in values if value is not None] for name, values in self.series.items()}
        return {name: values[-1] for name, values in known.items() if values}
