"""Read an attempt's traces from its folder. While all goes well, this costs one listing of the folder."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from orchestrator import rundir
from orchestrator.backends.slurm.hostlist import parse_hostlist
from orchestrator.backends.slurm.sight import Traces
from orchestrator.backends.traces import MOST_NAMES, read_departure, read_recorded, read_text, refresh
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.jobfolder.folder import Folder, JobFolder
from trainer.contract import layout
from trainer.contract.node import Departure

_SUBMITTED, _ALLOCATION = "submitted-", "allocation-"
_NUMBERED = re.compile(rf"({_SUBMITTED}|{_ALLOCATION})([0-9]{{1,12}})\Z")
_LOG = "slurm-{}.log"  # the batch script's log, by the Slurm job's id
_LAST_WORDS_BYTES = 4096
_MOST_READ = 100  # claims that are read, since a job can create any number of files
_MOST_ALLOCATIONS = 8  # an attempt has one, plus one for each requeue by Slurm
# Without control groups, Slurm kills a step that uses too much memory (JobAcctGatherParams=OverMemoryKill in
# slurm.conf(5)). With them, the kernel kills a process of the step. In a batch log, 26.05 writes the time instead of
# slurmstepd's name.
_MEMORY = re.compile(
    r"(?:(?:slurmstepd|srun)\S*:|\[[-0-9T:.]+\]) error: .*(?:[Ee]xceeded .*memory limit|oom-kill event|Out Of Memory)"
)


def note_submission(job: JobFolder, attempt: int, number: int) -> None:
    """Record which Slurm job was submitted for the attempt. Raises OSError."""
    with job.make() as folder:
        folder.touch(layout.attempt_dir(Path(), attempt) / f"{_SUBMITTED}{number}")


def noted_at(job: JobFolder, attempt: int, number: int) -> float | None:
    """Return when the submission was recorded, by the file system's clock, or None. Raises OSError."""
    with rundir.open_attempt(job, attempt) as folder:
        status = folder.status(Path(f"{_SUBMITTED}{number}"))
        return None if status is None else status.st_mtime


def read_traces(job: JobFolder, key: AttemptKey, replicas: int) -> Traces:
    """List the attempt's folder and read the traces in it. Raises OSError."""
    with rundir.open_attempt(job, key.number) as attempt:
        found = _Found()
        for name in sorted(attempt.names(limit=MOST_NAMES + 8 * replicas)):
            found.add(attempt, name, replicas)
        mine = {replica: one for replica, one in found.departures.items() if found.claim in (None, one.claim)}
        return Traces(
            replicas=replicas,
            claim=found.claim,
            submitted=frozenset(found.submitted),
            allocations={number: nodes for number, nodes in found.allocations.items() if nodes},
            departures=mine,
            recorded=read_recorded(attempt, replicas) if any(one.recorded for one in mine.values()) else frozenset(),
        )


@dataclass(slots=True)
class _Found:
    """Collects the traces in an attempt's folder. A job can create any number of files, so only some are read."""

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
        elif (departure := read_departure(attempt, name, replicas)) is not None:
            self.departures[departure.replica] = departure
        elif (name == layout.CLAIM or name.startswith(f"{layout.CLAIM}-")) and self.claims < _MOST_READ:
            self.claims += 1
            self.claim = read_text(attempt, name) or self.claim


def look_closely(traces: Traces, job: JobFolder, key: AttemptKey, number: int) -> Traces:
    """Add all exit records and the last output of a Slurm job that is over. Raises OSError."""
    with rundir.open_attempt(job, key.number) as attempt:
        recorded, memory_words = read_recorded(attempt, traces.replicas), ""
        own_log = Path(_LOG.format(number))
        if len(recorded) < len(traces.allocations.get(number, ())):
            refresh(attempt, traces.replicas)
            recorded = read_recorded(attempt, traces.replicas)
            logs = [*(Path(f"replica-{each}", layout.AGENT_LOG) for each in range(traces.replicas)), own_log]
            texts = (attempt.last_lines(log, size=_LAST_WORDS_BYTES) for log in logs)
            memory_words = next((words for lines in texts if (words := _memory_words(lines))), "")
        last_words = _last_words(attempt.last_lines(own_log, size=_LAST_WORDS_BYTES))
    return replace(traces, recorded=recorded, last_words=last_words, memory_words=memory_words)


def _allocation(attempt: Folder, name: str, *, most: int) -> tuple[str, ...]:
    """Parse the batch script's `<count> <hostlist>`."""
    with suppress(ValueError):
        return parse_hostlist((read_text(attempt, name) or "").partition(" ")[2].strip(), most=most)
    return ()


def _last_words(lines: Sequence[str]) -> str:
    """Return the last message of the batch script itself, or else the log's last line."""
    ours = [line.removeprefix("orchestrator: ") for line in lines if line.startswith("orchestrator: ")]
    return ([*lines[-1:], *ours] or [""])[-1][:300]


def _memory_words(lines: Sequence[str]) -> str:
    return next((line[:300] for line in lines if _MEMORY.match(line)), "")
