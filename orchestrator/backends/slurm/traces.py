"""What the folder of an attempt shows of it, read cheaply: one listing of the folder while all goes well."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from orchestrator import rundir
from orchestrator.backends.slurm.hostlist import parse_hostlist
from orchestrator.backends.slurm.sight import Traces
from orchestrator.domain.attempt import AttemptKey
from trainer.contract import layout
from trainer.contract.node import Departure, parse_departure, parse_departure_name

_SUBMITTED, _ALLOCATION = "submitted-", "allocation-"
_NUMBERED = re.compile(rf"({_SUBMITTED}|{_ALLOCATION})([0-9]{{1,12}})\Z")
_LOOK = ".look"
_LOG = "slurm-{}.log"  # of the batch script, by the Slurm job's id
_LAST_WORDS_BYTES = 4096
# Without control groups Slurm kills a step that uses too much (JobAcctGatherParams=OverMemoryKill in slurm.conf(5)),
# with them the kernel kills in it.
_MEMORY = re.compile(r"(?:slurmstepd|srun)\S*: error: .*(?:[Ee]xceeded .*memory limit|oom-kill event|Out Of Memory)")


def note_submission(attempt_dir: Path, number: int) -> None:
    """Remember which Slurm job was made of the attempt. Raises OSError."""
    (attempt_dir / f"{_SUBMITTED}{number}").touch()


def read_traces(job_dir: Path, key: AttemptKey) -> Traces:
    """What costs one listing, and a reading of what is in it. Raises OSError."""
    folder = layout.attempt_dir(job_dir, key.number)
    replicas = rundir.read_replicas(job_dir, key.number) or 1
    submitted: set[int] = set()
    allocations: dict[int, tuple[str, ...]] = {}
    departures: dict[int, Departure] = {}
    claim: str | None = None
    for name in _names(folder):
        numbered = _NUMBERED.match(name)
        if numbered is not None and numbered[1] == _SUBMITTED:
            submitted.add(int(numbered[2]))
        elif numbered is not None:
            allocations[int(numbered[2])] = _allocation(folder / name)
        elif parse_departure_name(name) is not None:
            departure = _departure(folder / name)
            if departure is not None:
                departures[departure.replica] = departure
        elif name == layout.CLAIM or name.startswith(f"{layout.CLAIM}-"):
            claim = _text(folder / name) or claim
    mine = {replica: one for replica, one in departures.items() if claim in (None, one.claim)}
    return Traces(
        replicas=replicas,
        claim=claim,
        submitted=frozenset(submitted),
        allocations={number: nodes for number, nodes in allocations.items() if nodes},
        departures=mine,
        recorded=_recorded(job_dir, key) if any(one.recorded for one in mine.values()) else frozenset(),
    )


def look_closely(traces: Traces, job_dir: Path, key: AttemptKey, number: int) -> Traces:
    """The same for a Slurm job that is over: all records, and what was printed last. Raises OSError."""
    folder = layout.attempt_dir(job_dir, key.number)
    recorded, memory_words = _recorded(job_dir, key), ""
    if len(recorded) < len(traces.allocations.get(number, ())):
        _refresh(job_dir, key)
        recorded = _recorded(job_dir, key)
        logs = [*sorted(folder.glob(f"replica-*/{layout.AGENT_LOG}")), folder / _LOG.format(number)]
        memory_words = next((words for log in logs if (words := _memory_words(_tail(log)))), "")
    last_words = _last_words(_tail(folder / _LOG.format(number)))
    return replace(traces, recorded=recorded, last_words=last_words, memory_words=memory_words)


def last_sign(job_dir: Path, key: AttemptKey) -> float | None:
    """When any of the attempt's agents or workers wrote last, by the file system's clock; None: never."""
    moments = []
    for life in rundir.incarnations(job_dir, key.number):
        for name in (layout.PROGRESS, layout.EVENTS, f"../{layout.AGENT_LOG}"):
            with suppress(OSError):
                moments.append((life.path / name).stat().st_mtime)
    return max(moments, default=None)


def _recorded(job_dir: Path, key: AttemptKey) -> frozenset[int]:
    return frozenset(life.replica for life in rundir.incarnations(job_dir, key.number) if life.exit() is not None)


def _refresh(job_dir: Path, key: AttemptKey) -> None:
    """Have a network file system look again: its client drops what it remembers of a folder that it changes itself."""
    lives = [life.path for life in rundir.incarnations(job_dir, key.number)]
    for folder in (layout.attempt_dir(job_dir, key.number), *{path.parent for path in lives}, *lives):
        with suppress(OSError):
            (folder / _LOOK).touch()
            (folder / _LOOK).unlink(missing_ok=True)


def _names(folder: Path) -> Iterator[str]:
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        yield from sorted(entry.name for entry in entries)


def _allocation(path: Path) -> tuple[str, ...]:
    """`<how many> <hostlist>`, as the batch script wrote it."""
    with suppress(ValueError):
        return parse_hostlist((_text(path) or "").partition(" ")[2].strip())
    return ()


def _departure(path: Path) -> Departure | None:
    document = rundir.read_document(path)
    with suppress(ValueError):
        return None if document is None else parse_departure(document)
    return None


def _text(path: Path) -> str | None:
    file = rundir.open_regular(path)
    if file is None:
        return None
    with file:
        return file.read(rundir.MAX_DOCUMENT_BYTES).decode(errors="replace").strip()


def _last_words(lines: Sequence[str]) -> str:
    """What the script printed last, and not Slurm's own remarks on its end."""
    ours = [line.removeprefix("orchestrator: ") for line in lines if line.startswith("orchestrator: ")]
    return ([*lines[-1:], *ours] or [""])[-1][:300]


def _memory_words(lines: Sequence[str]) -> str:
    return next((line[:300] for line in lines if _MEMORY.match(line)), "")


def _tail(path: Path) -> list[str]:
    """The last lines of a log."""
    file = rundir.open_regular(path)
    if file is None:
        return []
    with file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _LAST_WORDS_BYTES))
        return file.read(_LAST_WORDS_BYTES).decode(errors="replace").strip().splitlines()
