"""Translate sbatch's options into the fields of slurmrestd's job description (API v0.0.42). Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from orchestrator.backends.slurm.hostlist import parse_hostlist
from orchestrator.backends.slurm.listing import parse_duration
from orchestrator.domain.errors import LaunchRefused

Json = dict[str, Any]

_PATH = "/usr/local/bin:/usr/bin:/bin"  # slurmrestd refuses a job without an environment
_LONGEST_NOTICE_S = 65535  # Slurm keeps it in 16 bits
_DURATION = re.compile(r"([0-9]+-)?[0-9]+(:[0-9]+){0,2}")
_MEGABYTES = {"": 1, "K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2}
_MEMORY = re.compile(r"([0-9]+)([KMGT]?)B?", re.IGNORECASE)


def render_job(arguments: Sequence[str], *, umask: int) -> Json:
    """Translate `--name=value` and `--name`, and set what sbatch sets: the umask and the CPUs of a task.

    Raises LaunchRefused for an option without a field, for a value that cannot be translated, and for two options of
    one field.
    """
    job: Json = {}
    written_by: dict[str, str] = {}
    for argument in arguments:
        name, _, value = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or name not in _OPTIONS:
            raise LaunchRefused(f"sbatch's option {argument.partition('=')[0]} is not supported with slurmrestd")
        try:
            fields = _OPTIONS[name](value)
        except ValueError as error:
            raise LaunchRefused(f"cannot translate {argument} for slurmrestd: {error}") from None
        for field in fields:
            other = written_by.setdefault(field, name)
            if other != name:
                raise LaunchRefused(f"slurmrestd has one field for --{name} and --{other}; use one of them")
        job.update(fields)
    variables = {"PATH": _PATH, "SLURM_UMASK": f"{umask:04o}"}
    if "cpus_per_task" in job:
        variables["SLURM_CPUS_PER_TASK"] = str(job["cpus_per_task"])
    return {**job, "environment": [f"{name}={value}" for name, value in variables.items()]}


def _number(value: int) -> Json:
    return {"set": True, "infinite": False, "number": value}


def _text(field: str) -> Callable[[str], Json]:
    return lambda value: {field: value}


def _integer(field: str) -> Callable[[str], Json]:
    def translate(value: str) -> Json:
        if not value.removeprefix("-").isdecimal():
            raise ValueError("it is not a number")
        return {field: int(value)}

    return translate


def _count(field: str) -> Callable[[str], Json]:
    def translate(value: str) -> Json:
        if not value.isdecimal() or int(value) == 0:
            raise ValueError("it is not a number above 0")
        return {field: int(value)}

    return translate


def _flag(fields: Mapping[str, Any]) -> Callable[[str], Json]:
    def translate(value: str) -> Json:
        if value:
            raise ValueError("it takes no value")
        return dict(fields)

    return translate


def _hosts(field: str) -> Callable[[str], Json]:
    return lambda value: {field: list(parse_hostlist(value))}


def _memory(field: str) -> Callable[[str], Json]:
    def translate(value: str) -> Json:
        match = _MEMORY.fullmatch(value)
        if match is None:
            raise ValueError("it is not an amount of memory")
        return {field: _number(math.ceil(int(match[1]) * _MEGABYTES[match[2].upper()]))}

    return translate


def _tres(field: str, kind: str) -> Callable[[str], Json]:
    """`kind` goes before each of the listed resources."""
    return lambda value: {field: ",".join(f"{kind}{each.removeprefix(kind)}" for each in value.split(","))}


def _minutes(field: str) -> Callable[[str], Json]:
    def translate(value: str) -> Json:
        minutes = math.ceil(_seconds(value) / 60)  # as sbatch rounds
        if minutes == 0:
            raise ValueError("a limit of 0 is not supported")
        return {field: _number(minutes)}

    return translate


def _seconds(value: str) -> float:
    """Parse a time of sbatch(1). A plain number means minutes."""
    seconds = None if _DURATION.fullmatch(value) is None else parse_duration(value)
    if seconds is None:
        raise ValueError("it is not a duration")
    return 60.0 * int(value) if value.isdecimal() else seconds


def _signal(value: str) -> Json:
    name, _, delay = value.rpartition("@") if "@" in value else (value, "", "60")
    flags, _, name = name.rpartition(":")
    if set(flags) - {"B"} or not name or not delay.isdecimal():
        raise ValueError("only [B:]NAME@SECONDS is supported")
    if int(delay) > _LONGEST_NOTICE_S:
        raise ValueError(f"the longest notice is {_LONGEST_NOTICE_S} seconds")
    fields: Json = {"kill_warning_signal": name, "kill_warning_delay": _number(int(delay))}
    return {**fields, "kill_warning_flags": ["BATCH_JOB"]} if "B" in flags else fields


def _switches(value: str) -> Json:
    count, at, wait = value.partition("@")
    if not count.isdecimal() or int(count) == 0:
        raise ValueError("it is not a number above 0")
    fields: Json = {"required_switches": _number(int(count))}
    return {**fields, "wait_for_switch": math.ceil(_seconds(wait))} if at else fields


def _environment(value: str) -> Json:
    if value != "NIL":
        raise ValueError("only NIL is supported")
    return {}


_OPTIONS: dict[str, Callable[[str], Json]] = {
    "account": _text("account"),
    "chdir": _text("current_working_directory"),
    "comment": _text("comment"),
    "constraint": _text("constraints"),
    "cpus-per-gpu": lambda value: {"cpus_per_tres": f"gres/gpu:{value}"},
    "cpus-per-task": _count("cpus_per_task"),
    "dependency": _text("dependency"),
    "error": _text("standard_error"),
    "exclude": _hosts("excluded_nodes"),
    "exclusive": lambda value: {"shared": [value or "none"]},
    "export": _environment,
    "gpus-per-node": _tres("tres_per_node", "gres/gpu:"),
    "gres": _tres("tres_per_node", "gres/"),
    "job-name": _text("name"),
    "licenses": _text("licenses"),
    "mem": _memory("memory_per_node"),
    "mem-per-cpu": _memory("memory_per_cpu"),
    "nice": _integer("nice"),
    "no-kill": _flag({"kill_on_node_fail": False}),
    "no-requeue": _flag({"requeue": False}),
    "nodelist": _hosts("required_nodes"),
    "nodes": _text("nodes"),
    "ntasks": _count("tasks"),
    "ntasks-per-node": _count("tasks_per_node"),
    "open-mode": lambda value: {"open_mode": [value.upper()]},
    "output": _text("standard_output"),
    "parsable": _flag({}),
    "partition": _text("partition"),
    "prefer": _text("prefer"),
    "qos": _text("qos"),
    "reservation": _text("reservation"),
    "signal": _signal,
    "switches": _switches,
    "time": _minutes("time_limit"),
    "time-min": _minutes("time_minimum"),
    "wckey": _text("wckey"),
}
