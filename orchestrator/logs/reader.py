"""Read a job's logs from its run directory: the last lines, or the files to follow."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Literal

from orchestrator.configured_cluster import Cluster
from orchestrator.domain.errors import NotFound
from orchestrator.domain.explanation.quiet import Output
from orchestrator.domain.job.attempt import Attempt, AttemptKey
from orchestrator.domain.job.event import Event
from orchestrator.domain.job.masking import NOTHING, Mask
from orchestrator.jobfolder.folder import JobFolder
from orchestrator.logs.log_files import (
    BLOCK_BYTES,
    Source,
    find_agent_logs,
    find_worker_logs,
    look_at_log,
    open_log,
    read_lines,
    start_of_last_lines,
)
from orchestrator.logs.log_places import Place, find_places
from orchestrator.logs.output import find_last_output
from orchestrator.store.history_reader import HistoryReader
from orchestrator.store.job_reader import JobReader
from orchestrator.store.records import LogContext, StoredWorker
from trainer.contract import layout
from trainer.contract.exit_record import EventKind

MAX_TAIL = 10_000
MAX_ANSWER_BYTES = 16 * 1024 * 1024  # the oldest lines beyond it are dropped
MAX_SEARCHED_BYTES = 64 * 1024 * 1024  # per file, from its end
_ALL_SEARCHED_BYTES = 8 * MAX_SEARCHED_BYTES  # all files together; beyond it, little of each
_WORKERS_PAGE = 200
_LAST_LINES_SEARCHED, _LAST_LINE_LENGTH = 20, 300  # lines searched for one that is not empty, characters kept
_LEFT_OUT = "[older lines are left out here: they do not fit into one answer]"
_FEW_GENERATIONS, _MOST_GENERATIONS = 100, 10_000  # events, one per replica and generation


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRequest:
    """`attempt` None means the newest. `rank` is the global rank. `grep` is plain text that a line must contain.

    `since` selects whole logs by the time of their last write, because lines have no times.
    """

    attempt: int | None = None
    replica: int | None = None
    rank: int | None = None
    generation: int | None = None  # only of the workers' own output
    stream: Literal["worker", "agent", "stacks"] = "worker"
    tail: int = 200
    grep: str | None = None
    since: datetime | None = None
    whole: bool = False  # all lines, whatever `tail` is


@dataclass(frozen=True, slots=True)
class Known:
    """What a caller has already read of a job. `events` includes all starts of generations, oldest first."""

    context: LogContext
    events: Sequence[Event]

    def starts_of(self, attempt: int) -> Sequence[Event]:
        """Return the starts of an attempt's generations, newest first."""
        kind = EventKind.GENERATION_STARTED.value
        return [event for event in reversed(self.events) if event.attempt == attempt and event.kind == kind]


@dataclass(frozen=True, slots=True)
class Selection:
    """The logs that a request currently selects."""

    folder: JobFolder
    attempt: int
    sources: Sequence[Source]
    over: bool  # nothing more will be written
    mask: Mask = NOTHING  # hides the project's secrets before a line is searched, so that a search reveals nothing

    @property
    def prefixed(self) -> bool:
        """Whether each line names its generation and worker: only if there are several."""
        return len(self.sources) > 1


@dataclass(frozen=True, slots=True)
class LastLine:
    """The beginning of the last line that a worker printed. It is not empty."""

    replica: int
    local_rank: int
    text: str


