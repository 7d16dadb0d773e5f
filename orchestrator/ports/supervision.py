"""The store as the supervisor sees it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from orchestrator.domain.job.attempt import Attempt, AttemptKey
from orchestrator.domain.job.event import Event
from orchestrator.domain.job.job import Job, JobState
from orchestrator.domain.observation.membership import Members
from orchestrator.domain.observation.node_record import NodeFailure
from orchestrator.domain.observation.observation import RankReport, Training
from orchestrator.domain.specs.spec import JobSpec
from trainer.contract.exit_record import ExitRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervised:
    """A job that is not at rest, with its newest attempt and that attempt's training summary."""

    job: Job
    shared_spec: JobSpec  # equal to the job's spec except for the name; one object for many jobs
    attempt: Attempt | None
    training: Training
    exits: Mapping[int, ExitRecord]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The effect of one decision on the store, written in one transaction."""

    job: Job
    attempt: Attempt | None
    events: Sequence[Event]
    node_failures: Sequence[NodeFailure] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Journaled:
    """What the journals of one attempt say about its ranks."""

    ranks: Sequence[RankReport] = ()  # the newest report of each rank
    missed: frozenset[int] = frozenset()  # replicas that other agents have lost since the newest generation started


class SupervisorReader(Protocol):
    """The store as an observer reads it. Needs no lease. Raises StoreUnavailable."""

    def changed(self, since: int | None) -> tuple[Set[str], int]:
        """Return the ids of all jobs with events after the event `since`, and the id of the newest event.

        With `since` None, returns only the id of the newest event. Events become visible in the order of their ids,
        and each one together with the change that it describes.
        """

    def at_work(self, cluster: str) -> Set[str]:
        """Return the ids of the jobs of the cluster that are not at rest."""

    def supervised(self, cluster: str, among: Set[str]) -> Sequence[Supervised]:
        """Return those of these jobs that are in the cluster and not at rest, oldest first."""

    def states(self, job_ids: Collection[str]) -> Mapping[str, JobState]:
        """Return the states of these jobs. A job that does not exist is left out."""

    def journaled(self, key: AttemptKey) -> Journaled:
        """Empty for an attempt that does not exist."""

    def members(self, key: AttemptKey, gone: Collection[int]) -> Members:
        """Return what is stored of the attempt's replicas, of which those in `gone` are not seen alive.

        If none of them was in the group, and none has had another agent, the recorded losses are left out. Empty for an
        attempt that does not exist.
        """

    def node_failures(self, cluster: str, *, since: datetime) -> Sequence[NodeFailure]:
        """Return the node records of the cluster."""


class SupervisorWriter(Protocol):
    """The store as the holder of a lease writes it: status only, never `desired`.

    Once the lease is lost, a write changes nothing and raises LeaseLost. Each method raises StoreUnavailable.
    """

    def apply(self, change: Change) -> None:
        """Write the status of job and attempt (a new attempt is inserted), the failures of nodes (one for each attempt
        and node) and the events. An ended attempt frees its port. Raises InvalidTransition for an attempt that has
        ended before."""

    def note(self, reasons: Mapping[str, str], now: datetime) -> None:
        """Write only the reasons of these jobs. An unknown job is no error. Many jobs take several transactions."""

    def reserve_port(self, key: AttemptKey, cluster: str, candidates: range, *, after: int | None) -> int:
        """Reserve a port that no other live attempt of the cluster holds: the next above `after`, wrapping around.
        Idempotent for one attempt. Raises Refused if no port is free."""
