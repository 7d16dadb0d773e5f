"""New lines of journals on their way into the store."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol

from orchestrator.domain.job.attempt import AttemptKey
from trainer.contract.exit_record import ExitRecord, JournalEvent
from trainer.contract.progress import Progress


class JournalBatch(NamedTuple):
    """New lines of one replica's journals. Offsets are bytes. A tuple, because it is built faster (see Progress).

    If the batch overlaps with what is stored, the store takes only the rest. If it starts beyond that, the store skips
    it, because the lines between will arrive another way. A journal that was `cut` is counted from its start again.
    A batch that an agent `reported`, even without lines, shows that the agent reaches the service.
    """

    key: AttemptKey
    replica: int
    incarnation: int
    progress: Sequence[tuple[int, Progress]]  # (offset of the line's end, line)
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
    has_broken_exit: bool = False  # the exit record cannot be parsed

    @property
    def has_news(self) -> bool:
        return self.length > 0 or self.exit_record is not None or self.reported

    @property
    def lines(self) -> int:
        return len(self.progress) + len(self.events)

    @property
    def length(self) -> int:
        return self.progress_to - self.progress_from + self.events_to - self.events_from


class JournalOffsets(NamedTuple):
    progress: int = 0
    events: int = 0
    exited: bool = False


class JournalStore(Protocol):
    """The store as intake sees it."""

    def offsets(self, keys: Collection[AttemptKey]) -> Mapping[AttemptKey, Mapping[tuple[int, int], JournalOffsets]]:
        """Return how much of these attempts is stored, by (replica, incarnation). Attempts without any are left out."""

    def ingest(self, batches: Sequence[JournalBatch], *, arrived_at: datetime) -> Mapping[int, str]:
        """Store batches in one transaction: progress (the last writer of a step wins), events, snapshots, exit records.
        A line is stored once, however often and by whichever way it arrives. Limits apply to what is stored of a job.
        Refuses a batch of a replica that was not launched. Returns the reasons, by the batch's index."""
