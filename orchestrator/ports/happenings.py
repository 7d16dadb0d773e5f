"""The events of all jobs, for whoever follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """That something happened to a job, for whoever follows."""

    id: int  # of the event: it rises over the whole store
    job_id: str
    project: str
    kind: str
    at: datetime


class HappeningReader(Protocol):
    """The events of all jobs. Raises StoreUnavailable."""

    def newest(self) -> int:
        """The id of the newest event; 0: there is none."""

    def after(self, event_id: int, *, limit: int) -> Sequence[Happening]:
        """Those above that id, in order. Ids become visible in rising order: none is missed."""
