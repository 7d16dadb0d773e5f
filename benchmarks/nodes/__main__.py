"""Losing nodes and getting them back: seconds to the next step of the group, each time, on machines of our own.

    python -m benchmarks.nodes [--nodes N] [--losses N] [--how kill|cut|both] [--load N] [--seed N]

Each node is a network namespace with an agent, one worker of the bundled trainer and an address of its own; node 0
holds the rendezvous. A node other than that is lost by SIGKILL for all of its processes, or by a network that goes
silent; the survivors go on without it, then it comes back. Every step is kept: two worlds that train at one time would
be a split. `--load` keeps so many processes busy beside it. Needs root, for the namespaces.
"""

from __future__ import annotations

import argparse
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import yardstick
from deploy.dev.fleet import Fleet, find_split
from deploy.dev.network import Network

_SETTLED_STEPS = 10


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--losses", type=int, default=5)
    parser.add_argument("--how", choices=("kill", "cut", "both"), default="both")
    parser.add_argument("--load", type=int, default=0, help="busy processes beside it")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # what was started ends all the same
    print(f"{yardstick.describe()}  seed {options.seed}", flush=True)
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(options.load)]
    try:
        with Network(options.nodes) as network, tempfile.TemporaryDirectory() as folder:
            fleet = Fleet(network, Path(folder).resolve())
            try:
                return _run(fleet, options)
            finally:
                fleet.end()
    finally:
        for process in busy:
            process.kill()


def _run(fleet: Fleet, options: argparse.Namespace) -> int:
    dice = random.Random(options.seed)
    lost_s: dict[str, list[float]] = {"kill": [], "cut": []}
    joined_s, count = [], options.nodes
    for node in range(count):  # one after the other: the group grows each time
        began = time.time()
        fleet.start(node)
        joined_s.append(fleet.until_world(node + 1, after_s=began, steps=_SETTLED_STEPS).at_s - began)
        print(f"{node + 1} nodes: first step {joined_s[-1]:.2f} s after the start of the last", flush=True)
    for number in range(options.losses):
        node = dice.randrange(1, count)
        how = options.how if options.how != "both" else ("kill", "cut")[number % 2]
        at = time.time()
        fleet.network.kill(node) if how == "kill" else fleet.network.cut(node)
        alone = fleet.until_world(count - 1, after_s=at, steps=_SETTLED_STEPS)
        lost_s[how].append(alone.at_s - at)
        fleet.network.kill(node)
        fleet.network.mend(node)
        began = time.time()
        fleet.start(node)
        joined_s.append(fleet.until_world(count, after_s=began, steps=_SETTLED_STEPS).at_s - began)
        print(
            f"{number + 1:3} {how} node {node}: next step {lost_s[how][-1]:.2f} s, rejoined {joined_s[-1]:.2f} s",
            flush=True,
        )
    split = find_split(fleet.history())
    for name, times in {**{f"loss by {how}": told for how, told in lost_s.items()}, "join": joined_s}.items():
        if times:
            print(f"{name}: n {len(times)}  median {statistics.median(times):.2f} s  max {max(times):.2f} s")
    print(f"split: {split or 'none'}")
    return 0 if split is None else 1


if __name__ == "__main__":
    sys.exit(main())
