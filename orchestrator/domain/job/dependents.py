"""Which jobs continue from another job's snapshots. Pure."""

from __future__ import annotations

from collections.abc import Mapping


def relying_on(job_id: str, sources: Mapping[str, str]) -> str | None:
    """Return the first other job, by name, whose `snapshot.from` is in this job's folder. `sources` has it by job id.

    A job's id is a part of every path and URL of its snapshots, and of no other path.
    """
    return min((name for name, place in sources.items() if name != job_id and job_id in place.split("/")), default=None)
