"""What the agents of a simulated attempt tell: the batches that a reader of their journals would have read.

Replica 0 speaks for the group; the others only where a rank differs from the rest, and at the end. Of the steps, one
line per stretch is told and not each, so that deadlines are not learned here: the jobs of a rehearsal state theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.ports.journals import JournalBatch
from orchestrator.simulator.rehearsal.agenda import moment
from trainer.contract.clock import render_time
from trainer.contract.exit_record import EventKind, ExitRecord, JournalEvent, Outcome
from trainer.contract.failure import Failure
from trainer.contract.progress import Phase, Progress


@dataclass(slots=True)
class _Journal:
    """Of one replica: what is not yet told, and how many lines were. A line's number serves as its offset."""

    lines: list[Progress] = field(default_factory=list)
    events: list[JournalEvent] = field(default_factory=list)
    exit_record: ExitRecord | None = None
    lines_told: int = 0
    events_told: int = 0


class Books:
    def __init__(self, key: AttemptKey) -> None:
        self._key = key
        self._journals: dict[int, _Journal] = {}

    def journal(self, at_us: int, kind: EventKind, generation: int, **evidence: object) -> None:
        event = JournalEvent(
            at=_time(at_us), kind=kind.value, sentence=kind.value, generation=generation, evidence=evidence
        )
        self._of(0).events.append(event)

    def tell(
        self,
        at_us: int,
        phase: Phase,
        generation: int,
        *,
        step: int,
        step_s: float,
        world_size: int,
        rank: int = 0,
        replica: int = 0,
    ) -> None:
        line = Progress(
            at=_time(at_us),
            rank=rank,
            local_rank=0,
            world_size=world_size,
            generation=generation,
            pid=4711,
            phase=phase,
            step=step,
            metrics={"step_s": step_s},
        )
        self._of(replica).lines.append(line)

    def leave(
        self,
        at_us: int,
        outcome: Outcome,
        generation: int,
        replicas: Iterable[int],
        failure: Failure | None = None,
        restarts: int = 0,
    ) -> None:
        """The exit records of these replicas."""
        at = _time(at_us)
        record = ExitRecord(outcome=outcome, at=at, generation=generation, restarts=restarts, failure=failure)
        for replica in replicas:
            self._of(replica).exit_record = record

    def news(self) -> Iterator[JournalBatch]:
        """What was not told before; then it is."""
        for replica, journal in self._journals.items():
            if not (journal.lines or journal.events or journal.exit_record):
                continue
            lines_to, events_to = journal.lines_told + len(journal.lines), journal.events_told + len(journal.events)
            yield JournalBatch(
                key=self._key,
                replica=replica,
                incarnation=1,
                progress=list(enumerate(journal.lines, journal.lines_told + 1)),
                progress_to=lines_to,
                events=list(enumerate(journal.events, journal.events_told + 1)),
                events_to=events_to,
                exit_record=journal.exit_record,
                progress_from=journal.lines_told,
                events_from=journal.events_told,
            )
            self._journals[replica] = _Journal(lines_told=lines_to, events_told=events_to)

    def _of(self, replica: int) -> _Journal:
        return self._journals.setdefault(replica, _Journal())


def _time(at_us: int) -> str:
    return render_time(moment(at_us))
