"""One door for what agents tell: reports over HTTP and journals read from the run directory end in the same call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from orchestrator import rundir
from orchestrator.domain.attempt import AttemptKey
from orchestrator.domain.errors import FieldProblem, InvalidSpec
from orchestrator.ports import Clock, JobReader, JournalBatch, JournalStore
from orchestrator.wire import DesiredView, ReportBody
from trainer.contract.exit_record import ExitRecord, parse_exit_record

_MOST_READINGS = 8  # of one attempt in one pass: its neighbours wait


class Intake:
    def __init__(self, journals: JournalStore, jobs: JobReader, clock: Clock, job_dir: Callable[[str], Path]) -> None:
        self._journals = journals
        self._jobs = jobs
        self._clock = clock
        self._job_dir = job_dir

    def collect(self, key: AttemptKey) -> bool:
        """Read what the attempt's run directory holds beyond the store; returns whether there was anything.

        A journal longer than a few readings is finished by the next calls. Raises OSError, StoreUnavailable.
        """
        for reading in range(_MOST_READINGS):
            batches = list(rundir.read_news(self._job_dir(key.job_id), key, self._journals.offsets(key)))
            if not batches:
                return reading > 0
            self._journals.ingest(batches, arrived_at=self._clock.now())
        return True

    def accept(self, body: ReportBody) -> DesiredView:
        """Take a report and answer what is desired of the attempt. Idempotent. Raises NotFound, InvalidSpec."""
        key = AttemptKey(body.job_id, body.attempt)
        self._journals.ingest([_batch(key, body)], arrived_at=self._clock.now())
        standing = self._jobs.standing(body.job_id)
        stale = standing.attempt is not None and standing.attempt.key != key
        stopping = standing.attempt is not None and standing.attempt.stopping_since is not None
        return DesiredView(state="stop" if stale or stopping or standing.job.desired.cancelled else "run")


def _batch(key: AttemptKey, body: ReportBody) -> JournalBatch:
    return JournalBatch(
        key=key,
        replica=body.replica,
        incarnation=body.incarnation,
        progress=rundir.parse_progress_lines(_lines("/progress", body.progress, body.progress_from, body.progress_to)),
        progress_to=body.progress_to,
        events=rundir.parse_event_lines(_lines("/events", body.events, body.events_from, body.events_to)),
        events_to=body.events_to,
        exit_record=_exit_record(body),
        progress_from=body.progress_from,
        events_from=body.events_from,
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
