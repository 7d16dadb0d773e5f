"""What a job left behind: snapshots, workers, what steps measured."""

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
    world_size: int | None = None  # of the group that took it
    at: datetime
    verified_at: datetime | None = None  # when all of its bytes were last compared with its manifest

    @property
    def exists(self) -> bool:
        """Whether its files are there; a quarantined one's are, too."""
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
    utilisation: float | None = None  # of its device, 0 to 1
    at: datetime


class JobNodeView(Answer):
    """A node of the job's newest attempt: one life of a replica's agent. `name` is what the machine calls itself."""

    attempt: int
    replica: int
    incarnation: int
    name: str | None
    pid: int | None  # of the agent
    ranks: list[int]  # of which its workers have told
    ended: str | None  # as the agent's exit record says; null: it has left none


class StacksView(Answer):
    """Where one rank stood when somebody asked, or before it was ended. `text` null: it did not answer."""

    rank: int
    attempt: int
    generation: int | None
    at: datetime
    wish: int | None  # the number of the request that it answers
    text: str | None


class MetricsView(Answer):
    """Series by name; the values of `steps`, `at` and each series belong together by position."""

    steps: list[int]
    at: list[datetime]
    attempts: list[int]
    generations: list[int]
    series: dict[str, list[float | None]]

    def newest(self) -> dict[str, float]:
        """The last value of each series."""
        known = {name: [value for value in values if value is not None] for name, values in self.series.items()}
        return {name: values[-1] for name, values in known.items() if values}
