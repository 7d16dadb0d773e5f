"""Faults that an operator requests of a running attempt, and the ranks that each one hits. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeGuard


class Fault(str, Enum):
    KILL = "kill"  # a worker, by SIGKILL
    HANG = "hang"  # a worker stops for good
    SLOW = "slow"  # a worker is paused again and again for a while
    PREEMPT = "preempt"  # the agents get a scheduler's notice
    NODE_LOSS = "node-loss"  # an agent with all of its workers, by SIGKILL
    DISK_FULL = "disk-full"  # a worker's part of the next snapshot cannot be written
    CORRUPT_SNAPSHOT = "corrupt-snapshot"  # the newest snapshot is damaged


OF_RANK = frozenset({Fault.KILL, Fault.HANG, Fault.SLOW, Fault.NODE_LOSS, Fault.DISK_FULL})
OF_NODE = OF_RANK | {Fault.PREEMPT}


@dataclass(frozen=True, kw_only=True)
class Chaos:
    """One fault. `number` is that of the request. Its claim makes it happen at most once."""

    number: int
    fault: Fault
    rank: int | None = None
    replica: int | None = None


def render_chaos(chaos: Chaos) -> dict[str, object]:
    return {**vars(chaos), "fault": chaos.fault.value}


def parse_chaos(document: object) -> Chaos | None:
    """None for an invalid document: an unknown fault must not become another one."""
    if not isinstance(document, Mapping):
        return None
    number, rank, replica = (document.get(name) for name in ("number", "rank", "replica"))
    fault = next((each for each in Fault if each.value == document.get("fault")), None)
    if fault is None or not _is_count(number) or not number or not _is_place(rank) or not _is_place(replica):
        return None
    return Chaos(number=number, fault=fault, rank=rank, replica=replica)


def find_targets(chaos: Chaos, *, replica: int, ranks: Collection[int], world_size: int) -> tuple[int, ...]:
    """The ranks of an agent that the fault hits. Empty if it is for another agent.

    Without a rank it hits the last rank of the group, or of the named replica. A notice of preemption is for all agents
    or for the named one. The agent of rank 0 damages the newest snapshot.
    """
    if not ranks or chaos.replica not in (None, replica):
        return ()
    if chaos.fault is Fault.PREEMPT:
        return tuple(sorted(ranks))
    if chaos.fault is Fault.CORRUPT_SNAPSHOT:
        target = 0
    elif chaos.rank is not None:
        target = chaos.rank
    else:
        target = world_size - 1 if chaos.replica is None else max(ranks)
    return (target,) if target in ranks else ()


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_place(value: object) -> TypeGuard[int | None]:
    return value is None or _is_count(value)
