"""A cluster as the supervisor sees it, and what its jobs leave on the disk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.job.launch_plan import LaunchPlan, NativeRequest
from orchestrator.domain.observation.observation import Sighting
from trainer.contract.launch import DesiredDocument


class Backend(Protocol):
    """A cluster. Every method may block for seconds and raises BackendUnavailable when the cluster does not answer."""

    def render(self, plan: LaunchPlan) -> NativeRequest:
        """What would be submitted. Pure."""

    def submit(self, plan: LaunchPlan) -> str:
        """Start the attempt; return the cluster's handle. Of two starts of one attempt the second exits by itself."""

    def observe(self, launched: Mapping[AttemptKey, int]) -> Mapping[AttemptKey, Sighting]:
        """Look at all the attempts, each with its number of replicas, in one go. One that the backend cannot judge is
        UNKNOWN, never left out."""

    def cancel(self, key: AttemptKey, *, force: bool) -> None:
        """Ask the attempt to end, or with `force` end it and all that it left. Idempotent; an ended one is no error."""

    def slots(self) -> int | None:
        """How many workers fit on the cluster altogether; None where the cluster itself queues."""


@runtime_checkable
class StrictBackend(Protocol):
    """A cluster that never starts a waiting attempt on an avoided node. On other clusters that is a preference."""

    def avoid_only(self, plan: LaunchPlan) -> None:
        """Let the attempt, while it waits in the cluster's queue, avoid the plan's excluded nodes and no others.
        Idempotent; an attempt that no longer waits is no error."""


class RunDirectories(Protocol):
    """The run directories of a cluster's jobs, as the supervisor writes them. Each raises OSError; each is idempotent,
    so that the next pass repeats what failed."""

    def fence(self, job_id: str, attempt: int) -> None:
        """From now on nothing that an attempt before this one commits counts."""

    def write_desired(self, job_id: str, attempt: int, desired: DesiredDocument) -> None:
        """Tell the attempt's agents what is requested of it."""

    def withdraw(self, job_id: str, attempt: int) -> bool:
        """Let no agent begin the attempt any more, also one of a submission that is still to come. False where one has
        begun it."""


class Journals(Protocol):
    """What agents leave behind, read for the supervisor."""

    def collect(self, launched: Mapping[AttemptKey, int]) -> Mapping[AttemptKey, str]:
        """Store what the attempts, each with its number of replicas, told since the last call; of those that cannot be
        read, says why. Raises StoreUnavailable."""
