"""Parse what Slurm's commands print: squeue's list of jobs and sacct's accounting rows. Pure.

One query works for 22.05, 24.11 and 26.05: `-O` with a separator after each field neither pads nor cuts it, while the
default cuts fields at 20 characters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from re import Pattern

from orchestrator.backends.slurm.hostlist import parse_hostlist

SEPARATOR = "\x1f"
# Name and comment come last, because only they may contain any text.
FIELDS = (
    "JobID",
    "State",
    "Reason",
    "BatchHost",
    "NodeList",
    "RestartCnt",
    "exit_code",
    "StartTime",
    "EndTime",
    "TimeLimit",
    "Partition",
    "UserID",
    "SubmitTime",
    "PriorityLong",
    "Name",
    "Comment",
)
FORMAT = ",".join(f"{field}:{SEPARATOR}" for field in FIELDS)
NAME_OF_ATTEMPT = re.compile(r".-a[0-9]+\Z")  # the form of str(AttemptKey)
ACCOUNTING_FIELDS = (
    "JobIDRaw",
    "JobName",
    "State",
    "ExitCode",
    "NodeList",
    "Start",
    "End",
    "UID",
    "Submit",
    "AdminComment",
)
_ABSENT = frozenset({"", "n/a", "N/A", "NONE", "None assigned", "Unknown", "(null)"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
    """A job as Slurm lists it. Times are seconds since the epoch; before the job ends, Slurm may only estimate them."""

    id: int
    name: str
    state: str  # the first word only, as of "CANCELLED by 0"
    reason: str = ""
    comment: str = ""  # in accounting: the administrator's comment
    user: int | None = None
    submitted_at: float | None = None  # when it was requeued, if it was
    priority: int | None = None
    partition: str | None = None
    batch_host: str | None = None
    nodes: tuple[str, ...] = ()
    cancelled_by: int | None = None  # the user's id, known only to accounting
    restarts: int = 0
    exit_code: int = 0
    exit_signal: int = 0
    started_at: float | None = None
    ended_at: float | None = None
    time_limit_s: float | None = None  # None means no limit


def parse_listing(
    text: str, *, fields: Sequence[str] = FIELDS, separator: str = SEPARATOR, named: Pattern[str] | None = None
) -> list[SlurmJob]:
    """Parse `squeue -h -O`. Raises ValueError for other columns, since such an answer proves nothing about any job.

    A malformed value reads as absent. The line still counts, so that no job seems to be missing. Jobs whose names do
    not match `named` are skipped; a cluster may list fifty thousand of them.
    """
    found, id_at, name_at = [], fields.index("JobID"), fields.index("Name")
    for line in text.split("\n"):
        values = line.rstrip(" ").removesuffix(separator).split(separator, len(fields) - 1)
        if len(values) == 1:
            continue  # the rest of somebody's comment
        if len(values) != len(fields) or not values[id_at].strip().isdecimal():
            raise ValueError(f"cannot parse a line of Slurm's listing: {line[:200]!r}")
        if named is None or named.search(values[name_at].strip()):
            found.append(_job(dict(zip(fields, map(str.strip, values), strict=True))))
    return found


def _job(row: Mapping[str, str]) -> SlurmJob:
    code, number = parse_exit_code(row["exit_code"])
    return SlurmJob(
        id=int(row["JobID"]),
        name=row["Name"],
        state=row["State"],
        reason="" if row["Reason"] == "None" else row["Reason"],
        comment="" if row["Comment"] in _ABSENT else row["Comment"],
        user=_number(row.get("UserID", "")),
        submitted_at=_moment(row.get("SubmitTime", "")),
        priority=_number(row.get("PriorityLong", "")),
        partition=row.get("Partition"),
        batch_host=None if row["BatchHost"] in _ABSENT else row["BatchHost"],
        nodes=_hosts(row["NodeList"]),
        restarts=int(row["RestartCnt"]) if row["RestartCnt"].isdecimal() else 0,
        exit_code=code,
        exit_signal=number,
        started_at=_moment(row["StartTime"]),
        ended_at=_moment(row["EndTime"]),
        time_limit_s=parse_duration(row.get("TimeLimit", "")),
    )


def parse_accounting(text: str, *, fields: Sequence[str] = ACCOUNTING_FIELDS) -> list[SlurmJob]:
    """Parse `sacct -n -P -X -D -o` ACCOUNTING_FIELDS, oldest first.

    A requeued job has one line per run. An id that Slurm has reused has lines for each of its jobs.
    """
    found: list[SlurmJob] = []
    for line in text.split("\n"):
        values = line.split("|", len(fields) - 1)  # a comment may hold anything
        if len(values) != len(fields):
            continue
        row = dict(zip(fields, values, strict=True))
        if not row["JobIDRaw"].isdecimal():
            continue  # a step
        code, number = parse_exit_code(row["ExitCode"])
        state, _, by = row["State"].partition(" ")
        job = SlurmJob(
            id=int(row["JobIDRaw"]),
            name=row["JobName"],
            state=state,
            cancelled_by=_number(by.removeprefix("by ")),
            comment=row.get("AdminComment", ""),
            user=_number(row.get("UID", "")),
            submitted_at=_moment(row.get("Submit", "")),
            nodes=_hosts(row["NodeList"]),
            exit_code=code,
            exit_signal=number,
            started_at=_moment(row["Start"]),
            ended_at=_moment(row["End"]),
        )
        found.append(job)
    return found


def parse_exit_code(text: str) -> tuple[int, int]:
    """Return (exit code, signal). Slurm prints `3:0` since 23.02, and before that wait(2)'s raw status, such as 768."""
    code, colon, number = text.partition(":")
    if colon and code.isdecimal() and number.isdecimal():
        return int(code), int(number)
    status = int(text) if text.isdecimal() else 0
    # Slurm's internal errors are above 4000. Later versions print their low seven bits as the signal.
    return (0, status & 0x7F) if status & 0x7F else ((status >> 8) & 0xFF, 0)


def parse_duration(text: str) -> float | None:
    """Return the seconds of `[days-]hours:minutes:seconds` or a short form. None if there is no limit or no number."""
    days, dash, rest = text.rpartition("-")
    try:
        parts = [int(part) for part in rest.split(":")]
        whole = int(days or 0) * 86400
    except ValueError:
        return None
    if dash or len(parts) == 3:
        hours, minutes, seconds = (*parts, 0, 0)[:3]
    else:
        hours, (minutes, seconds) = 0, (*parts, 0)[:2]
    return float(whole + hours * 3600 + minutes * 60 + seconds)


def _hosts(text: str) -> tuple[str, ...]:
    try:
        return () if text in _ABSENT else parse_hostlist(text)
    except ValueError:
        return ()


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _moment(text: str) -> float | None:
    """Parse seconds since the epoch, as SLURM_TIME_FORMAT=%s prints them."""
    return float(text) if text.isdecimal() else None
