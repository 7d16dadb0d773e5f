"""What ended jobs leave: their records, files and numbers, and the removal of these."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from orchestrator.domain.job.deletion import Deletion
from orchestrator.domain.job.event import Event


class DeletionStore(Protocol):
    """The records of jobs as far as they are deleted. Raises StoreUnavailable."""

    def delete(self, deletion: Deletion, *, seen: int) -> bool:
        """Delete the job's record with all that belongs to it, and write down that it was, in one transaction. False,
        and nothing is changed, where the job is gone, has not ended, or has a newer request than `seen`."""

    def deletion(self, job_id: str) -> Deletion | None:
        """What is left of a job; None: no job of that id was deleted."""

    def due(self, cluster: str) -> Sequence[Deletion]:
        """Those of the cluster whose files are still to go, the earliest first."""

    def gone(self, job_id: str) -> None:
        """Its files are gone. Idempotent."""


class JobFolders(Protocol):
    def remove(self, job_id: str, snapshot_dir: str | None, go_on: Callable[[], bool]) -> bool:
        """Remove a deleted job's folder, and the one that it had in `snapshot_dir`, for as long as `go_on` says so;
        whether all is gone. Raises OSError. Idempotent; what was cut off is gone on with by the next call."""


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A job at rest for good, unless its owner wants more of it."""

    job_id: str
    finished_at: datetime


class EndedJobs(Protocol):
    """Who has ended, and what of the run directory is needed still. Raises StoreUnavailable."""

    def ended(
        self, cluster: str, *, before: datetime, behind: tuple[datetime, str] | None, limit: int
    ) -> Sequence[EndedJob]:
        """Jobs at rest that ended before a moment, the longest ended first, behind (its end, its id) of one."""

    def is_needed(self, job_id: str) -> bool:
        """Whether the job is not at rest, or a job that is not begins from its snapshots."""

    def oldest_live(self) -> datetime | None:
        """When the oldest job of any cluster that is not at rest was submitted."""

    def workdirs(self, *, since: datetime) -> Collection[str]:
        """The working folders of the jobs that are not at rest, and of those that ended since."""

    def tell(self, job_id: str, event: Event) -> None:
        """Append an event."""


class Forgetting(Protocol):
    """Removes what ended jobs left in the store, at most `limit` rows at once; returns how many. Of a job that is not
    at rest nothing. Idempotent. Raises StoreUnavailable."""

    def forget_metrics(self, job_id: str, event: Event, *, limit: int) -> int:
        """What accounts need of them is written with the event first."""

    def forget_events(self, job_id: str, *, limit: int) -> int:
        """But those that `why` and the accounts are read from."""

    def forget_deliveries(self, *, before: datetime, limit: int) -> int:
        """What webhooks were told, or were given up on, before a moment."""

    def forget_snapshots(self, job_id: str) -> None:
        """Note that its snapshots are gone."""
