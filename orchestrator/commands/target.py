"""Look up what a request for stacks or chaos needs to know of a running job."""

from __future__ import annotations

from orchestrator.domain.job.dependents import relying_on
from orchestrator.domain.job.faults import Target
from orchestrator.ports.jobs import JobLookup
from orchestrator.store.history_reader import HistoryReader
from orchestrator.store.records import StoredReplica

_PAGE = 200


def find_target(jobs: JobLookup, history: HistoryReader | None, job_id: str) -> Target:
    """Raises NotFound, StoreUnavailable."""
    standing = jobs.standing(job_id)
    lives = [] if history is None else _lives(history, job_id)
    return Target(
        attempt=standing.attempt,
        world_size=standing.world_size,
        nodes={life.replica: life.name for life in lives if life.name is not None},
        places={rank: life.replica for life in lives for rank in life.ranks},
        newest_snapshot=standing.newest_snapshot,
        relied_on_by=relying_on(job_id, jobs.dependents(job_id)),
    )


def _lives(history: HistoryReader, job_id: str) -> list[StoredReplica]:
    """Return every incarnation of every replica, in order. The last one of a replica counts."""
    found: list[StoredReplica] = []
    cursor: str | None = None
    while True:
        rows, cursor = history.replicas(job_id, limit=_PAGE, cursor=cursor)
        found += rows
        if cursor is None:
            return found
