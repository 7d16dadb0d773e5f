"""Find who cancelled a job, if not the service. Only accounting knows, and it learns of an end later than squeue."""

from __future__ import annotations

import pwd
from collections.abc import Callable, Collection, Container, Mapping, Sequence

from orchestrator.backends.slurm.listing import SlurmJob
from orchestrator.backends.slurm.sight import Submission, matches_submission
from orchestrator.backends.slurm.states import Standing, explain_canceller, meaning

Accounting = Callable[[Collection[int]], Sequence[SlurmJob]]  # returns accounting's rows for these job ids


class Cancellations:
    """Accounting's rows of cancelled jobs, by job name, kept while the jobs are observed."""

    def __init__(self, accounting: Accounting, *, user: int) -> None:
        self._accounting = accounting
        self._user = user
        self._rows: dict[str, SlurmJob] = {}

    def ask(self, jobs: Mapping[str, Sequence[SlurmJob]], *, ours: Mapping[str, Container[int]]) -> None:
        """Query accounting for all cancelled jobs in one call, each once. `ours` are jobs that the service ended."""
        self._rows = {name: row for name, row in self._rows.items() if name in jobs}
        cancelled = {
            job.id: job
            for name, several in jobs.items()
            for job in several
            if job.state == "CANCELLED" and job.id not in ours.get(name, ()) and not self._knows(name)
        }
        for row in self._accounting(cancelled) if cancelled else ():
            job = cancelled.get(row.id)
            if job is not None and matches_submission(
                row, Submission(name=job.name, user=self._user, noted_at=job.submitted_at)
            ):
                self.learn(job.name, row)

    def learn(self, name: str, row: SlurmJob) -> None:
        self._rows[name] = row

    def awaits_accounting(self, job: SlurmJob, *, now: float, settle_s: float) -> bool:
        """Whether accounting knows a cancelled job that ran, but does not know its end yet."""
        if job.state != "CANCELLED" or not job.nodes or job.name not in self._rows or self._knows(job.name):
            return False
        return job.ended_at is not None and now - job.ended_at < settle_s

    def explain(self, name: str) -> str:
        row = self._rows.get(name)
        return explain_canceller(
            row, "" if row is None or row.cancelled_by is None else self._describe(row.cancelled_by)
        )

    def _knows(self, name: str) -> bool:
        return name in self._rows and meaning(self._rows[name]).standing is Standing.OVER

    def _describe(self, user: int) -> str:
        try:
            name = pwd.getpwuid(user).pw_name
        except KeyError:
            name = f"the user with id {user}"
        return f"{name}, the user that the service runs as" if user == self._user else name
