"""Read the samples of ranks from a job's folder. The job may write anything there, so little of it is read.

Of several attempts, the newest are read first. A line that is not a sample is dropped. So is a sample from outside the
attempt's lifetime.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from orchestrator import rundir
from orchestrator.domain.job.attempt import Attempt
from orchestrator.domain.observation.rank_series import ReplicaSample
from orchestrator.jobfolder.folder import JobFolder
from trainer.contract import layout
from trainer.contract.clock import parse_time
from trainer.contract.resource_sample import LINE_BYTES, Sample, parse_sample

MOST_ATTEMPTS, MOST_FILES = 16, 128
_ALL_BYTES = 2 * 1024 * 1024
_MOST_VALUES = 200_000  # in all samples together, counted by their commas: half a second's work
_FILE_BYTES, _LEAST_FILE_BYTES = 1024 * 1024, 16 * 1024  # of one file: the files of many replicas share _ALL_BYTES
_OLDER = ".1"  # of a pod's output, when the service rotates it
_SKEW = timedelta(hours=1)  # of a node's clock
_MOST_RANKS_OF_A_REPLICA = 64


@dataclass(frozen=True, slots=True)
class SamplesRead:
    """`partial`: there are more attempts or replicas than were read."""

    taken: Sequence[ReplicaSample]
    partial: bool


def read_samples(job: JobFolder, attempts: Sequence[Attempt], now: datetime) -> SamplesRead:
    """Read the samples of attempts, the newest attempt first. Raises OSError."""
    recent = attempts[:MOST_ATTEMPTS]
    size = min(_FILE_BYTES, max(_LEAST_FILE_BYTES, _ALL_BYTES // max(1, sum(each.max_nodes for each in recent))))
    taken: list[ReplicaSample] = []
    files, room = 0, _MOST_VALUES
    for attempt in recent:
        with rundir.open_attempt(job, attempt.key.number) as folder:
            for incarnation in rundir.incarnations(folder, range(min(attempt.max_nodes, MOST_FILES))):
                if files == MOST_FILES or room <= 0:
                    return SamplesRead(taken, partial=True)
                lines = _newest_within(_read_lines(incarnation, size), room)
                files, room = files + 1, room - sum(map(_count_values, lines))
                taken += _select(lines, attempt, now)
    has_more = len(attempts) > MOST_ATTEMPTS or any(each.max_nodes > MOST_FILES for each in recent)
    return SamplesRead(taken, partial=has_more)


def _read_lines(incarnation: rundir.Incarnation, size: int) -> list[str]:
    path = incarnation.path / layout.RESOURCES
    newest = incarnation.folder.last_lines(path, size=size)
    room = size - sum(map(len, newest))
    older = incarnation.folder.last_lines(path.with_name(path.name + _OLDER), size=room) if room > size // 2 else []
    return [*older, *newest]


def _newest_within(lines: Sequence[str], room: int) -> Sequence[str]:
    """Return the last lines, as many as have at most `room` values."""
    for index in reversed(range(len(lines))):
        room -= _count_values(lines[index])
        if room < 0:
            return lines[index + 1 :]
    return lines


def _count_values(line: str) -> int:
    return 1 + line.count(",") + line.count("[") + line.count("{")


def _select(lines: Sequence[str], attempt: Attempt, now: datetime) -> Iterator[ReplicaSample]:
    """Yield the samples that an agent of the attempt can have written."""
    begin, end = attempt.created_at - _SKEW, (attempt.ended_at or now) + _SKEW
    most_ranks = attempt.max_nodes * max(attempt.workers_per_node or 0, _MOST_RANKS_OF_A_REPLICA)
    for line in lines:
        parsed = _parse(line)
        if parsed is not None and begin <= parsed[0] <= end:
            at, sample = parsed
            ranks = tuple(each for each in sample.ranks if each.rank < most_ranks)
            yield ReplicaSample(at=at, attempt=attempt.key.number, generation=sample.generation, ranks=ranks)


def _parse(line: str) -> tuple[datetime, Sample] | None:
    if len(line) > LINE_BYTES:
        return None
    try:
        sample = parse_sample(json.loads(line))
        return parse_time(sample.at), sample
    except rundir.UNREADABLE:
        return None
