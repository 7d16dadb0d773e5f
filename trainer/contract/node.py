"""Documents between the service, a batch script, and the process that starts the agent of a node. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainer.contract import layout

# Placeholders in a launcher's flags, for the first node's address and for the node's own.
HEAD, LOCAL = "{head}", "{local}"
# A file that the program which starts the agent touches again and again. Its number is the replica's.
ALIVE, ALIVE_EVERY_S = "alive-", 2.0
_LONGEST_NAME = 255
_DEPARTED = re.compile(layout.DEPARTED + r"([0-9]{1,9})\.json\Z")


@dataclass(frozen=True, kw_only=True)
class NodeLaunch:
    """What every node starts. Contains the job's secrets."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    workdir: str
    interface: str | None = None  # the network interface of the workers; None: the one that reaches the first node


def render_node_launch(launch: NodeLaunch) -> dict[str, object]:
    return {**vars(launch), "environment": dict(launch.environment)}


def parse_node_launch(document: Mapping[str, object]) -> NodeLaunch:
    """Raises ValueError for an incomplete document."""
    environment, interface = document.get("environment"), document.get("interface")
    if not isinstance(environment, Mapping):
        raise ValueError("node launch: environment is not an object")
    return NodeLaunch(
        command=_texts(document, "command"),
        environment={str(name): str(value) for name, value in environment.items()},
        workdir=str(document["workdir"]) if "workdir" in document else "/",
        interface=None if interface is None else str(interface),
    )


def fill_in(command: Sequence[str], *, head: str, local: str) -> list[str]:
    """Put both addresses into the launcher's own flags. The user's command after them is left unchanged."""
    filled = list(command)
    for flag, mark, value in (("--rdzv-endpoint=", HEAD, head), ("--local-addr=", LOCAL, local)):
        for place, word in enumerate(filled):
            if word.startswith(flag + mark):
                filled[place] = flag + value + word[len(flag + mark) :]
                break
    return filled


def find_port(command: Sequence[str]) -> int | None:
    """The port of the rendezvous on the first node, from the launcher's own flags. None if they name none."""
    flag = f"--rdzv-endpoint={HEAD}:"
    value = next((word.removeprefix(flag) for word in command if word.startswith(flag)), "")
    return int(value) if value.isdecimal() else None


@dataclass(frozen=True, kw_only=True)
class Departure:
    """How an agent ended, by the process that started it. If `recorded`, the agent left its own record: that counts."""

    replica: int
    node: str
    claim: str
    exit_code: int  # negative: the signal that killed it
    recorded: bool
    at: str  # RFC 3339 UTC


def departure_name(replica: int) -> str:
    return f"{layout.DEPARTED}{replica}.json"


def parse_departure_name(name: str) -> int | None:
    """The replica of a departure's file; None for any other file."""
    match = _DEPARTED.match(name)
    return None if match is None else int(match[1])


def render_departure(departure: Departure) -> dict[str, object]:
    return dict(vars(departure))


def parse_departure(document: Mapping[str, object]) -> Departure:
    """Raises ValueError for an incomplete document."""
    try:
        return Departure(
            replica=int(str(document["replica"])),
            node=str(document["node"])[:_LONGEST_NAME],
            claim=str(document["claim"]),
            exit_code=int(str(document["exit_code"])),
            recorded=document.get("recorded") is True,
            at=str(document.get("at", "")),
        )
    except KeyError as error:
        raise ValueError(f"not a departure: {error} is missing") from error


def _texts(document: Mapping[str, object], name: str) -> tuple[str, ...]:
    value = document.get(name)
    if not isinstance(value, list) or not value:
        raise ValueError(f"node launch: {name} is not a list of words")
    return tuple(str(word) for word in value)
