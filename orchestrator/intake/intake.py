"""One door for what agents tell: reports over HTTP and journals read from the run directory end in the same call."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import structlog

from orchestrator import rundir
from orchestrator.domain.attempt import AttemptKey
from orchestrator.domain.errors import FieldProblem, InvalidSpec, NotFound, StoreUnavailable
from orchestrator.domain.masking import Mask
from orchestrator.domain.wish import desired_of_attempt
from orchestrator.ports.clock import Clock
from orchestrator.ports.jobs import JobReader, Wished
from orchestrator.ports.journals import JournalBatch, JournalStore
from orchestrator.wire.reports import DesiredView, ReportBody
from trainer.contract.exit_record import ExitRecord, parse_exit_record
from trainer.contract.launch import render_desired

log = structlog.get_logger()

News = Sequence[JournalBatch]

_MOST_READINGS = 8  # of one attempt in one pass: its neighbours wait
_IN_ONE_GO = 250  # attempts in one transaction


Masks = Callable[[Collection[str]], Mapping[str, Mask]]


def _no_secrets(_: Collection[str]) -> Mapping[str, Mask]:
    return {}


class Intake:
    """`masks`: by job, what hides the secrets of its project; what agents tell is stored without them."""

    def __init__(
        self,
        journals: JournalStore,
        jobs: JobReader,
        clock: Clock,
        job_dir: Callable[[str], Path],
        *,
        masks: Masks = _no_secrets,
    ) -> None:
        self._journals = journals
        self._jobs = jobs
        self._clock = clock
        self._job_dir = job_dir
        self._masks = masks

    def collect(self, keys: Collection[AttemptKey]) -> dict[AttemptKey, str]:
        """Read what the attempts' run directories hold beyond the store; of those that cannot be read, says why.

        A journal longer than a few readings is finished by the next calls. Raises StoreUnavailable.
        """
        unread: dict[AttemptKey, str] = {}
        left: Collection[AttemptKey] = keys
        for _ in range(_MOST_READINGS):
            news = self._read(left, unread)
            if not news:
                break
            found = list(news.items())
            for start in range(0, len(found), _IN_ONE_GO):
                self._store(dict(found[start : start + _IN_ONE_GO]), unread)
            left = [key for key, batches in news.items() if key not in unread and any(map(rundir.goes_on, batches))]
        return unread

    def _read(self, keys: Collection[AttemptKey], unread: dict[AttemptKey, str]) -> dict[AttemptKey, News]:
        """New lines by attempt; an attempt without any is left out."""
        offsets = self._journals.offsets(keys)
        found: dict[AttemptKey, News] = {}
        for key in keys:
            try:
                batches = list(rundir.read_news(self._job_dir(key.job_id), key, offsets.get(key, {})))
            except Exception as error:
                # An edge: whatever one job's files hold, its neighbours are supervised.
                log.exception("run directory cannot be read", attempt=str(key))
                unread[key] = str(error)
                continue
            if batches:
                found[key] = batches
        return found

    def _store(self, news: Mapping[AttemptKey, News], unread: dict[AttemptKey, str]) -> None:
        """Many attempts in one transaction; where one of them spoils it, each in its own."""
        try:
            together = [batch for batches in news.values() for batch in batches]
            self._journals.ingest(self._hidden(together), arrived_at=self._clock.now())
        except StoreUnavailable:
            raise
        except Exception as error:
            if len(news) > 1:
                for key, batches in news.items():
                    self._store({key: batches}, unread)
                return
            for key in news:
                log.exception("journals cannot be stored", attempt=str(key))
                unread[key] = str(error)

    def accept(self, bodies: Sequence[ReportBody]) -> list[DesiredView | NotFound | InvalidSpec]:
        """Take reports in one transaction; of each, what is desired of its attempt, or why it is refused.

        Idempotent. Raises StoreUnavailable, and then none is stored.
        """
        batches = [_batch(body) for body in bodies]
        good = [batch for batch in batches if isinstance(batch, JournalBatch)]
        unknown = self._ingest(good)
        wished = self._jobs.wished({batch.key.job_id for batch in good})
        answers: list[DesiredView | NotFound | InvalidSpec] = []
        for batch in batches:
            if not isinstance(batch, JournalBatch):
                answers.append(batch)
            elif batch.key in unknown or batch.key.job_id not in wished:
                answers.append(NotFound(f"there is no attempt {batch.key}"))
            else:
                answers.append(desired_of(wished[batch.key.job_id], batch.key))
        return answers

    def _ingest(self, batches: Sequence[JournalBatch]) -> set[AttemptKey]:
        """Store what belongs to an attempt that exists; returns the others."""
        try:
            self._journals.ingest(self._hidden(batches), arrived_at=self._clock.now())
        except NotFound:
            if len(batches) == 1:
                return {batches[0].key}
            return {key for batch in batches for key in self._ingest([batch])}
        return set()

    def _hidden(self, batches: Sequence[JournalBatch]) -> Sequence[JournalBatch]:
        masks = self._masks({batch.key.job_id for batch in batches})
        if not masks:
            return batches
        return [_hide(batch, masks[batch.key.job_id]) if batch.key.job_id in masks else batch for batch in batches]


def _hide(batch: JournalBatch, mask: Mask) -> JournalBatch:
    events = [(offset, mask.hide_in_event(event)) for offset, event in batch.events]
    return replace(batch, events=events, exit_record=mask.hide_in_exit(batch.exit_record))


def desired_of(wished: Wished, key: AttemptKey) -> DesiredView:
    """What is wished of this attempt of the job."""
    desired, stale = wished.desired, wished.newest is not None and wished.newest != key.number
    stop = stale or wished.stopping or desired.cancelled or desired.suspended
    return DesiredView.model_validate(render_desired(desired_of_attempt(desired, key.number, stop=stop)))


def _batch(body: ReportBody) -> JournalBatch | InvalidSpec:
    try:
        return _parse_batch(body)
    except InvalidSpec as error:
        return error


def _parse_batch(body: ReportBody) -> JournalBatch:
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
    """Lines with their offsets. Raises InvalidSpec when lines and offsets contradict each other."""
    text = "\n".join(lines).encode(errors="surrogatepass")
    split, reached = rundir.split_lines(text, start) if lines else ([], start)
    if reached != end:
        raise InvalidSpec([FieldProblem(pointer, f"the lines end at byte {reached}, {pointer[1:]}_to says {end}")])
    return split


def _exit_record(body: ReportBody) -> ExitRecord | None:
    try:
        return None if body.exit_record is None else parse_exit_record(body.exit_record)
    except rundir.UNREADABLE as error:
        raise InvalidSpec([FieldProblem("/exit_record", str(error))]) from error
