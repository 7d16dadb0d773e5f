"""What the agents of one simulated attempt have logged, in the batches in which a reader of real journals sends it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.ports.journals import JournalBatch
from trainer.contract.exit_record import ExitRecord, JournalEvent
from trainer.contract.progress import Progress


@dataclass(slots=True)
class _Journals:
    """Of one replica: the lines that nobody has read yet, and how many were read. A line's number is its offset."""

    progress: list[Progress] = field(default_factory=list)
    events: list[JournalEvent] = field(default_factory=list)
    exit_record: ExitRecord | None = None
    progress_read: int = 0
    events_read: int = 0


class AgentLog:
    """Replica 0 reports for the group; another one only where its rank differs from the rest, and at the end."""

    def __init__(self, key: AttemptKey) -> None:
        self._key = key
        self._journals: dict[int, _Journals] = {}

    def add_event(self, event: JournalEvent) -> None:
        self._of(0).events.append(event)

    def add_progress(self, line: Progress, *, replica: int) -> None:
        self._of(replica).progress.append(line)

    def add_exit(self, record: ExitRecord, *, replicas: Iterable[int]) -> None:
        for replica in replicas:
            self._of(replica).exit_record = record

    def read(self) -> list[JournalBatch]:
        """What was added since the last call."""
        return [self._read(replica) for replica, unread in self._journals.items() if _has_news(unread)]

    def _read(self, replica: int) -> JournalBatch:
        unread = self._journals[replica]
        progress_to = unread.progress_read + len(unread.progress)
        events_to = unread.events_read + len(unread.events)
        self._journals[replica] = _Journals(progress_read=progress_to, events_read=events_to)
        return JournalBatch(
            key=self._key,
            replica=replica,
            incarnation=1,
            progress=list(enumerate(unread.progress, unread.progress_read + 1)),
            progress_from=unread.progress_read,
            progress_to=progress_to,
            events=list(enumerate(unread.events, unread.events_read + 1)),
            events_from=unread.events_read,
            events_to=events_to,
            exit_record=unread.exit_record,
        )

    def _of(self, replica: int) -> _Journals:
        return self._journals.setdefault(replica, _Journals())


def _has_news(journals: _Journals) -> bool:
    return bool(journals.progress or journals.events or journals.exit_record)
