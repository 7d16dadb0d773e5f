"""Divide the time of a restart into parts, by the journals of the agent and of the bundled trainer's rank 0.

Every part ends with a line of a journal.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.contract.clock import parse_time
from trainer.contract.exit_record import EventKind, JournalEvent, parse_journal_event
from trainer.contract.progress import Phase, Progress, parse_progress


@dataclass(frozen=True, kw_only=True, slots=True)
class Kill:
    """When a worker was killed, in seconds of the wall clock, and pid and generation of rank 0 after the restart."""

    at_s: float
    first: tuple[int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """Seconds from a kill to rank 0's next step, in parts that follow each other."""

    notice_s: float | None  # until the agent noticed; None: the launcher has no journal, and the next part includes it
    process_s: float  # until rank 0 ran the trainer: in a new process, or again
    verify_s: float  # choosing and verifying the snapshot
    device_s: float  # starting CUDA, and forming the group
    load_s: float  # building the model, and reading the snapshot into it
    first_step_s: float


PARTS = {
    "notice_s": "noticed",
    "process_s": "process",
    "verify_s": "snapshot verified",
    "device_s": "device and group",
    "load_s": "loaded",
    "first_step_s": "first step",
}
# The parts after the first two begin with these lines of rank 0: each is the first such line after the previous one.
_MARKS = (
    (Phase.DATA, False),
    (Phase.START, False),
    (Phase.RESTORE, False),
    (Phase.STEP, False),
    (Phase.STEP, True),
)


def split_restart(kill: Kill, lines: Iterable[Progress], events: Iterable[JournalEvent]) -> Split | None:
    """None if a line is missing: the process died before it, or it is another program."""
    own = iter([line for line in lines if (line.pid, line.generation) == kill.first])
    marks_s: list[float] = []
    for phase, is_numbered in _MARKS:
        found = next((line for line in own if line.phase is phase and (line.step is not None) == is_numbered), None)
        if found is None:
            return None
        marks_s.append(_seconds(found.at))
    failures_s = (_seconds(event.at) for event in events if event.kind == EventKind.WORKER_FAILED.value)
    noticed_s = next((at_s for at_s in failures_s if kill.at_s <= at_s <= marks_s[0]), None)
    begun_s, chosen_s, joined_s, loaded_s, stepped_s = marks_s
    return Split(
        notice_s=None if noticed_s is None else noticed_s - kill.at_s,
        process_s=begun_s - (kill.at_s if noticed_s is None else noticed_s),
        verify_s=chosen_s - begun_s,
        device_s=joined_s - chosen_s,
        load_s=loaded_s - joined_s,
        first_step_s=stepped_s - loaded_s,
    )


def split_all(kills: Iterable[Kill], progress: Path, events: Path) -> list[Split]:
    """The parts of each kill that has all of its lines."""
    lines = [parse_progress(document) for document in read_lines(progress)]
    reported = [parse_journal_event(document) for document in read_lines(events)]
    splits = (split_restart(kill, lines, reported) for kill in kills)
    return [split for split in splits if split is not None]


def summarize(splits: Sequence[Split]) -> dict[str, float | int | None]:
    """The median of each part, and the number of kills."""
    medians: dict[str, float | int | None] = {"kills": len(splits)}
    for part in PARTS:
        known = [seconds for split in splits if (seconds := getattr(split, part)) is not None]
        medians[part] = round(statistics.median(known), 4) if known else None
    return medians


def read_lines(path: Path) -> Iterator[dict[str, object]]:
    """Complete lines: the last one may be torn."""
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            yield json.loads(line)
        except ValueError:
            continue


def _seconds(at: str) -> float:
    return parse_time(at).timestamp()
