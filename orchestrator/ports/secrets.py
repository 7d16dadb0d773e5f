"""Secrets of projects, sealed and revealed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from orchestrator.domain.job.masking import Mask


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedSecret:
    """A secret as it is stored: `sealed` is what a key opens."""

    project: str
    name: str
    sealed: str = field(repr=False)
    updated_at: datetime
    updated_by: str


class SecretStore(Protocol):
    """Sealed secrets by project and name. Raises StoreUnavailable."""

    def put(self, secret: SealedSecret) -> bool:
        """Insert or replace; whether it is new."""

    def remove(self, project: str, name: str) -> bool:
        """Whether it was there."""

    def of_project(self, project: str) -> Sequence[SealedSecret]:
        """By name."""

    def all(self) -> Sequence[SealedSecret]:
        """By project and name."""


class SecretReader(Protocol):
    """Secrets as the supervisor needs them. Raises StoreUnavailable."""

    def reveal(self, project: str, names: Collection[str]) -> Mapping[str, str]:
        """The values, for a start. Raises LaunchRefused for a secret that is not there."""

    def mask_of_project(self, project: str) -> Mask:
        """What hides all secrets of a project."""

    def masks(self, job_ids: Collection[str]) -> Mapping[str, Mask]:
        """The same by job; a job of a project without secrets is left out."""
