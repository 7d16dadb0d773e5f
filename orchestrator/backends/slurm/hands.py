"""Who cancelled a job that we did not: accounting alone tells, and hears of an end a little later than the listing."""

from __future__ import annotations

import pwd
from collections.abc import Callable, Collection, Container, Mapping, Sequence

from orchestrator.backends.slurm.listing import SlurmJob
from orchestrator.backends.slurm.sight import Submission, is_ours
from orchestrator.backends.slurm.states import Standing, explain_hands, meaning

Books = Callable[[Collection[int]], Sequence[SlurmJob]]  # what accounting has of jobs with these numbers


class Hands:
    """Remembers accounting's word by the jobs' names, for as long as they are asked about."""

    def __init__(self, books: Books, *, user: int) -> None:
        self._books = books
        self._user = user
        self._told: dict[str, SlurmJob] = {}

    def ask(self, jobs: Mapping[str, Sequence[SlurmJob]], *, ours: Mapping[str, Container[int]]) -> None:
        """Ask once for each cancelled job, and for all of them together. `ours`: those that we ended ourselves."""
        self._told = {name: row for name, row in self._told.items() if name in jobs}
        cancelled = {
            job.id: job
            for name, several in jobs.items()
            for job in several
            if job.state == "CANCELLED" and job.id not in ours.get(name, ()) and not self._knows(name)
        }
        for row in self._books(cancelled) if cancelled else ():
            job = cancelled.get(row.id)
            if job is not None and is_ours(row, Submission(name=job.name, user=self._user, noted_at=job.submitted_at)):
                self.learn(job.name, row)

    def learn(self, name: str, row: SlurmJob) -> None:
        self._told[name] = row

    def may_still_be_told(self, job: SlurmJob, *, now: float, settle_s: float) -> bool:
        """Whether a job that ran and was cancelled is known to accounting, but not its end."""
        if job.state != "CANCELLED" or not job.nodes or job.name not in self._told or self._knows(job.name):
            return False
        return job.ended_at is not None and now - job.ended_at < settle_s

    def explain(self, name: str) -> str:
        row = self._told.get(name)
        return explain_hands(row, "" if row is None or row.cancelled_by is None else self._describe(row.cancelled_by))

    def _knows(self, name: str) -> bool:
        return name in self._told and meaning(self._told[name]).standing is Standing.OVER

    def _describe(self, user: int) -> str:
        try:
            name = pwd.getpwuid(user).pw_name
        except KeyError:
            name = f"the user with id {user}"
        return f"{name}, the user that the service runs as" if user == self._user else name
