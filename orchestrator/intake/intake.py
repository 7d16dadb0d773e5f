"""Take in what agents report. Reports over HTTP and journals in run directories are stored by the same call."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from operator import attrgetter

from orchestrator import rundir
from orchestrator.domain.errors import FieldProblem, InvalidSpec, NotFound, StoreUnavailable
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.job.masking import Mask
from orchestrator.domain.job.requests import desired_of_attempt
from orchestrator.intake.reading import Offsets, Reading
from orchestrator.intake.watches import Watches
from orchestrator.jobfolder.folder import JobFolder
from orchestrator.ports.clock import Clock
from orchestrator.ports.jobs import JobLookup, Requested
from orchestrator.ports.journals import JournalBatch, JournalStore
from orchestrator.wire.reports import DesiredView, ReportBody
from trainer.contract.exit_record import ExitRecord, parse_exit_record
from trainer.contract.launch import render_desired

Masks = Callable[[Collection[str]], Mapping[str, Mask]]


def _no_secrets(_: Collection[str]) -> Mapping[str, Mask]:
    return {}


class Intake:
    """`masks` returns, by job, the mask that hides the project's secrets before anything is stored.

    `between` is called several times in a long `collect`. If it raises, `collect` ends with that error. Without
    `watches`, each `collect` reads the journals of all attempts.
    """

    def __init__(
        self,
        journals: JournalStore,
        jobs: JobLookup,
        clock: Clock,
        folder: Callable[[str], JobFolder],
        *,
        masks: Masks = _no_secrets,
        between: Callable[[], None] = lambda: None,
        watches: Watches | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._journals = journals
        self._jobs = jobs
        self._clock = clock
        self._folder = folder
        self._masks = masks
        self._between = between
        self._watches = watches
        self._monotonic = monotonic
        self._behind: Sequence[AttemptKey] = ()
        self._heavy: Sequence[AttemptKey] = ()
        self._broken: set[tuple[AttemptKey, int, int]] = set()
        self._known: dict[AttemptKey, Offsets] = {}  # a hint: how far the journals that grow were read

    def collect(self, launched: Mapping[AttemptKey, int], must_read: Set[AttemptKey]) -> dict[AttemptKey, str]:
        """Store what is new in the attempts' run directories. Returns the reason for each that was not read fully.

        Reads the attempts whose files may have changed, and the `must_read` in any case. What one pass cannot finish is
        left to the next one, which begins with the attempts that had no turn, and ends with those that had more to
        read. Raises StoreUnavailable.
        """
        reading = Reading(self._journals, self._folder, self._store, self._between, self._monotonic)
        changed = launched.keys() if self._watches is None else self._watches.changed(launched.keys()) | must_read
        heavy = {key: None for key in self._heavy if key in launched}
        first = {key: None for key in self._behind if key in launched}
        # Sorted by id, as the tables are, so that a transaction writes few pages.
        ordered = sorted((key for key in launched if key in changed), key=attrgetter("job_id"))
        light = [key for key in first | dict.fromkeys(ordered) if key not in heavy]
        reading.broken = {one for one in self._broken if one[0] in launched}
        if len(self._known) > len(launched):
            self._known = {key: offsets for key, offsets in self._known.items() if key in launched}
        reading.known = self._known
        with self._watched(launched, light, must_read, reading):
            growing = set(reading.grown)
            reading.read(launched, light, list(heavy))
        for key in {*light, *heavy} - growing:  # most of them are quiet
            self._known.pop(key, None)
        self._behind, self._heavy, self._broken = reading.behind, reading.heavy, reading.broken
        return reading.unread

    @contextmanager
    def _watched(
        self,
        launched: Mapping[AttemptKey, int],
        light: Sequence[AttemptKey],
        must_read: Set[AttemptKey],
        reading: Reading,
    ) -> Iterator[None]:
        """Watch these attempts from before they are read. Those that are not read to their ends stay changed."""
        if self._watches is None:
            yield
            return
        for key in light:
            grown = None if key in must_read else self._watches.take_grown(key)
            if grown is None:
                self._watches.watch(self._folder(key.job_id), key, launched[key])
            else:
                reading.grown[key] = grown
        unread: Collection[AttemptKey] = light
        try:
            yield
            unread = reading.unread
        finally:
            self._watches.mark_changed(unread)

    def accept(self, bodies: Sequence[ReportBody]) -> list[DesiredView | Exception]:
        """Store reports in one transaction. Returns for each what is desired of its attempt, or why it is refused.

        Idempotent. Raises StoreUnavailable; then none is stored.
        """
        batches = [_batch(body) for body in bodies]
        good = [batch for batch in batches if isinstance(batch, JournalBatch)]
        refusals = iter(self._store(good))
        requested = self._jobs.requested({batch.key.job_id for batch in good})
        return [
            (next(refusals) or _answer(batch.key, requested)) if isinstance(batch, JournalBatch) else batch
            for batch in batches
        ]

    def _store(self, batches: Sequence[JournalBatch]) -> list[Exception | None]:
        """Store batches in one transaction. If one of them fails, store each half by itself, until it is found.

        Returns for each why it is refused, or None. A replica that was not launched is refused with InvalidSpec. Raises
        StoreUnavailable.
        """
        try:
            refused = self._journals.ingest(self._hidden(batches), arrived_at=self._clock.now())
        except StoreUnavailable:
            raise
        except Exception as error:  # noqa: BLE001
            # An edge: one bad batch must not fail the others.
            if len(batches) > 1:
                half = len(batches) // 2
                return [*self._store(batches[:half]), *self._store(batches[half:])]
            return [_unknown(batches[0].key) if isinstance(error, NotFound) else error]
        problems: dict[int, Exception] = {
            place: InvalidSpec([FieldProblem("/replica", why)]) for place, why in refused.items()
        }
        return [problems.get(place) for place in range(len(batches))]

    def _hidden(self, batches: Sequence[JournalBatch]) -> Sequence[JournalBatch]:
        masks = self._masks({batch.key.job_id for batch in batches})
        if not masks:
            return batches
        return [_hide(batch, masks[batch.key.job_id]) if batch.key.job_id in masks else batch for batch in batches]


def _hide(batch: JournalBatch, mask: Mask) -> JournalBatch:
    events = [(offset, mask.hide_in_event(event)) for offset, event in batch.events]
    return batch._replace(events=events, exit_record=mask.hide_in_exit(batch.exit_record))


def _answer(key: AttemptKey, requested: Mapping[str, Requested]) -> DesiredView | NotFound:
    return desired_of(requested[key.job_id], key) if key.job_id in requested else _unknown(key)


def _unknown(key: AttemptKey) -> NotFound:
    return NotFound(f"there is no attempt {key}")


def desired_of(requested: Requested, key: AttemptKey) -> DesiredView:
    """Return what is desired of an attempt of the job."""
    desired, stale = requested.desired, requested.newest is not None and requested.newest != key.number
    stop = stale or requested.stopping or desired.cancelled or desired.suspended
    return DesiredView.model_validate(render_desired(desired_of_attempt(desired, key.number, stop=stop)))


def _batch(body: ReportBody) -> JournalBatch | InvalidSpec:
    try:
        return parse_report(body)
    except InvalidSpec as error:
        return error


def parse_report(body: ReportBody) -> JournalBatch:
    """Parse a report. Raises InvalidSpec if its lines do not end where it says, or for an invalid exit record."""
    return JournalBatch(
        key=AttemptKey(body.job_id, body.attempt),
        replica=body.replica,
        incarnation=body.incarnation,
        progress=rundir.parse_progress_lines(_lines("/progress", body.progress, body.progress_from, body.progress_to)),
        progress_to=body.progress_to,
        events=rundir.parse_event_lines(_lines("/events", body.events, body.events_from, body.events_to)),
        events_to=body.events_to,
        exit_record=_exit_record(body),
        progress_from=body.progress_from,
        events_from=body.events_from,
        reported=True,
    )


def _lines(pointer: str, lines: Sequence[str], start: int, end: int) -> list[rundir.Line]:
    """Return the lines with their offsets. Raises InvalidSpec if they do not end at `end`.

    Without lines, `end` is not checked: the agent skips a line that is too long for a report.
    """
    if not lines:
        return []
    split, reached = rundir.split_lines("\n".join(lines).encode(errors="surrogatepass"), start)
    if reached != end:
        raise InvalidSpec([FieldProblem(pointer, f"the lines end at byte {reached}, {pointer[1:]}_to says {end}")])
    return split


def _exit_record(body: ReportBody) -> ExitRecord | None:
    try:
        return None if body.exit_record is None else parse_exit_record(body.exit_record)
    except rundir.UNREADABLE as error:
        raise InvalidSpec([FieldProblem("/exit_record", str(error))]) from error
