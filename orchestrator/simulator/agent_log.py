"""The journals of a simulated attempt, read in batches like real journals."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.ports.journals import JournalBatch
from trainer.contract.exit_record import ExitRecord, JournalEvent
from trainer.contract.progress import Progress


@dataclass(slots=True)
class _Journals:
    """One replica's unread lines, and how many were read. A line's number serves as its offset."""

    progress: list[Progress] = field(default_factory=list)
    events: list[JournalEvent] = field(default_factory=list)
    exit_record: ExitRecord | None = None
    progress_read: int = 0
    events_read: int = 0


class AgentLog:
    """Replica 0 reports for the group. Others report only the start of their agents in an elastic group, a rank that
    differs from the rest, and the end."""

    def __init__(self, key: AttemptKey) -> None:
        self._key = key
        self._journals: dict[int, _Journals] = {}

    def add_event(self, event: JournalEvent, *, replicas: Iterable[int] = (0,)) -> None:
        for replica in replicas:
            self._of(replica).events.append(event)

    def add_progress(self, line: Progress, *, replica: int) -> None:
        self._of(replica).progress.append(line)

    def add_exit(self, record: ExitRecord, *, replicas: Iterable[int]) -> None:
        for replica in replicas:
            self._of(replica).exit_record = record

    def read(self) -> list[JournalBatch]:
        """Return the lines since the last call."""
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
