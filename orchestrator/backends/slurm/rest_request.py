"""Translate sbatch's options into the fields of slurmrestd's job description (API v0.0.42). Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from orchestrator.backends.slurm.hostlist import parse_hostlist
from orchestrator.backends.slurm.listing import parse_duration
from orchestrator.domain.errors import LaunchRefused

Json = dict[str, Any]

_PATH = "/usr/local/bin:/usr/bin:/bin"
_MEGABYTES = {"": 1, "K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2}
_MEMORY = re.compile(r"([0-9]+)([KMGT]?)B?", re.IGNORECASE)


def render_job(arguments: Sequence[str]) -> Json:
    """Translate `--name=value` and `--name`. Raises LaunchRefused for an option that slurmrestd has no field for."""
    job: Json = {}
    for argument in arguments:
        name, _, value = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or name not in _OPTIONS:
            raise LaunchRefused(f"sbatch's option {argument.partition('=')[0]} is not supported with slurmrestd")
        try:
            job.update(_OPTIONS[name](value))
        except ValueError as error:
            raise LaunchRefused(f"cannot translate {argument} for slurmrestd: {error}") from None
    return job


def number(value: int) -> Json:
    return {"set": True, "infinite": False, "number": value}


def _text(field: str) -> Callable[[str], Json]:
    return lambda value: {field: value}


def _integer(field: str) -> Callable[[str], Json]:
    return lambda value: {field: int(value)}


def _fixed(fields: Mapping[str, Any]) -> Callable[[str], Json]:
    return lambda _: dict(fields)


def _hosts(field: str) -> Callable[[str], Json]:
    return lambda value: {field: list(parse_hostlist(value))}


def _memory(field: str) -> Callable[[str], Json]:
    def translate(value: str) -> Json:
        match = _MEMORY.fullmatch(value)
        if match is None:
            raise ValueError("no amount of memory")
        return {field: number(round(int(match[1]) * _MEGABYTES[match[2].upper()]))}

    return translate


def _tres(field: str) -> Callable[[str], Json]:
    return lambda value: {field: ",".join(f"gres/{each.removeprefix('gres/')}" for each in value.split(","))}


def _minutes(field: str) -> Callable[[str], Json]:
    def translate(value: str) -> Json:
        # Without a colon and a dash, sbatch takes a number as minutes.
        seconds = int(value) * 60 if value.isdecimal() else parse_duration(value)
        if seconds is None:
            raise ValueError("no duration")
        return {field: number(max(1, round(seconds / 60)))}

    return translate


def _signal(value: str) -> Json:
    name, _, delay = value.rpartition("@") if "@" in value else (value, "", "60")
    flags, _, name = name.rpartition(":")
    fields: Json = {"kill_warning_signal": name, "kill_warning_delay": number(int(delay))}
    return {**fields, "kill_warning_flags": ["BATCH_JOB"]} if "B" in flags else fields


def _switches(value: str) -> Json:
    count, at, wait = value.partition("@")
    fields: Json = {"required_switches": number(int(count))}
    if not at:
        return fields
    seconds = int(wait) * 60 if wait.isdecimal() else parse_duration(wait)
    if seconds is None:
        raise ValueError("no duration")
    return {**fields, "wait_for_switch": int(seconds)}


def _environment(value: str) -> Json:
    if value != "NIL":
        raise ValueError("only NIL is supported")
    return {"environment": [f"PATH={_PATH}"]}


_OPTIONS: dict[str, Callable[[str], Json]] = {
    "account": _text("account"),
    "begin": _integer("begin_time"),
    "chdir": _text("current_working_directory"),
    "comment": _text("comment"),
    "constraint": _text("constraints"),
    "cpus-per-gpu": lambda value: {"cpus_per_tres": f"gres/gpu:{value}"},
    "cpus-per-task": _integer("cpus_per_task"),
    "dependency": _text("dependency"),
    "error": _text("standard_error"),
    "exclude": _hosts("excluded_nodes"),
    "exclusive": lambda value: {"shared": [value or "none"]},
    "export": _environment,
    "gpus-per-node": lambda value: {"tres_per_node": f"gres/gpu:{value}"},
    "gres": _tres("tres_per_node"),
    "job-name": _text("name"),
    "licenses": _text("licenses"),
    "mem": _memory("memory_per_node"),
    "mem-per-cpu": _memory("memory_per_cpu"),
    "nice": _integer("nice"),
    "no-kill": _fixed({"kill_on_node_fail": False}),
    "no-requeue": _fixed({"requeue": False}),
    "nodelist": _hosts("required_nodes"),
    "nodes": _text("nodes"),
    "ntasks": _integer("tasks"),
    "ntasks-per-node": _integer("tasks_per_node"),
    "open-mode": lambda value: {"open_mode": [value.upper()]},
    "output": _text("standard_output"),
    "parsable": _fixed({}),
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
