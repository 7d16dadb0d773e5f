"""What the backend asks of Slurm. `commands.py` runs Slurm's commands, and `rest.py` calls slurmrestd.

A call that gets no answer, or whose controller cannot be reached, raises BackendUnavailable. Slurm may have accepted
the submission all the same (observed in every version), and a missing listing proves nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from orchestrator.backends.slurm.capacity import SlurmNode
from orchestrator.backends.slurm.listing import SlurmJob
from orchestrator.backends.slurm.render import Request
from orchestrator.domain.errors import BackendBusy, BackendUnavailable, LaunchRefused
from orchestrator.domain.job.native_request import NativeRequest

UNKNOWN_JOB = "Invalid job id specified"
NO_LONGER_WAITS = (UNKNOWN_JOB, "no longer pending", "already finished", "already completing or completed")
_UNREACHABLE = (
    "Socket timed out",
    "Unable to contact slurm controller",
    "connect failure",
    "Zero Bytes were transmitted or received",
    "Transport endpoint is not connected",
    "Connection refused",
    "authentication error",
    "Protocol authentication error",
    "Munge encode failed",
    "Slurm backup controller in standby mode",
    "I/O error writing script/environment to file",
    "Unable to establish configuration source",
)
_FULL = (
    "Job violates accounting/QOS policy",
    "temporarily unable to accept job",
    "Resource temporarily unavailable",
    "maximum number of jobs",
    "MaxSubmitJob",
)


class SlurmClient(Protocol):
    @property
    def user(self) -> int:
        """The id of the user that the jobs belong to."""
        ...

    def render(self, request: Request) -> NativeRequest:
        """Show what `submit` would send. Raises LaunchRefused."""
        ...

    def submit(self, request: Request) -> int:
        """Submit a job and return its id. Raises LaunchRefused, BackendBusy, BackendUnavailable."""
        ...

    def jobs(self) -> list[SlurmJob]:
        """Return this user's jobs that are attempts, including ended ones."""
        ...

    def job(self, number: int) -> SlurmJob | None:
        """Return the job that now has this id, from any user. None if the controller says that there is none."""
        ...

    def jobs_with_steps(self) -> frozenset[int]:
        """Return the ids of this user's jobs that run a step besides their script."""
        ...

    def accounting(self, numbers: Collection[int]) -> list[SlurmJob]:
        """Return accounting's rows for these job ids, oldest first. Empty if the cluster has no accounting."""
        ...

    def signal(self, number: int, name: str) -> None:
        """Signal the processes of the job's steps, not its script. Does nothing if the job is over."""
        ...

    def cancel(self, number: int) -> None:
        """End a waiting or running job. Does nothing if the job is over."""
        ...

    def exclude(self, number: int, nodes: str) -> None:
        """Replace the nodes that a waiting job excludes. Does nothing if the job no longer waits."""
        ...

    def nodes(self) -> list[SlurmNode]:
        """Return every node, once per partition."""
        ...


def require_answer(said: str, *, complaint: str) -> None:
    """Raise BackendUnavailable, with the complaint, if Slurm said that the controller did not answer."""
    if any(words in said for words in _UNREACHABLE):
        raise BackendUnavailable(complaint)


def classify_refusal(complaint: str) -> LaunchRefused | BackendBusy:
    """Return the exception for a submission that Slurm refused with this complaint."""
    if any(words in complaint for words in _FULL):
        return BackendBusy(f"Slurm accepts no more jobs now: {complaint}")
    return LaunchRefused(f"Slurm refuses the job: {complaint}")
