"""Nodes with a record: which ones the next attempt avoids, and until when. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from orchestrator.domain.attempt import AttemptKey
from trainer.contract.failure import FailureKind

# Failures that speak against the machine itself: one is enough. Any other needs company from a second attempt.
GRAVE = frozenset({FailureKind.NODE, FailureKind.INFRASTRUCTURE})
_OTHERS_NEEDED = 2
_MOST_DOUBLINGS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFailure:
    """One mark in a node's record: an attempt failed there, for a reason that may lie in the node."""

    cluster: str
    node: str
    at: datetime
    key: AttemptKey
    kind: FailureKind
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion:
    node: str
    until: datetime
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A part of a cluster that has a queue of its own, as its scheduler tells of it now."""

    name: str
    is_default: bool
    nodes: int
    idle: int
    broken: Mapping[str, str]  # nodes that take no jobs, each with the reason
    gpus: Mapping[str, int]  # by type


def record_begins(now: datetime, *, cooldown_s: float) -> datetime:
    """What is older than the longest exclusion lasts does not count any more."""
    return now - timedelta(seconds=cooldown_s * 2**_MOST_DOUBLINGS)


def exclude(record: Iterable[NodeFailure], *, now: datetime, cooldown_s: float) -> list[Exclusion]:
    """The nodes that new attempts avoid now, by name. They come back after a cool-down, which doubles with each mark.

    A switch that fails may mark all nodes: to avoid them is a wish, and backends start an attempt that has no others.
    """
    by_node: defaultdict[str, list[NodeFailure]] = defaultdict(list)
    for failure in record:
        by_node[failure.node].append(failure)
    exclusions = [
        exclusion for node, marks in by_node.items() if (exclusion := _exclusion(node, marks, now, cooldown_s))
    ]
    return sorted(exclusions, key=lambda exclusion: exclusion.node)


def _exclusion(node: str, marks: list[NodeFailure], now: datetime, cooldown_s: float) -> Exclusion | None:
    grave = [mark for mark in marks if mark.kind in GRAVE]
    if not grave and len({mark.key for mark in marks}) < _OTHERS_NEEDED:
        return None
    newest = max(marks, key=lambda mark: mark.at)
    until = newest.at + timedelta(seconds=cooldown_s * 2 ** min(len(marks) - 1, _MOST_DOUBLINGS))
    if until <= now:
        return None
    return Exclusion(node=node, until=until, sentence=f"node {node} is avoided: {newest.sentence}")
