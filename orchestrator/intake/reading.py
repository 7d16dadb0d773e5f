"""One pass's reading of run directories, part by part: also what has piled up in a long outage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import structlog

from orchestrator import rundir
from orchestrator.domain.attempt import AttemptKey
from orchestrator.domain.errors import StoreUnavailable
from orchestrator.jobfolder.folder import JobFolder
from orchestrator.ports.journals import JournalBatch, JournalOffsets, JournalStore

log = structlog.get_logger()

_MOST_READINGS = 8  # of one attempt in one pass: its neighbours wait
_PART_ATTEMPTS = 250
_PART_BYTES = 8 * 1024 * 1024  # of journals in memory, and in one transaction
_PASS_BYTES = 64 * 1024 * 1024  # seconds of work; then the jobs are looked at, whatever is left
_TOO_MUCH = "there was more to read than one pass has time for"

News = Mapping[AttemptKey, Sequence[JournalBatch]]


class Reading:
    """`store` takes batches in one transaction. `between` is called after each, and ends the reading by raising."""

    def __init__(
        self,
        journals: JournalStore,
        folder: Callable[[str], JobFolder],
        store: Callable[[Sequence[JournalBatch]], object],
        between: Callable[[], None],
    ) -> None:
        self.unread: dict[AttemptKey, str] = {}  # and why
        self.behind: list[AttemptKey] = []  # those of them that the pass did not come to
        self._journals = journals
        self._folder = folder
        self._store = store
        self._between = between
        self._part: dict[AttemptKey, list[JournalBatch]] = {}
        self._part_bytes = 0
        self._room = _PASS_BYTES

    def read(self, launched: Mapping[AttemptKey, int]) -> None:
        """Take in what the run directories of the attempts, each with its number of replicas, hold beyond the store.
        Raises StoreUnavailable."""
        for _ in range(_MOST_READINGS):
            launched = self._read_once(launched)
            if not launched:
                break

    def _read_once(self, launched: Mapping[AttemptKey, int]) -> dict[AttemptKey, int]:
        """Take in a part of each journal; returns the attempts of which one goes on."""
        offsets = self._journals.offsets(launched)
        going_on = set()
        for batch in self._news(launched, offsets):
            self._take(batch)
            if rundir.goes_on(batch):
                going_on.add(batch.key)
        self._store_part()
        return {key: launched[key] for key in launched if key in going_on and key not in self.unread}

    def _news(
        self, launched: Mapping[AttemptKey, int], offsets: Mapping[AttemptKey, Mapping[tuple[int, int], JournalOffsets]]
    ) -> Iterator[JournalBatch]:
        for key, replicas in launched.items():
            if self._room <= 0:
                self.behind.append(key)
                self.unread[key] = _TOO_MUCH
                continue
            try:
                for batch in rundir.read_news(self._folder(key.job_id), key, replicas, offsets.get(key, {})):
                    yield batch
                    if self._room <= 0:
                        self.unread[key] = _TOO_MUCH
                        break
            except Exception as error:
                # An edge: whatever one job's files hold, its neighbours are supervised.
                log.exception("run directory cannot be read", attempt=str(key))
                self.unread[key] = str(error)

    def _take(self, batch: JournalBatch) -> None:
        self._part.setdefault(batch.key, []).append(batch)
        self._part_bytes += batch.length
        self._room -= batch.length
        if len(self._part) >= _PART_ATTEMPTS or self._part_bytes >= _PART_BYTES:
            self._store_part()

    def _store_part(self) -> None:
        part, self._part, self._part_bytes = self._part, {}, 0
        if part:
            self._store_together(part)
            self._between()

    def _store_together(self, news: News) -> None:
        """Many attempts in one transaction; where one of them spoils it, each in its own."""
        try:
            self._store([batch for batches in news.values() for batch in batches])
        except StoreUnavailable:
            raise
        except Exception as error:
            if len(news) > 1:
                for key, batches in news.items():
                    self._store_together({key: batches})
                return
            for key in news:
                log.exception("journals cannot be stored", attempt=str(key))
                self.unread[key] = str(error)
