"""Store a pod's output in the service's run directory, as agent and workers would have written it, each line once.

A stream may break at any line, restart from an earlier second, or end with the service. The state document records
file sizes and the last line's time. Content beyond these sizes is cut off, and repeated lines are skipped.
"""

from __future__ import annotations

import fcntl
import io
import json
from collections import defaultdict
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from orchestrator.jobfolder.folder import Folder, JobFolder
from orchestrator.rundir import UNREADABLE
from trainer.contract import layout
from trainer.contract.printed import parse_printed, parse_printed_sample

_STATE = "printed.json"
_STATE_BYTES = 1024 * 1024
_OLDER = ".1"
_MOST_FILES = 4096  # per replica, so that made-up worker names cannot fill the service's disk
_ALL_BYTES, _LEAST_BYTES = 256 * 1024 * 1024, 256 * 1024  # all files together; at least this much per file
_SECOND_NS = 1_000_000_000


class Held(Exception):
    """Another service stores this pod's output."""


@dataclass
class _State:
    at_ns: int = 0  # the time of the last stored line
    same: int = 0  # how many stored lines have that time
    sizes: dict[str, int] = field(default_factory=dict)  # by path below the replica's folder


class Printed:
    """The stored output of one replica. A file of `limit_bytes` / 2 is rotated into an older half.

    Raises OSError, and Held while another process has it open.
    """

    def __init__(self, job: JobFolder, place: Path, *, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        with ExitStack() as opened:
            with job.make() as folder:
                self._folder = opened.enter_context(folder.make(place))
            lock = opened.enter_context(self._folder.append(Path(f".{_STATE}.lock"), lock=True))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise Held(f"{job.name}/{place}") from error
            self._state = _read(self._folder)
            self._cut_off()
            self._opened = opened.pop_all()
        self._repeats_left = self._state.same  # lines with the last time that will be repeated

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    @property
    def since(self) -> str | None:
        """The second to stream from, in RFC 3339: that of the last line. None means from the start."""
        if self._state.at_ns == 0:
            return None
        return datetime.fromtimestamp(self._state.at_ns // _SECOND_NS, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def begin_again(self) -> None:
        """Prepare for a new stream that starts at `since`."""
        self._repeats_left = self._state.same

    def keep(self, lines: Iterable[bytes]) -> None:
        """Store lines as the API sends them, each with its time. Raises OSError."""
        news: defaultdict[str, list[bytes]] = defaultdict(list)
        at_ns_before, same_before = self._state.at_ns, self._state.same
        for line in lines:
            stamp, _, text = line.partition(b" ")
            at_ns = parse_stamp(stamp.decode(errors="replace"))
            if at_ns is not None and self._is_new(at_ns):
                name, rest = self._place(text)
                news[name].append(rest + b"\n")
        if not news:
            return
        fresh = {name: 0 for name in news if name not in self._state.sizes}
        if fresh:  # recorded before the first line, so that a crash's leftovers are cut off
            self._state.sizes |= fresh
            self._write_state(at_ns=at_ns_before, same=same_before)
        for name, texts in news.items():
            self._append(name, b"".join(texts))
        self._write_state()
        for name in news:
            self._rotate_if_large(name)

    def _is_new(self, at_ns: int) -> bool:
        state = self._state
        if at_ns < state.at_ns:
            return False
        if at_ns == state.at_ns and self._repeats_left > 0:
            self._repeats_left -= 1
            return False
        state.same = state.same + 1 if at_ns == state.at_ns else 1
        state.at_ns, self._repeats_left = at_ns, 0
        return True

    def _place(self, text: bytes) -> tuple[str, bytes]:
        """Return a line's file and its text."""
        sample, marked = parse_printed_sample(text), parse_printed(text)
        if sample is not None:
            incarnation, rest = sample
            name = str(Path(str(incarnation)) / layout.RESOURCES)
        elif marked is not None:
            writer, rest = marked
            folder = layout.worker_dir(Path(str(writer.incarnation)), writer.generation, writer.local_rank)
            name = str(folder / layout.WORKER_LOG)
        else:
            return layout.AGENT_LOG, text
        is_known = name in self._state.sizes or len(self._state.sizes) < _MOST_FILES
        return (name, rest) if is_known else (layout.AGENT_LOG, text)

    def _append(self, name: str, content: bytes) -> None:
        with self._folder.append(Path(name)) as file:
            file.write(content)
            self._state.sizes[name] = file.seek(0, io.SEEK_END)

    def _rotate_if_large(self, name: str) -> None:
        share = max(_LEAST_BYTES, _ALL_BYTES // len(self._state.sizes))
        if self._state.sizes[name] > min(self._limit_bytes, share) // 2:
            path = Path(name)
            self._folder.rename(path, path.name + _OLDER)
            self._state.sizes[name] = 0

    def _cut_off(self) -> None:
        for name, size in self._state.sizes.items():
            self._folder.truncate(Path(name), size)

    def _write_state(self, **before: int) -> None:
        """Write without fsync. This protects against a crash of the service, not of the machine."""
        content = json.dumps({**vars(self._state), **before}).encode()
        self._folder.write(Path(_STATE), content, sync=False)


def parse_stamp(text: str) -> int | None:
    """Parse RFC 3339 with up to nine fractional digits as nanoseconds since the epoch. None for anything else."""
    body, zone = (text[:-1], "+00:00") if text.endswith("Z") else (text[:-6], text[-6:])
    whole, _, fraction = body.partition(".")
    if fraction and not (fraction.isdecimal() and len(fraction) <= 9):
        return None
    try:
        moment = datetime.fromisoformat(whole + zone)
    except ValueError:
        return None
    return None if moment.tzinfo is None else int(moment.timestamp()) * _SECOND_NS + int(fraction.ljust(9, "0"))


def _read(folder: Folder) -> _State:
    """Read the state. An unreadable document starts over, so lines may repeat but none is lost."""
    try:
        content = folder.read(Path(_STATE), limit=_STATE_BYTES)
        document = json.loads(content or b"null")
        sizes = {str(name): int(size) for name, size in document["sizes"].items()}
        return _State(at_ns=int(document["at_ns"]), same=int(document["same"]), sizes=sizes)
    except (OSError, *UNREADABLE):
        return _State()
