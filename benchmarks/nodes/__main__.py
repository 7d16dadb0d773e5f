"""From the loss of a node to the next step of all others, and how long they pause when it comes back. Linux, as root.

    python -m benchmarks.nodes [--nodes 2 3 5] [--times N] [--how killed off cut mute parted lossy] [--seed N]

The nodes are network namespaces of this machine. Each runs an agent with one worker of the bundled trainer. A node is
lost and comes back with new processes. Half of the losses hit the host of the rendezvous store. The others are drawn
from all nodes, the host included:

    killed  SIGKILL to all its processes; its kernel closes their connections
    off     its power fails: it sends nothing more
    cut     no packet leaves or reaches it, but its processes live
    mute    no packet leaves it; it still receives

Or the network is disturbed for up to 12 s, and no process is killed:

    parted  two random sides cannot reach each other
    lossy   30 % of the packets to and from a random node are lost (needs nft)

The workers themselves write the time of each step, on the same clock. A *split* is a step of an older generation after
a newer one has begun, or one generation of two groups. The step that was under way when the group changed does not
count, because all ranks had contributed to it.
"""

from __future__ import annotations

import random
import shutil
import sys
from argparse import Namespace

from benchmarks.frame import begin, build_parser, finish
from benchmarks.nodes import disturbances, losses
from benchmarks.nodes.fleet import NoRecovery
from deploy.dev.network import NoNamespaces


def main() -> int:
    options = _parse_options()
    begin()
    rng = random.Random(options.seed)
    lost: list[losses.Score] = []
    disturbed: list[disturbances.Disturbed] = []
    try:
        for nodes in options.nodes:
            for how in options.how:
                if how in losses.LOSSES:
                    lost.append(losses.lose_often(nodes, how, options.times, rng))
                    print(*losses.render(lost[-1:])[2:], sep="\n", file=sys.stderr, flush=True)
                else:
                    disturbed.append(disturbances.disturb_often(nodes, how, options.times, rng))
                    print(*disturbances.render(disturbed[-1:])[2:], sep="\n", file=sys.stderr, flush=True)
    except (NoNamespaces, NoRecovery) as error:
        sys.exit(str(error))
    scores: list[losses.Score | disturbances.Disturbed] = [*lost, *disturbed]
    tables = [f"Seed {options.seed}."]
    tables += ["", *losses.render(lost)] if lost else []
    tables += ["", *disturbances.render(disturbed)] if disturbed else []
    figures = {"nodes": [score.document() for score in scores]}
    return finish(figures, tables, as_json=options.json, kept=all(score.kept for score in scores))


def _parse_options() -> Namespace:
    parser = build_parser("nodes", __doc__)
    ways = [*losses.LOSSES, *disturbances.DISTURBANCES]
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 3, 5])
    parser.add_argument("--times", type=int, default=50, help="of each kind")
    parser.add_argument("--how", nargs="+", choices=ways, default=ways)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if "lossy" in options.how and shutil.which("nft") is None:
        parser.error("lossy needs nft(8); leave it out with --how")
    return options


if __name__ == "__main__":
    sys.exit(main())
