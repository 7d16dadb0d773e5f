"""The store as the supervisor sees it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from orchestrator.domain.job.attempt import Attempt, AttemptKey
from orchestrator.domain.job.event import Event
from orchestrator.domain.job.job import Job, JobState
from orchestrator.domain.observation.node_record import NodeFailure
from orchestrator.domain.observation.observation import RankWord, Training
from trainer.contract.exit_record import ExitRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervised:
    """A job that is not at rest, with its newest attempt and what that attempt's journals told."""

    job: Job
    attempt: Attempt | None
    training: Training
    exits: Mapping[int, ExitRecord]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One decision's effect on the store: written in one transaction, or not at all."""

    job: Job
    attempt: Attempt | None
    events: Sequence[Event]
    node_failures: Sequence[NodeFailure] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Journalled:
    """What the journals of one attempt say of its ranks and peers."""

    ranks: Sequence[RankWord] = ()  # the newest word of every rank
    missed: frozenset[int] = frozenset()  # replicas that their peers have lost since the newest generation started


class SupervisorReader(Protocol):
    """The store as an observer of a cluster asks it, with a lease or without. Raises StoreUnavailable."""

    def live(self, cluster: str) -> Mapping[AttemptKey, int]:
        """The live attempts of the cluster, each with the maximum number of its replicas."""

    def supervised(self, cluster: str) -> Sequence[Supervised]:
        """Every job of the cluster that is not at rest: not terminal, or terminal with a retry requested."""

    def states(self, job_ids: Collection[str]) -> Mapping[str, JobState]:
        """How these jobs stand; one that does not exist is left out."""

    def journalled(self, key: AttemptKey) -> Journalled:
        """Nothing is known of an attempt that does not exist."""

    def node_failures(self, cluster: str, *, since: datetime) -> Sequence[NodeFailure]:
        """What stands in the records of the cluster's nodes."""


class SupervisorWriter(Protocol):
    """The store as the holder of a lease writes it: status only, never `desired`.

    Every write is refused with LeaseLost, and changes nothing, once another one holds the lease. Raises
    StoreUnavailable.
    """

    def apply(self, change: Change) -> None:
        """Write status of job and attempt (inserted where new), the marks of nodes (each attempt marks a node once) and
        the events. An ended attempt frees its port; it is never written again: InvalidTransition."""

    def note(self, reasons: Mapping[str, str], now: datetime) -> None:
        """Write only why these jobs stand still. An unknown one is no error. Many are more than one transaction."""

    def reserve_port(self, key: AttemptKey, cluster: str, candidates: range, *, after: int | None) -> int:
        """Reserve for the attempt a port that no other live attempt of the cluster holds; the next above `after`,
        around the end. Idempotent per attempt. Raises Refused when all are taken."""
