"""Copies of a job's state in the memory of its nodes: what they cost, and after which failures one is left. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTier:
    """The settings of copies. Times are in seconds.

    With `survivors`, a failure that leaves all nodes alive loses no completed step. Nodes are in rings of `buddies`,
    and each node of a ring also holds the copies of the node before it. 0 means that a lost node loses its copies.
    """

    interval_s: float
    stall_s: float
    restart_s: float
    survivors: bool = False
    buddies: int = 0


class Copies:
    """The newest copies of one job. `whole` means that they are the whole state of one step.

    As soon as a node of a ring is lost, the others of the ring hold the only copies of some parts, until the next copy.
    A loss of one of them is taken as a loss of the state. In rings of more than two nodes this is not always true.
    """

    def __init__(self, tier: MemoryTier) -> None:
        self.tier = tier
        self.whole = False
        self._needed: set[str] = set()  # nodes whose loss would lose the state, beside two of one ring at once

    def renew(self) -> None:
        """Note that another copy is complete on all nodes."""
        self.whole, self._needed = True, set()

    def lose_nodes(self, replicas: Sequence[int], nodes: Sequence[str]) -> None:
        """Note the loss of these replicas of an attempt on `nodes`."""
        size = self.tier.buddies
        rings = Counter(replica // size for replica in replicas) if size > 1 else Counter[int]()
        lost = {nodes[replica] for replica in replicas}
        holders = {name for ring in rings for name in nodes[ring * size : (ring + 1) * size]}
        has_buddies = all(len(nodes[ring * size : (ring + 1) * size]) > 1 for ring in rings)
        if not rings or not has_buddies or max(rings.values()) > 1 or lost & self._needed:
            self.forget()
        elif self.whole:
            self._needed |= holders - lost

    def forget(self) -> None:
        """Note that no copy is left, because agents have ended."""
        self.whole, self._needed = False, set()
