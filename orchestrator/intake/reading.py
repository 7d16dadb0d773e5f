"""Read the journals in run directories, in turns, so that one job's journals do not delay other jobs.

In each pass, each attempt has one turn, unless the pass has read its limit of bytes. An attempt with more to read is
heavy. Heavy attempts come last and take turns in rotation, for as long as the other turns took, but at least 0.1 s and
at most 0.5 s.
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
from orchestrator.rundir import Grown, IncarnationKey

log = structlog.get_logger()

# The length of an attempt's turn, and what each of its replicas adds to it.
_TURN_BYTES, _MORE_BYTES = 1024 * 1024, 8 * 1024
_TURN_LINES, _MORE_LINES = 6000, 50
_PASS_BYTES = 64 * 1024 * 1024  # read from all journals in a pass; the rest waits for the next pass
_HEAVY_S = (0.1, 0.5)  # limits of the time for all heavy attempts in a pass
_PART_ATTEMPTS = 250
_PART_BYTES = 2 * 1024 * 1024  # stored in one transaction, which PostgreSQL ends if it idles for seconds
_TOO_MUCH = "there was more to read than fits into one pass"

Offsets = dict[IncarnationKey, JournalOffsets]


@dataclass(slots=True)
class _Course:
    """One reading of all journals of an attempt."""

    batches: Iterator[JournalBatch]
    has_more: bool = False  # some journal may have more lines than were read


class Reading:
    """`store` stores batches and returns for each why it is refused, or None.

    `between` is called after each `store`, and may end the reading by raising.
    """

    def __init__(
        self,
        journals: JournalStore,
        folder: Callable[[str], JobFolder],
        store: Callable[[Sequence[JournalBatch]], Sequence[Exception | None]],
        between: Callable[[], None],
        monotonic: Callable[[], float],
    ) -> None:
        self.unread: dict[AttemptKey, str] = {}  # attempts that were not read fully, and why
        self.behind: list[AttemptKey] = []  # attempts that had no turn
        self.broken: set[tuple[AttemptKey, int, int]] = set()  # incarnations whose broken exit record was reported
        self.grown: dict[AttemptKey, Grown] = {}  # the attempts in which only these journals have changed
        self.heavy: list[AttemptKey] = []  # attempts with more to read; the one that has waited longest is first
        self.known: dict[AttemptKey, Offsets] = {}  # how far journals were read; those that grow are read on from there
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
        """Store what is new in the attempts' run directories. Raises StoreUnavailable.

        `launched` has the number of replicas of each attempt. `heavy` attempts had more to read in the last pass.
        """
        self._launched = launched
        began = self._monotonic()
        unfinished = self._visit(light)
        self._store_part()
        least, most = _HEAVY_S
        self._share_time(deque([*heavy, *unfinished]), min(most, max(least, self._monotonic() - began)))

    def _visit(self, light: Sequence[AttemptKey]) -> list[AttemptKey]:
        """Give each attempt one turn. Returns those with more to read."""
        self._look_up([key for key in light if key not in self.grown or key not in self.known])
        unfinished = []
        for key in light:
            if self._room <= 0:
                self.behind.append(key)
                self.unread[key] = _TOO_MUCH
            elif self._give_turn(key):
                unfinished.append(key)
        return unfinished

    def _look_up(self, keys: Sequence[AttemptKey]) -> None:
        offsets = self._journals.offsets(keys)
        self.known.update((key, dict(offsets.get(key, {}))) for key in keys)

    def _share_time(self, waiting: deque[AttemptKey], seconds: float) -> None:
        """Give turns in rotation, and store after each, until the time is used up. Gives at least one turn."""
        deadline = self._monotonic() + seconds
        while waiting:
            key = waiting.popleft()
            self._look_up([key])
            if self._give_turn(key):
                waiting.append(key)
            self._store_part()
            if self._room <= 0 or self._monotonic() >= deadline:
                break
        self.heavy = [key for key in waiting if key not in self.unread]
        self.unread |= dict.fromkeys(self.heavy, _TOO_MUCH)

    def _give_turn(self, key: AttemptKey) -> bool:
        """Give one turn, which continues where the last one ended, or starts after what is stored.

        Returns whether there is more to read.
        """
        begun = self._begun.pop(key, None)
        if begun is not None and self._take_turn(key, begun):
            return self._has_more(key, begun)
        replicas, grown = self._launched[key], self.grown.pop(key, None)
        afresh = _Course(rundir.read_news(self._folder(key.job_id), key, replicas, self.known[key], grown))
        self._take_turn(key, afresh)
        return self._has_more(key, afresh)

    def _has_more(self, key: AttemptKey, course: _Course) -> bool:
        return key in self._begun or (course.has_more and key not in self.unread)

    def _take_turn(self, key: AttemptKey, course: _Course) -> int:
        """Read until the turn ends. Returns how many bytes were read."""
        taken = lines = 0
        replicas = self._launched[key]
        while taken < _TURN_BYTES + replicas * _MORE_BYTES and lines < _TURN_LINES + replicas * _MORE_LINES:
            batch = self._next(key, course)
            if batch is None:
                return taken
            self._take(batch)
            course.has_more |= batch.is_part
            taken, lines = taken + batch.length, lines + batch.lines
        self._begun[key] = course
        return taken

    def _next(self, key: AttemptKey, course: _Course) -> JournalBatch | None:
        try:
            return next(course.batches, None)
        except Exception as error:
            # An edge: one job's files must not stop the supervision of other jobs.
            log.exception("run directory cannot be read", attempt=str(key))
            self.unread[key] = str(error)
            return None

    def _take(self, batch: JournalBatch) -> None:
        if batch.has_broken_exit:
            incarnation = (batch.key, batch.replica, batch.incarnation)
            if incarnation in self.broken and not batch.has_news:
                return
            self.broken.add(incarnation)
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
            if refusal is None:
                place = (batch.replica, batch.incarnation)
                self.known[batch.key][place] = JournalOffsets(batch.progress_to, batch.events_to)
            elif not isinstance(refusal, InvalidSpec):
                log.error("journals cannot be stored", attempt=str(batch.key), exc_info=refusal)
                self.unread[batch.key] = str(refusal)
        self._between()
