"""From the loss of a node to the next step of all others, and how long they pause when it comes back. Linux, as root.

    python -m benchmarks.nodes [--nodes 2 3 5] [--losses N] [--how killed off cut mute] [--seed N]

The nodes are network namespaces of this machine. Each runs an agent with one worker of the bundled trainer. A random
node is lost, also the one whose agent serves the rendezvous store:

    killed  SIGKILL to all its processes; its kernel closes their connections
    off     its power fails: it sends nothing more
    cut     no packet leaves or reaches it, but its processes live
    mute    no packet leaves it; it still receives

Then it comes back with new processes. The workers themselves write the time of each step, on the same clock. A *split*
is a step of an older generation after a newer one has begun.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.frame import Figures, begin, build_parser, finish, render_number, render_table
from benchmarks.nodes.fleet import Fleet, NoRecovery, find_split
from deploy.dev.network import Network, NoNamespaces

WAYS = ("killed", "off", "cut", "mute")
_STEPS_BETWEEN = (20, 60)


@dataclass
class Score:
    """`next_s`: to the next step of all others. `pauses_s`: without a step while the node joins."""

    nodes: int
    how: str
    losses: int = 0
    next_s: list[float] = field(default_factory=list)
    hosts: int = 0  # losses of the node whose agent served the store
    pauses_s: list[float] = field(default_factory=list)
    splits: list[str] = field(default_factory=list)

    def document(self) -> Figures:
        return {**vars(self), "recovered": len(self.next_s)}


def measure(nodes: int, how: str, losses: int, rng: random.Random) -> Score:
    """Raises NoNamespaces."""
    score = Score(nodes, how)
    while score.losses < losses:
        with tempfile.TemporaryDirectory() as folder, Network(nodes) as network:
            fleet = Fleet(network, Path(folder).resolve())
            try:
                _form(fleet, nodes)
                while score.losses < losses:
                    _lose(fleet, how, score, rng)
            except NoRecovery as error:
                print(f"{nodes} nodes, {how}: no recovery: {error}", file=sys.stderr, flush=True)
            finally:
                fleet.end()
                split = find_split(fleet.history())
                score.splits += [] if split is None else [split]
    return score


def _form(fleet: Fleet, nodes: int) -> None:
    began = time.time()
    for node in range(nodes):
        fleet.start(node)
    fleet.until_world(nodes, after_s=began, steps=_STEPS_BETWEEN[0])


def _lose(fleet: Fleet, how: str, score: Score, rng: random.Random) -> None:
    network, nodes = fleet.network, fleet.network.count
    node = rng.randrange(nodes)
    score.losses += 1
    score.hosts += node == fleet.store_host()
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


def render(scores: list[Score]) -> list[str]:
    header = ["nodes", "lost by", "went on", "of the store's host", "next step, p50", "p95", "longest"]
    rows = [
        [
            score.nodes,
            score.how,
            f"{len(score.next_s)} of {score.losses}",
            score.hosts,
            *(render_number(value, "s") for value in _spread(score.next_s)),
            *(render_number(value, "s") for value in (_spread(score.pauses_s)[0], _spread(score.pauses_s)[2])),
            len(score.splits),
        ]
        for score in scores
    ]
    return render_table([*header, "pause when it joins, p50", "longest", "splits"], rows)


def _spread(times: list[float]) -> tuple[float | None, float | None, float | None]:
    """Median, 95th percentile by nearest rank, maximum."""
    ordered = sorted(times)
    if not ordered:
        return None, None, None
    return statistics.median(ordered), ordered[-(-95 * len(ordered) // 100) - 1], ordered[-1]


def main() -> int:
    options = _parse_options()
    begin()
    rng = random.Random(options.seed)
    scores: list[Score] = []
    try:
        for nodes, how in _cases(options):
            scores.append(measure(nodes, how, options.losses, rng))
            print(*render(scores[-1:])[2:], sep="\n", file=sys.stderr, flush=True)
    except NoNamespaces as error:
        sys.exit(str(error))
    kept = all(len(score.next_s) == score.losses and not score.splits for score in scores)
    figures = {"nodes": [score.document() for score in scores]}
    return finish(figures, [f"Seed {options.seed}.", "", *render(scores)], as_json=options.json, kept=kept)


def _cases(options: Namespace) -> Iterator[tuple[int, str]]:
    return ((nodes, how) for nodes in options.nodes for how in options.how)


def _parse_options() -> Namespace:
    parser = build_parser("nodes", __doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 3, 5])
    parser.add_argument("--losses", type=int, default=50, help="of each kind")
    parser.add_argument("--how", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
