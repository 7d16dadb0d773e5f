"""What agents tell, on its way into the store."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from orchestrator.domain.job.attempt import AttemptKey
from trainer.contract.exit_record import ExitRecord, JournalEvent
from trainer.contract.progress import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalBatch:
    """New lines of one replica's journals. Offsets are bytes.

    A part that begins before what the store has is cut; one that begins beyond it is left out, since the lines between
    are still to come by another road. A journal that was seen `cut` is counted from its beginning again. What an agent
    `reported` itself, with lines or without, shows that it reaches us.
    """

    key: AttemptKey
    replica: int
    incarnation: int
    progress: Sequence[tuple[int, Progress]]  # (offset behind the line, line)
    progress_to: int
    events: Sequence[tuple[int, JournalEvent]]
    events_to: int
    exit_record: ExitRecord | None
    progress_from: int = 0
    events_from: int = 0
    progress_cut: bool = False
    events_cut: bool = False
    reported: bool = False
    is_part: bool = False  # more lines follow in the journals
    has_broken_exit: bool = False  # there is an exit record that cannot be parsed

    @property
    def has_news(self) -> bool:
        return self.length > 0 or self.exit_record is not None or self.reported

    @property
    def lines(self) -> int:
        return len(self.progress) + len(self.events)

    @property
    def length(self) -> int:
        return self.progress_to - self.progress_from + self.events_to - self.events_from


@dataclass(frozen=True, slots=True)
class JournalOffsets:
    progress: int = 0
    events: int = 0
    exited: bool = False


class JournalStore(Protocol):
    """The store as intake sees it."""

    def offsets(self, keys: Collection[AttemptKey]) -> Mapping[AttemptKey, Mapping[tuple[int, int], JournalOffsets]]:
        """What is stored already of these attempts, by (replica, incarnation); nothing stored: left out."""

    def ingest(self, batches: Sequence[JournalBatch], *, arrived_at: datetime) -> Mapping[int, str]:
        """Store batches in one transaction, each line once however often and by whatever road it comes: progress into
        workers and metrics (the last writer of a step wins), events, snapshots, exit records, as far as domain.bounds
        allows. Returns, by the index of a batch, why it is refused: it is not of a launched replica."""