class Logs:
    """`mask_of` returns the mask that hides a project's secrets."""

    def __init__(
        self,
        jobs: JobReader,
        history: HistoryReader,
        clusters: Mapping[str, Cluster],
        *,
        mask_of: Callable[[str], Mask] = lambda _: NOTHING,
    ) -> None:
        self._jobs = jobs
        self._mask_of = mask_of
        self._history = history
        self._clusters = clusters

    def tail(self, job_id: str, request: LogRequest, known: Known | None = None) -> list[str]:
        """Return the last lines, oldest first. Raises NotFound for an unknown job or attempt."""
        selection = self.select(job_id, request, known)
        return [] if selection is None else tail(selection, request)

    def select(self, job_id: str, request: LogRequest, known: Known | None = None) -> Selection | None:
        """Select the logs of a request. None while the job has no attempt. Raises NotFound."""
        context = self._jobs.log_context(job_id) if known is None else known.context
        newest = context.newest
        if request.attempt is not None and (newest is None or request.attempt > newest):
            raise NotFound(f"job {job_id} has no attempt {request.attempt}")
        attempt = request.attempt or newest
        if attempt is None:
            return None
        folder = self._folder(job_id, context)
        sources = _written_since(
            folder, self._sources(folder, AttemptKey(job_id, attempt), request, known), request.since
        )
        over = context.at_rest or attempt != newest
        return Selection(folder, attempt, sources, over, self._mask_of(context.project))

    def last_lines(self, job_id: str, *, most: int) -> list[LastLine]:
        """Return the last line of each worker of the newest attempt. Empty if there are more than `most` workers."""
        selection = self.select(job_id, LogRequest())
        if selection is None:
            return []
        newest = {
            (source.replica, source.local_rank): source
            for source in sorted(selection.sources)
            if source.local_rank is not None
        }
        if len(newest) > most:
            return []
        lines, allowance = list[LastLine](), _Allowance()
        for (replica, local_rank), source in sorted(newest.items()):
            last = _tail_of_source(selection, source, _LAST_LINES_SEARCHED, None, None, allowance)
            text = next((line for line in reversed(last) if line.strip()), None)
            if text is not None:
                lines.append(LastLine(replica, local_rank, text[:_LAST_LINE_LENGTH]))
        return lines

    def last_output(self, cluster_name: str, attempt: Attempt) -> Output | None:
        """Return when an attempt's workers last printed. None if unknown. Raises OSError."""
        cluster = self._clusters.get(cluster_name)
        if cluster is None or not cluster.shares_files:
            return None  # a fetched log has the time of the fetch
        return find_last_output(cluster.folder(attempt.key.job_id), attempt.key.number, attempt.max_nodes)

    def is_at_rest(self, job_id: str) -> bool:
        """Whether the job has ended and no retry is requested."""
        return self._jobs.log_context(job_id).at_rest

    def _folder(self, job_id: str, context: LogContext) -> JobFolder:
        cluster = self._clusters.get(context.cluster)
        if cluster is None:
            raise NotFound(f"cluster {context.cluster} is no longer configured; its logs cannot be found")
        return cluster.folder(job_id)

    def _sources(self, folder: JobFolder, key: AttemptKey, request: LogRequest, known: Known | None) -> list[Source]:
        attempt = key.number
        if request.stream == "agent":
            return find_agent_logs(folder, attempt, replica=request.replica)
        replica, local_rank = self._place(key, request, known)
        workers = find_worker_logs(folder, attempt, replica=replica, local_rank=local_rank)
        if request.rank is not None and not workers and find_worker_logs(folder, attempt):
            raise NotFound(f"attempt {attempt} of job {key.job_id} has no log of rank {request.rank}")
        if request.stream == "stacks":
            return _newest_stacks(folder, workers)
        if request.generation is not None:
            return [each for each in workers if each.generation == request.generation]
        # Before the first worker starts, only the agent's log exists.
        return workers or find_agent_logs(folder, attempt, replica=replica)

    def _place(self, key: AttemptKey, request: LogRequest, known: Known | None) -> tuple[int | None, int | None]:
        if request.rank is None:
            return request.replica, None
        for place in self._places(key, request.rank, known):
            if request.replica in (None, place.replica):
                return place.replica, place.local_rank
        return request.replica or 0, request.rank

    def _places(self, key: AttemptKey, rank: int, known: Known | None) -> Iterator[Place]:
        """Yield a rank's places, newest generation first. If no agent reports ranks, use the workers' reports."""
        if known is not None:
            yield from find_places(known.starts_of(key.number)[:_MOST_GENERATIONS], rank)
        else:
            yield from self._read_places(key, rank)
        yield from (
            Place(worker.replica, worker.local_rank)
            for worker in self._workers(key.job_id, key.number)
            if worker.rank == rank
        )

    def _read_places(self, key: AttemptKey, rank: int) -> Iterator[Place]:
        for limit in (_FEW_GENERATIONS, _MOST_GENERATIONS):
            page = self._history.newest_of_kind(
                key.job_id, EventKind.GENERATION_STARTED.value, limit=limit, attempt=key.number
            )
            yield from find_places([stored.event for stored in page], rank)
            if len(page) < limit:
                break

    def _workers(self, job_id: str, attempt: int) -> Iterator[StoredWorker]:
        cursor: str | None = None
        while True:
            rows, cursor = self._history.workers(job_id, limit=_WORKERS_PAGE, cursor=cursor)
            yield from (row for row in rows if row.attempt == attempt)
            if cursor is None or (rows and rows[-1].attempt < attempt):
                return


def _written_since(folder: JobFolder, sources: list[Source], since: datetime | None) -> list[Source]:
    if since is None:
        return sources
    return [source for source in sources if last_written(folder, source) >= since.timestamp()]


def _newest_stacks(folder: JobFolder, workers: Sequence[Source]) -> list[Source]:
    """Return the newest stacks of each worker that has some."""
    saved = [replace(source, path=source.path.with_name(layout.STACKS)) for source in workers]
    newest = {(source.replica, source.local_rank): source for source in saved if _has_content(folder, source.path)}
    return sorted(newest.values())


def _has_content(folder: JobFolder, path: Path) -> bool:
    status = look_at_log(folder, path)
    return status is not None and status.st_size > 0


