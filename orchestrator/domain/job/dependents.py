"""Which jobs need another job: its end (`after`), or its snapshots (`snapshot.from`). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a job needs of others."""

    job_id: str
    after: Sequence[str]
    source: str | None  # `snapshot.from`


def awaiting(job_id: str, others: Iterable[Needs]) -> str | None:
    """Return the first job, by name, that waits for this one."""
    return min((other.job_id for other in others if job_id in other.after), default=None)


def relying_on(job_id: str, others: Iterable[Needs]) -> str | None:
    """Return the first other job, by name, that continues from a snapshot in this job's folder.

    A job's id is a part of every path and URL of its snapshots, and of no other path.
    """
    return min((other.job_id for other in others if other.job_id != job_id and _is_in(job_id, other)), default=None)


def _is_in(job_id: str, other: Needs) -> bool:
    return other.source is not None and job_id in other.source.split("/")
