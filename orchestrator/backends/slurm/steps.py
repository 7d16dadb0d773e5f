"""Find out that the step of a job has ended. Without its script, Slurm keeps the job RUNNING after its last step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from orchestrator.domain.errors import BackendUnavailable


@dataclass(slots=True, kw_only=True)
class Steps:
    """`ask` returns the ids of the jobs that run a step. It is called at most once for each listing of jobs."""

    ask: Callable[[], frozenset[int]]
    settle_s: float
    asked_at: float = float("-inf")
    found: frozenset[int] | None = None  # None if Slurm did not answer
    absent_since: dict[int, float] = field(default_factory=dict)  # by the job's id

    def are_over(self, number: int, *, listed_at: float, now: float) -> bool:
        """Whether Slurm has listed no step of the job for `settle_s`, so that exit records had time to appear.

        `listed_at` is when the job was listed. An older answer may be from before the job began.
        """
        if self.asked_at < listed_at:
            self.asked_at, self.found = now, None
            with suppress(BackendUnavailable):
                self.found = self.ask()
        if self.found is None:
            return False
        if number in self.found:
            self.absent_since.pop(number, None)
            return False
        return now - self.absent_since.setdefault(number, now) >= self.settle_s
