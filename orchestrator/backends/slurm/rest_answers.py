"""Parse slurmrestd's answers (API v0.0.42): jobs, accounting's rows and nodes. Pure.

A value that is missing or of the wrong type reads as absent. The job is still returned, so that no job seems to be
missing.
"""

from __future__ import annotations

import math
import pwd
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from orchestrator.backends.slurm.capacity import SlurmNode, parse_gres
from orchestrator.backends.slurm.hostlist import parse_hostlist
from orchestrator.backends.slurm.listing import SlurmJob

# squeue shows the first of these flags instead of the job's base state (job_state_string() in Slurm's sources).
_SHOWN_FIRST = (
    "COMPLETING",
    "STAGE_OUT",
    "CONFIGURING",
    "RESIZING",
    "REQUEUED",
    "REQUEUE_FED",
    "REQUEUE_HOLD",
    "SPECIAL_EXIT",
    "STOPPED",
    "REVOKED",
    "RESV_DEL_HOLD",
    "SIGNALING",
)
_RUNS_JOBS = {"ALLOCATED", "MIXED"}
# sinfo would show such a flag as a sign after the base state.
_SIGNS = {"MAINTENANCE", "REBOOT_ISSUED", "REBOOT_REQUESTED", "POWER_DOWN", "POWERED_DOWN", "NOT_RESPONDING"}
_SIGNS |= {"POWERING_UP", "POWERING_DOWN"}
# What sinfo shows of a node, flags of which one must be set, and flags of which none may be set. The first match
# counts. Source: node_state_string().
_NODE_STATES: tuple[tuple[str, set[str], set[str]], ...] = (
    ("inval", {"INVALID_REG"}, set()),
    ("maint", {"MAINTENANCE"}, {"DRAIN", "DOWN", *_RUNS_JOBS}),
    ("reboot", {"REBOOT_ISSUED", "REBOOT_REQUESTED"}, _RUNS_JOBS),
    ("drained", {"DRAIN"}, {"COMPLETING", *_RUNS_JOBS}),
    ("draining", {"DRAIN"}, set()),
    ("fail", {"FAIL"}, {"COMPLETING", "ALLOCATED"}),
    ("failing", {"FAIL"}, set()),
    ("down", {"DOWN"}, set()),
    ("allocated", {"ALLOCATED"}, set()),
    ("completing", {"COMPLETING"}, set()),
    ("mixed", {"MIXED"}, set()),
    ("future", {"FUTURE"}, set()),
    ("reserved", {"RESERVED"}, _SIGNS),
    ("blocked", {"BLOCKED"}, _SIGNS),
    ("planned", {"PLANNED"}, _SIGNS),
    ("idle", {"IDLE"}, set()),
)


def parse_job(given: Mapping[str, Any]) -> SlurmJob:
    """Parse a job of the controller. Raises ValueError if it has no id."""
    code, signal = _exit_code(given)
    minutes = _number(given.get("time_limit"))
    # Without a limit, Slurm plans the end for a year after the start.
    without_end = {"PENDING"} if minutes is not None else {"PENDING", "RUNNING", "SUSPENDED"}
    return SlurmJob(
        id=_id(given),
        name=_text(given, "name"),
        state=_state(given.get("job_state")),
        reason=_text(given, "state_description") or _unless_none(_text(given, "state_reason")),
        comment=_text(given, "comment"),
        user=_number(given.get("user_id")),
        submitted_at=_moment(given, "submit_time"),
        priority=_number(given.get("priority")),
        partition=_text(given, "partition") or None,
        batch_host=_text(given, "batch_host") or None,
        nodes=_hosts(_text(given, "nodes")),
        restarts=_number(given.get("restart_cnt")) or 0,
        exit_code=code,
        exit_signal=signal,
        started_at=_moment(given, "start_time"),
        ended_at=None if without_end & {*_words(given.get("job_state"))} else _moment(given, "end_time"),
        time_limit_s=None if minutes is None else 60.0 * minutes,
    )


