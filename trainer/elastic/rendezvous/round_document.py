"""The document by which agents agree on a worker group. Pure.

A round is OPEN while agents join it, FORMED once it has its group, and CLOSED when no group may follow. A formed round
takes no new member: a newcomer waits. Once it is ready, the members open the next round for it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from enum import Enum


class Stage(str, Enum):
    OPEN = "open"
    FORMED = "formed"
    CLOSED = "closed"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How many agents a group may have."""

    min_nodes: int
    max_nodes: int


@dataclass(frozen=True, kw_only=True)
class Member:
    """One agent. `node_rank` orders the group; `generation` is the highest that this agent knows of."""

    node: str
    node_rank: int | None  # None: after the members that have one, in the order of arrival
    address: str
    workers: int
    generation: int = 0
    copies_url: str = ""  # where its agent serves copies of the state
    beats_port: int = 0  # for heartbeats by UDP
    is_ready: bool = True  # its workers could start at once
    incarnation: int = 0  # of its replica; 0: not known


@dataclass(frozen=True, kw_only=True)
class WorkersStore:
    """The store of a generation's workers. `by_agent`: the agent of group rank 0 serves it; otherwise worker 0 does."""

    address: str
    port: int
    by_agent: bool


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a generation ended, as seen by the agent that opens the next round."""

    change: str = ""  # of the group; empty: a worker failed
    lasted: bool = True  # it made progress, so the next one may start at once


@dataclass(frozen=True, kw_only=True)
class Round:
    """The document. The `members` of a formed round are in the order of their group ranks."""

    number: int = 0
    stage: Stage = Stage.OPEN
    generation: int = 0
    epoch: int = 0  # of the newest group or store; see epochs.py
    size: int = 0  # of the newest group, when it formed
    members: tuple[Member, ...] = ()
    awaited: frozenset[str] = frozenset()  # members of the previous round that are expected back
    waiting: tuple[Member, ...] = ()  # newcomers to a formed round
    finished: frozenset[str] = frozenset()  # members whose workers all succeeded
    lossy: tuple[str, ...] = ()  # agents from which too many packets are lost, the latest last
    store: WorkersStore | None = None
    still: tuple[tuple[str, str], ...] = ()  # members whose workers are still, each with its report (stillness.py)
    change: str = ""  # why this round was opened; empty: it is the first, or a worker failed
    short_lived: int = 0  # how many generations in a row before this one did not last
    reason: str = ""  # why it was closed

    @property
    def nodes(self) -> frozenset[str]:
        return frozenset(member.node for member in self.members)

    def has(self, node: str) -> bool:
        return node in self.nodes


def render_round(round_: Round) -> str:
    sets = {name: sorted(getattr(round_, name)) for name in ("awaited", "finished")}
    document = asdict(round_) | sets
    return json.dumps(document, separators=(",", ":"), sort_keys=True)


def parse_round(text: str) -> Round:
    """Parse the text of `render_round`. Raises ValueError for another text."""
    try:
        document = json.loads(text)
        return Round(
            number=document["number"],
            stage=Stage(document["stage"]),
            generation=document["generation"],
            epoch=document["epoch"],
            size=document["size"],
            members=_parse_members(document["members"]),
            awaited=frozenset(document["awaited"]),
            waiting=_parse_members(document["waiting"]),
            finished=frozenset(document["finished"]),
            lossy=tuple(document["lossy"]),
            store=None if document["store"] is None else WorkersStore(**document["store"]),
            still=tuple((node, report) for node, report in document["still"]),
            change=document["change"],
            short_lived=document["short_lived"],
            reason=document["reason"],
        )
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"the rendezvous document is not elasticrun's: {text[:200]!r}") from error


def _parse_members(documents: Collection[Mapping[str, object]]) -> tuple[Member, ...]:
    return tuple(Member(**document) for document in documents)  # type: ignore[arg-type]
