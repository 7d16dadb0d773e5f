"""A network that is parted or lossy for a while, again and again, under a group that trains."""

from __future__ import annotations

import itertools
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from benchmarks.frame import Figures, render_number, render_table, spread
from benchmarks.nodes.fleet import Fleet, find_split, run_often
from benchmarks.recovery.steps import Step

DISTURBANCES = ("parted", "lossy")
_LOST_PERCENT = 30
_STEPS_BETWEEN = (1, 30)
_LONGEST_S = 12.0


@dataclass
class Disturbed:
    """`pauses_s`: the longest time without a step during each disturbance and until the group is whole.

    `whole_s`: from the repair to the next step of all nodes.
    """

    nodes: int
    how: str
    count: int = 0
    pauses_s: list[float] = field(default_factory=list)
    whole_s: list[float] = field(default_factory=list)
    generations: int = 0
    steps: int = 0
    splits: list[str] = field(default_factory=list)

    def document(self) -> Figures:
        return {**vars(self), "recovered": len(self.whole_s)}

    @property
    def kept(self) -> bool:
        return len(self.whole_s) == self.count and not self.splits


def disturb_often(nodes: int, how: str, count: int, rng: random.Random) -> Disturbed:
    """Disturb the network of a group, and repair it. Raises NoNamespaces, and NoRecovery if no group forms."""
    found = Disturbed(nodes, how)
    for history in run_often(nodes, count, partial(_disturb, found=found, rng=rng), title=how):
        found.generations += len({step.generation for step in history})
        found.steps += len(history)
        split = find_split(history)
        if split is not None:
            print(f"{nodes} nodes, {how}: split: {split}", file=sys.stderr, flush=True)
            found.splits.append(split)
    return found


def _disturb(fleet: Fleet, found: Disturbed, rng: random.Random) -> None:
    nodes = range(fleet.network.count)
    found.count += 1
    began_s = time.time()
    if found.how == "parted":
        fleet.network.part(rng.sample(nodes, rng.randint(1, len(nodes) - 1)))
    else:
        fleet.network.lose(rng.choice(nodes), _LOST_PERCENT)
    time.sleep(rng.uniform(0, _LONGEST_S))
    for node in nodes:
        fleet.network.repair(node)
    repaired_s = time.time()
    whole = fleet.until_world(len(nodes), after_s=repaired_s, steps=rng.randint(*_STEPS_BETWEEN))
    found.whole_s.append(whole.at_s - repaired_s)
    found.pauses_s.append(_find_pause(fleet.history(), began_s, whole.at_s))


def _find_pause(history: Sequence[Step], began_s: float, ended_s: float) -> float:
    times = [began_s, *(step.at_s for step in history if began_s < step.at_s < ended_s), ended_s]
    return max(after - before for before, after in itertools.pairwise(times))


def render(rows: Sequence[Disturbed]) -> list[str]:
    header = ["nodes", "network", "whole again", "after, p50", "longest", "longest pause, p50", "longest"]
    cells = [
        [
            row.nodes,
            row.how,
            f"{len(row.whole_s)} of {row.count}",
            *(render_number(value, "s") for value in spread(row.whole_s)[::2]),
            *(render_number(value, "s") for value in spread(row.pauses_s)[::2]),
            row.generations,
            row.steps,
            len(row.splits),
        ]
        for row in rows
    ]
    return render_table([*header, "generations", "steps", "splits"], cells)