def parse_row(given: Mapping[str, Any]) -> SlurmJob:
    """Parse a job of accounting. Raises ValueError if it has no id."""
    code, signal = _exit_code(given)
    time, comment = _section(given, "time"), _section(given, "comment")
    return SlurmJob(
        id=_id(given),
        name=_text(given, "name"),
        state=_state(_section(given, "state").get("current")),
        cancelled_by=_user_id(_text(given, "kill_request_user")),
        comment=_text(comment, "administrator"),
        user=_user_id(_text(given, "user")),
        submitted_at=_moment(time, "submission"),
        nodes=_hosts(_unless_none(_text(given, "nodes"))),
        exit_code=code,
        exit_signal=signal,
        started_at=_moment(time, "start"),
        ended_at=_moment(time, "end"),
    )


def runs_a_step(job: Mapping[str, Any]) -> bool:
    """Whether a step of a job of accounting is running, other than Slurm's own: batch, extern."""
    steps = job.get("steps")
    return any(_is_running(each) for each in steps if isinstance(each, Mapping)) if isinstance(steps, list) else False


def parse_nodes(nodes: Iterable[Mapping[str, Any]], *, default: str) -> list[SlurmNode]:
    """Return every node, once per partition. `default` names the default partition, or several, with commas."""
    return [node for given in nodes for node in _in_its_partitions(given, default)]


def _is_running(step: Mapping[str, Any]) -> bool:
    number = str(_section(step, "step").get("id")).rpartition(".")[2]
    return number.isdecimal() and "RUNNING" in _words(step.get("state"))


def _in_its_partitions(given: Mapping[str, Any], default: str) -> Iterator[SlurmNode]:
    words = _words(given.get("state"))
    for partition in _words(given.get("partitions")):
        yield SlurmNode(
            name=_text(given, "name"),
            partition=partition,
            is_default=partition in default.split(","),
            state=_node_state(words),
            responds="NOT_RESPONDING" not in words,
            cpus=_number(given.get("cpus")) or 0,
            memory_mb=_number(given.get("real_memory")) or 0,
            gpus=parse_gres(_text(given, "gres")),
            reason=_text(given, "reason") or None,
        )


def _node_state(words: list[str]) -> str:
    flags = set(words)
    return next((shown for shown, any_of, none_of in _NODE_STATES if any_of & flags and not none_of & flags), "unknown")


def _state(given: object) -> str:
    words = _words(given)
    return next((flag for flag in _SHOWN_FIRST if flag in words), words[0] if words else "")


def _exit_code(given: Mapping[str, Any]) -> tuple[int, int]:
    code = _section(given, "exit_code")
    signal = _number(_section(code, "signal").get("id")) or 0
    return (0, signal) if signal else (_number(code.get("return_code")) or 0, 0)


def _id(given: Mapping[str, Any]) -> int:
    found = _number(given.get("job_id"))
    if found is None:
        raise ValueError(f"a job without an id: {str(given)[:200]}")
    return found


def _number(given: object) -> int | None:
    """Parse a number, or slurmrestd's {set, infinite, number}. None if there is no number or no limit."""
    if isinstance(given, Mapping):
        given = given.get("number") if given.get("set") and not given.get("infinite") else None
    return int(given) if isinstance(given, (int, float)) and math.isfinite(given) else None


def _moment(given: Mapping[str, Any], name: str) -> float | None:
    return float(found) if (found := _number(given.get(name))) else None


def _text(given: Mapping[str, Any], name: str) -> str:
    found = given.get(name)
    return found if isinstance(found, str) else ""


def _words(given: object) -> list[str]:
    return [each for each in given if isinstance(each, str)] if isinstance(given, list) else []


def _section(given: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = given.get(name)
    return found if isinstance(found, Mapping) else {}


def _unless_none(text: str) -> str:
    return "" if text in ("None", "None assigned") else text


def _hosts(text: str) -> tuple[str, ...]:
    with suppress(ValueError):
        return parse_hostlist(text)
    return ()


def _user_id(name: str) -> int | None:
    with suppress(KeyError):
        return pwd.getpwnam(name).pw_uid if name else None
    return None
