"""`agent.json`: the process that is the agent of a replica. A reused pid is never taken for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ProcessIdentity:
    """Identifies a process: a pid is reused, but not with the same start time in one boot (proc(5), field 22)."""

    pid: int
    start_ticks: int  # clock ticks after boot
    boot_id: str  # /proc/sys/kernel/random/boot_id
    host: str


@dataclass(frozen=True, kw_only=True)
class AgentRecord:
    process: ProcessIdentity
    claim: str
    incarnation: int
    at: str  # RFC 3339 UTC


def render_agent_record(record: AgentRecord) -> dict[str, object]:
    return {**vars(record), "process": dict(vars(record.process))}


def parse_agent_record(document: Mapping[str, object]) -> AgentRecord:
    """Raises ValueError for a document without a complete process identity."""
    try:
        process = document["process"]
        if not isinstance(process, Mapping):
            raise ValueError("agent record: process is not an object")
        return AgentRecord(
            process=ProcessIdentity(
                pid=int(process["pid"]),
                start_ticks=int(process["start_ticks"]),
                boot_id=str(process["boot_id"]),
                host=str(process["host"]),
            ),
            claim=str(document["claim"]),
            incarnation=int(str(document["incarnation"])),
            at=str(document.get("at", "")),
        )
    except (KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"not an agent record: {error!r}") from error
