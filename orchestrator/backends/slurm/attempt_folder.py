"""What the folder of an attempt shows of it, read cheaply: one listing of the folder while all goes well."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from orchestrator import rundir
from orchestrator.backends.slurm.hostlist import parse_hostlist
from orchestrator.backends.slurm.sight import Traces
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.jobfolder.folder import Folder, JobFolder
from trainer.contract import layout
from trainer.contract.node import Departure, parse_departure, parse_departure_name

_SUBMITTED, _ALLOCATION = "submitted-", "allocation-"
_NUMBERED = re.compile(rf"({_SUBMITTED}|{_ALLOCATION})([0-9]{{1,12}})\Z")
_LOOK = ".look"
_LOG = "slurm-{}.log"  # of the batch script, by the Slurm job's id
_LAST_WORDS_BYTES = 4096
_TEXT_BYTES = 256 * 1024  # of a list of nodes
_MOST_NAMES, _MOST_READ = 1000, 100  # of what a job could make without end
_MOST_ALLOCATIONS = 8  # an attempt has one, and one more for each time that Slurm requeues it
# Without control groups Slurm kills a step that uses too much (JobAcctGatherParams=OverMemoryKill in slurm.conf(5)),
# with them the kernel kills in it.
_MEMORY = re.compile(r"(?:slurmstepd|srun)\S*: error: .*(?:[Ee]xceeded .*memory limit|oom-kill event|Out Of Memory)")


def note_submission(job: JobFolder, attempt: int, number: int) -> None:
    """Remember which Slurm job was made of the attempt. Raises OSError."""
    with job.made() as folder:
        folder.touch(layout.attempt_dir(Path(), attempt) / f"{_SUBMITTED}{number}")


def noted_at(job: JobFolder, attempt: int, number: int) -> float | None:
    """When the submission was noted, by the file system's clock; None: it was not. Raises OSError."""
    with rundir.open_attempt(job, attempt) as folder:
        status = folder.status(Path(f"{_SUBMITTED}{number}"))
        return None if status is None else status.st_mtime


def read_traces(job: JobFolder, key: AttemptKey, replicas: int) -> Traces:
    """What costs one listing, and a reading of what is in it. Raises OSError."""
    with rundir.open_attempt(job, key.number) as attempt:
        found = _Found()
        for name in sorted(attempt.names(limit=_MOST_NAMES + 8 * replicas)):
            found.add(attempt, name, replicas)
        mine = {replica: one for replica, one in found.departures.items() if found.claim in (None, one.claim)}
        return Traces(
            replicas=replicas,
            claim=found.claim,
            submitted=frozenset(found.submitted),
            allocations={number: nodes for number, nodes in found.allocations.items() if nodes},
            departures=mine,
            recorded=_recorded(attempt, replicas) if any(one.recorded for one in mine.values()) else frozenset(),
        )


@dataclass(slots=True)
class _Found:
    """What the names in an attempt's folder lead to. A job can make any number of them: only so many are read."""

    submitted: set[int] = field(default_factory=set)
    allocations: dict[int, tuple[str, ...]] = field(default_factory=dict)
    departures: dict[int, Departure] = field(default_factory=dict)
    claim: str | None = None
    claims: int = 0

    def add(self, attempt: Folder, name: str, replicas: int) -> None:
        numbered = _NUMBERED.match(name)
        if numbered is not None and numbered[1] == _SUBMITTED:
            self.submitted.add(int(numbered[2]))
        elif numbered is not None and len(self.allocations) < _MOST_ALLOCATIONS:
            self.allocations[int(numbered[2])] = _allocation(attempt, name, most=replicas)
        elif (replica := parse_departure_name(name)) is not None and replica < replicas:
            departure = _departure(attempt, name)
            if departure is not None and departure.replica == replica:
                self.departures[replica] = departure
        elif (name == layout.CLAIM or name.startswith(f"{layout.CLAIM}-")) and self.claims < _MOST_READ:
            self.claims += 1
            self.claim = _text(attempt, name) or self.claim


def look_closely(traces: Traces, job: JobFolder, key: AttemptKey, number: int) -> Traces:
    """The same for a Slurm job that is over: all records, and what was printed last. Raises OSError."""
    with rundir.open_attempt(job, key.number) as attempt:
        recorded, memory_words = _recorded(attempt, traces.replicas), ""
        own_log = Path(_LOG.format(number))
        if len(recorded) < len(traces.allocations.get(number, ())):
            _refresh(attempt, traces.replicas)
            recorded = _recorded(attempt, traces.replicas)
            logs = [*(Path(f"replica-{each}", layout.AGENT_LOG) for each in range(traces.replicas)), own_log]
            texts = (attempt.last_lines(log, size=_LAST_WORDS_BYTES) for log in logs)
            memory_words = next((words for lines in texts if (words := _memory_words(lines))), "")
        last_words = _last_words(attempt.last_lines(own_log, size=_LAST_WORDS_BYTES))
    return replace(traces, recorded=recorded, last_words=last_words, memory_words=memory_words)


def last_sign(job: JobFolder, key: AttemptKey, replicas: int) -> float | None:
    """When any of the attempt's agents or workers wrote last, by the file system's clock; None: never."""
    moments = []
    with rundir.open_attempt(job, key.number) as attempt:
        for life in rundir.incarnations(attempt, range(replicas)):
            for path in (
                life.path / layout.PROGRESS,
                life.path / layout.EVENTS,
                life.path.with_name(layout.AGENT_LOG),
            ):
                status = attempt.status(path)
                if status is not None:
                    moments.append(status.st_mtime)
    return max(moments, default=None)


def _recorded(attempt: Folder, replicas: int) -> frozenset[int]:
    lives = rundir.incarnations(attempt, range(replicas))
    return frozenset(life.replica for life in lives if life.exit() is not None)


def _refresh(attempt: Folder, replicas: int) -> None:
    """Have a network file system look again: its client drops what it remembers of a folder that it changes itself."""
    lives = [life.path for life in rundir.incarnations(attempt, range(replicas))]
    for folder in (Path(), *{path.parent for path in lives}, *lives):
        with suppress(OSError):
            attempt.touch(folder / _LOOK)
            attempt.remove(folder / _LOOK)


def _allocation(attempt: Folder, name: str, *, most: int) -> tuple[str, ...]:
    """`<how many> <hostlist>`, as the batch script wrote it."""
    with suppress(ValueError):
        return parse_hostlist((_text(attempt, name) or "").partition(" ")[2].strip(), most=most)
    return ()


def _departure(attempt: Folder, name: str) -> Departure | None:
    document = rundir.read_document(attempt, Path(name))
    with suppress(*rundir.UNREADABLE):
        return None if document is None else parse_departure(document)
    return None


def _text(attempt: Folder, name: str) -> str | None:
    content = attempt.read(Path(name), limit=_TEXT_BYTES)
    return None if content is None else content.decode(errors="replace").strip()


def _last_words(lines: Sequence[str]) -> str:
    """What the script printed last, and not Slurm's own remarks on its end."""
    ours = [line.removeprefix("orchestrator: ") for line in lines if line.startswith("orchestrator: ")]
    return ([*lines[-1:], *ours] or [""])[-1][:300]


def _memory_words(lines: Sequence[str]) -> str:
    return next((line[:300] for line in lines if _MEMORY.match(line)), "")
