"""Arrays: the jobs that one sweep made."""

from __future__ import annotations

from collections import Counter

from pydantic import Field

from orchestrator.domain.job.job import JobState
from orchestrator.wire.answers import Answer


class MemberView(Answer):
    """One job of an array. `values` is what the sweep chose for it."""

    job_id: str
    index: int  # from 1
    values: dict[str, str]
    state: JobState
    ended: bool  # it is in a terminal state, and no retry is requested
    reason: str
    step: int | None
    total_steps: int | None
    loss: float | None


class ArrayView(Answer):
    """An array. A member whose record was deleted is missing."""

    id: str
    project: str
    cluster: str
    owner: str | None = None
    size: int
    at_once: int | None  # how many members may run at a time
    members: list[MemberView]
    warnings: list[str] = Field(default_factory=list)  # after a submission: fields that have no effect on a member
    refused: list[str] = Field(default_factory=list)  # why a request did not reach some members

    @property
    def missing(self) -> int:
        """The number of members that were deleted, or not stored because the submission was cut off."""
        return self.size - len(self.members)

    @property
    def succeeded(self) -> bool:
        return not self.missing and all(member.state is JobState.SUCCEEDED for member in self.members)

    @property
    def ended(self) -> bool:
        return all(member.ended for member in self.members)

    def count(self) -> dict[JobState, int]:
        """Return the number of members by state, in the order of JobState."""
        found = Counter(member.state for member in self.members)
        return {state: found[state] for state in JobState if found[state]}

    @property
    def keys(self) -> list[str]:
        """The keys that differ between members, in the order of the sweep."""
        return list(dict.fromkeys(key for member in self.members for key in member.values))
