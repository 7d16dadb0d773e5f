"""What the supervisor needs of a cluster and of the run directories of its jobs."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Protocol, runtime_checkable

from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.job.launch_plan import LaunchPlan
from orchestrator.domain.job.native_request import NativeRequest
from orchestrator.domain.observation.observation import Sighting
from trainer.contract.launch import DesiredDocument


class Backend(Protocol):
    """A cluster. Each method may block for seconds. Each raises BackendUnavailable if the cluster does not answer."""

    def render(self, plan: LaunchPlan) -> NativeRequest:
        """Render the request that `submit` would send. Pure."""

    def submit(self, plan: LaunchPlan) -> str:
        """Submit the attempt and return the cluster's handle. A second start of an attempt exits by itself."""

    def observe(self, launched: Mapping[AttemptKey, int]) -> Mapping[AttemptKey, Sighting]:
        """Observe all the attempts at once. `launched` has their numbers of replicas. An attempt that the backend
        cannot judge is UNKNOWN, never left out."""

    def cancel(self, key: AttemptKey, *, force: bool) -> None:
        """Ask the attempt to end. With `force`, kill it and its leftovers. Idempotent: an ended attempt is no error."""

    def slots(self) -> int | None:
        """Return how many workers fit on the whole cluster. None if the cluster has a queue of its own."""


@runtime_checkable
class StrictBackend(Protocol):
    """A cluster that never starts a waiting attempt on an avoided node. Other clusters only prefer other nodes."""

    def avoid_only(self, plan: LaunchPlan) -> None:
        """Change the nodes that an attempt in the cluster's queue avoids to the plan's excluded nodes. Idempotent: an
        attempt that no longer waits is no error."""


class RunDirectories(Protocol):
    """The run directories of a cluster's jobs, as the supervisor writes them. Each method raises OSError and is
    idempotent, so the next pass can repeat it."""

    def fence(self, job_id: str, attempt: int) -> None:
        """Let no earlier attempt commit a snapshot any more."""

    def write_desired(self, job_id: str, attempt: int, desired: DesiredDocument) -> None:
        """Write the desired state, which the attempt's agents read."""

    def withdraw(self, job_id: str, attempt: int) -> bool:
        """Let no agent claim the attempt any more, not even one of a submission that is still under way. Returns False
        if an agent has claimed it."""


class Journals(Protocol):
    """The journals and exit records of agents, read for the supervisor."""

    def collect(self, launched: Mapping[AttemptKey, int], must_read: Set[AttemptKey]) -> Mapping[AttemptKey, str]:
        """Store what the attempts wrote since the last call. `launched` has the number of replicas of each attempt.

        Reads the attempts in `must_read`, and all others whose files may have changed. Returns the reason for each
        attempt that cannot be read. Raises StoreUnavailable.
        """