def tail(selection: Selection, request: LogRequest, *, ends: Mapping[Source, int] | None = None) -> list[str]:
    """Return the last lines of a selection, up to `ends`. Newer generations have priority if room is short."""
    kept: deque[str] = deque()
    allowance = _Allowance()
    newest_first = sorted(selection.sources, reverse=True)
    for _, group in groupby(newest_first, key=lambda source: (source.generation, source.incarnation)):
        sources = list(group)  # the last replica first
        room = request.tail - len(kept)
        if room <= 0:
            break
        if sum(map(_weigh, kept)) > MAX_ANSWER_BYTES:
            allowance.cut = True
            break
        found = _read_fairly(selection, sources, room, request, ends, allowance)
        # The worker that wrote last comes last, where readers look first.
        written = {source: last_written(selection.folder, source) for source in sources}
        for source in sorted(sources, key=written.__getitem__, reverse=True):
            label = source.label(selection.attempt) if selection.prefixed else ""
            kept.extendleft(label + line for line in reversed(found[source]))
    lines = _keep_last(kept, request.tail, allowance)
    return [_LEFT_OUT, *lines] if allowance.cut else list(lines)


@dataclass(slots=True)
class _Allowance:
    """How many bytes one answer may still read. The first files get the most. `cut`: some lines did not fit."""

    left: int = _ALL_SEARCHED_BYTES
    cut: bool = False

    @property
    def of_file(self) -> int:
        return min(MAX_SEARCHED_BYTES, max(BLOCK_BYTES, self.left // 8))

    def spend(self, count: int) -> None:
        self.left = max(0, self.left - count)


def _read_fairly(
    selection: Selection,
    sources: list[Source],
    room: int,
    request: LogRequest,
    ends: Mapping[Source, int] | None,
    allowance: _Allowance,
) -> dict[Source, Sequence[str]]:
    """Return the last lines of each source, `room` in total: an even share each, then the rest to longer ones."""
    sizes: dict[Source, int] = {}

    def read(source: Source, count: int) -> Sequence[str]:
        if sum(sizes.values()) > MAX_ANSWER_BYTES:
            allowance.cut = True
            return found.get(source, ())
        end = None if ends is None else ends.get(source, 0)
        lines = _tail_of_source(selection, source, count, request.grep, end, allowance)
        sizes[source] = sum(map(_weigh, lines))
        return lines

    share = max(1, room // len(sources))
    found: dict[Source, Sequence[str]] = {}
    for source in sources:
        found[source] = read(source, share)
    longer = [source for source, lines in found.items() if len(lines) == share]
    spare = room - sum(map(len, found.values()))
    for index, source in enumerate(longer):
        more = spare // (len(longer) - index)
        if more > 0:
            found[source] = read(source, share + more)
            spare -= len(found[source]) - share
    return found


def last_written(folder: JobFolder, source: Source) -> float:
    status = look_at_log(folder, source.path)
    return 0.0 if status is None else status.st_mtime


def matches(request: LogRequest) -> Callable[[str], bool]:
    wanted = request.grep
    return (lambda _: True) if wanted is None else (lambda line: wanted in line)


def _tail_of_source(
    selection: Selection, source: Source, count: int, grep: str | None, end: int | None, allowance: _Allowance
) -> Sequence[str]:
    lines = _tail_of_file(selection, source.path, count, grep, end, allowance)
    if len(lines) >= count:
        return lines
    return [*_tail_of_file(selection, source.older, count - len(lines), grep, None, allowance), *lines]


def _tail_of_file(
    selection: Selection, path: Path, count: int, grep: str | None, end: int | None, allowance: _Allowance
) -> Sequence[str]:
    file, hide = open_log(selection.folder, path), selection.mask.hide
    if file is None or count <= 0:
        return []
    with file:
        end = file.seek(0, io.SEEK_END) if end is None else end
        start = max(0, end - allowance.of_file)
        least = start
        if grep is None:
            start = start_of_last_lines(file, count, end, least=least)
        allowance.spend(end - start)
        lines = map(hide, read_lines(file, start, end))
        kept = _keep_last(lines if grep is None else (line for line in lines if grep in line), count, allowance)
        allowance.cut |= 0 < least == start and len(kept) < count
        return kept


def _keep_last(lines: Iterable[str], count: int, allowance: _Allowance) -> deque[str]:
    kept: deque[str] = deque()
    size = 0
    for line in lines:
        kept.append(line)
        size += _weigh(line)
        while len(kept) > count or (size > MAX_ANSWER_BYTES and len(kept) > 1):
            allowance.cut |= len(kept) <= count
            size -= _weigh(kept.popleft())
    return kept


def _weigh(line: str) -> int:
    """Estimate a line's bytes of memory. One character beyond ASCII makes each take up to four bytes."""
    return len(line) if line.isascii() else 4 * len(line)
