"""A node is lost and comes back, again and again."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from benchmarks.frame import Figures, render_number, render_table, spread
from benchmarks.nodes.fleet import Fleet, find_split, run_often

LOSSES = ("killed", "off", "cut", "mute")
_STEPS_BETWEEN = (20, 60)


@dataclass
class Score:
    """`next_s`: from the loss to the first step of all others.

    `pauses_s`: from their last step without the node to the first step of all.
    """

    nodes: int
    how: str
    losses: int = 0
    next_s: list[float] = field(default_factory=list)
    hosts: int = 0  # losses of the node whose agent served the store
    pauses_s: list[float] = field(default_factory=list)
    splits: list[str] = field(default_factory=list)

    def document(self) -> Figures:
        return {**vars(self), "recovered": len(self.next_s)}

    @property
    def kept(self) -> bool:
        return len(self.next_s) == self.losses and not self.splits


def lose_often(nodes: int, how: str, losses: int, rng: random.Random) -> Score:
    """Raises NoNamespaces, and NoRecovery if no group forms."""
    score = Score(nodes, how)
    histories = run_often(nodes, losses, partial(_lose, how=how, score=score, rng=rng), title=how)
    score.splits = [split for history in histories if (split := find_split(history)) is not None]
    return score


def _lose(fleet: Fleet, how: str, score: Score, rng: random.Random) -> None:
    network, nodes = fleet.network, fleet.network.count
    host = fleet.store_host()
    node = rng.randrange(nodes) if host is None or rng.random() < 0.5 else host
    score.losses += 1
    score.hosts += node == host
    lost_s = time.time()
    if how in ("killed", "off"):
        network.kill(node, silently=how == "off")
    elif how == "cut":
        network.cut(node)
    else:
        network.mute(node)
    score.next_s.append(fleet.until_world(nodes - 1, after_s=lost_s).at_s - lost_s)
    fleet.until_world(nodes - 1, after_s=time.time(), steps=5)
    network.kill(node)
    network.repair(node)
    back_s = time.time()
    fleet.start(node)
    joined = fleet.until_world(nodes, after_s=back_s, steps=rng.randint(*_STEPS_BETWEEN))
    before_s = max(step.at_s for step in fleet.history() if step.world_size == nodes - 1 and step.at_s < joined.at_s)
    score.pauses_s.append(joined.at_s - before_s)


def render(scores: Sequence[Score]) -> list[str]:
    header = ["nodes", "lost by", "recovered", "store's host lost", "next step, p50", "p95", "max"]
    rows = [
        [
            score.nodes,
            score.how,
            f"{len(score.next_s)} of {score.losses}",
            score.hosts,
            *(render_number(value, "s") for value in spread(score.next_s)),
            *(render_number(value, "s") for value in (spread(score.pauses_s)[0], spread(score.pauses_s)[2])),
            len(score.splits),
        ]
        for score in scores
    ]
    return render_table([*header, "pause at join, p50", "max", "splits"], rows)
