"""One pass's reading of run directories, in turns, so that the journals of one job do not delay other jobs.

Each attempt has one turn. An attempt with more to read is heavy: from then on, heavy attempts come last in each pass,
take turns in rotation, and share as much time as the first turns took, at most half a second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import structlog

from orchestrator import rundir
from orchestrator.domain.errors import InvalidSpec
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.jobfolder.folder import JobFolder
from orchestrator.ports.journals import JournalBatch, JournalOffsets, JournalStore

log = structlog.get_logger()

# The length of an attempt's turn, and what each of its replicas adds to it.
_TURN_BYTES, _MORE_BYTES = 1024 * 1024, 8 * 1024
_TURN_LINES, _MORE_LINES = 6000, 50
_PASS_BYTES = 64 * 1024 * 1024  # of all journals; whatever is left waits for the next pass
_HEAVY_S = (0.1, 0.5)  # of each pass, for all heavy attempts: as long as the first turns took, within these limits
_PART_ATTEMPTS = 250
_PART_BYTES = 2 * 1024 * 1024  # of journals in one transaction: PostgreSQL aborts one that idles for seconds
_TOO_MUCH = "there was more to read than one pass has time for"

Offsets = Mapping[tuple[int, int], JournalOffsets]


@dataclass(slots=True)
class _Course:
    """One reading through an attempt's replicas. `goes_on`: some journal may have more lines than were read."""

    news: Iterator[JournalBatch]
    goes_on: bool = False


class Reading:
    """`store` takes batches and returns why each is refused. `between` is called after that, and ends the reading by
    raising."""

    def __init__(
        self,
        journals: JournalStore,
        folder: Callable[[str], JobFolder],
        store: Callable[[Sequence[JournalBatch]], Sequence[Exception | None]],
        between: Callable[[], None],
        monotonic: Callable[[], float],
    ) -> None:
        self.unread: dict[AttemptKey, str] = {}  # and why
        self.behind: list[AttemptKey] = []  # the unread ones that had no turn
        self.broken: set[tuple[AttemptKey, int, int]] = set()  # lives whose broken exit record was already reported
        self.heavy: list[AttemptKey] = []  # attempts with more to read; the one that has waited longest is first
        self._journals = journals
        self._folder = folder
        self._launched: Mapping[AttemptKey, int] = {}
        self._store = store
        self._between = between
        self._monotonic = monotonic
        self._begun: dict[AttemptKey, _Course] = {}  # interrupted by the end of a turn
        self._part: dict[AttemptKey, list[JournalBatch]] = {}
        self._part_bytes = 0
        self._room = _PASS_BYTES

    def read(
        self, launched: Mapping[AttemptKey, int], light: Sequence[AttemptKey], heavy: Sequence[AttemptKey]
    ) -> None:
        """Store what the attempts' run directories hold beyond the store. Raises StoreUnavailable.

        `launched`: how many replicas each attempt has. `heavy`: the attempts that were heavy after the last pass.
        """
        self._launched = launched
        began = self._monotonic()
        going_on = self._visit(light)
        self._store_part()
        least, most = _HEAVY_S
        self._share_time(deque([*heavy, *going_on]), min(most, max(least, self._monotonic() - began)))

    def _visit(self, light: Sequence[AttemptKey]) -> list[AttemptKey]:
        """Give each attempt one turn; returns those with more to read."""
        offsets = self._journals.offsets(light)
        going_on = []
        for key in light:
            if self._room <= 0:
                self.behind.append(key)
                self.unread[key] = _TOO_MUCH
            elif self._has_more_after_turn(key, offsets.get(key, {})):
                going_on.append(key)
        return going_on

    def _share_time(self, waiting: deque[AttemptKey], seconds: float) -> None:
        """Give turns in rotation, and store after each, until the time is used up. At least one turn is given."""
        deadline = self._monotonic() + seconds
        while waiting:
            key = waiting.popleft()
            if self._has_more_after_turn(key, self._journals.offsets([key]).get(key, {})):
                waiting.append(key)
            self._store_part()
            if self._room <= 0 or self._monotonic() >= deadline:
                break
        self.heavy = [key for key in waiting if key not in self.unread]
        self.unread |= dict.fromkeys(self.heavy, _TOO_MUCH)

    def _has_more_after_turn(self, key: AttemptKey, offsets: Offsets) -> bool:
        """Continue where the last turn ended, or begin again after what is stored."""
        begun = self._begun.pop(key, None)
        if begun is not None and self._take_turn(key, begun):
            return self._has_more(key, begun)
        afresh = _Course(self._read_news(key, offsets))
        self._take_turn(key, afresh)
        return self._has_more(key, afresh)

    def _has_more(self, key: AttemptKey, course: _Course) -> bool:
        return key in self._begun or (course.goes_on and key not in self.unread)

    def _take_turn(self, key: AttemptKey, course: _Course) -> int:
        """Read until the turn ends; returns how many bytes were read."""
        taken = lines = 0
        replicas = self._launched[key]
        while taken < _TURN_BYTES + replicas * _MORE_BYTES and lines < _TURN_LINES + replicas * _MORE_LINES:
            batch = self._next(key, course)
            if batch is None:
                return taken
            self._take(batch)
            course.goes_on |= batch.is_part
            taken, lines = taken + batch.length, lines + batch.lines
        self._begun[key] = course
        return taken

    def _read_news(self, key: AttemptKey, offsets: Offsets) -> Iterator[JournalBatch]:
        """A generator, so that an error in opening the folder is raised by `_next`."""
        yield from rundir.read_news(self._folder(key.job_id), key, self._launched[key], offsets)

    def _next(self, key: AttemptKey, course: _Course) -> JournalBatch | None:
        try:
            return next(course.news, None)
        except Exception as error:
            # An edge: one job's files must not stop the supervision of others.
            log.exception("run directory cannot be read", attempt=str(key))
            self.unread[key] = str(error)
            return None

    def _take(self, batch: JournalBatch) -> None:
        if batch.has_broken_exit:
            life = (batch.key, batch.replica, batch.incarnation)
            if life in self.broken and not batch.has_news:
                return
            self.broken.add(life)
        self._part.setdefault(batch.key, []).append(batch)
        self._part_bytes += batch.length
        self._room -= batch.length
        if len(self._part) >= _PART_ATTEMPTS or self._part_bytes >= _PART_BYTES:
            self._store_part()

    def _store_part(self) -> None:
        part, self._part, self._part_bytes = self._part, {}, 0
        batches = [batch for of_attempt in part.values() for batch in of_attempt]
        if not batches:
            return
        for batch, refusal in zip(batches, self._store(batches), strict=True):
            if refusal is not None and not isinstance(refusal, InvalidSpec):
                log.error("journals cannot be stored", attempt=str(batch.key), exc_info=refusal)
                self.unread[batch.key] = str(refusal)
        self._between()
