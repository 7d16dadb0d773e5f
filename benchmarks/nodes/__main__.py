"""Losing nodes and getting them back: seconds to the next step of the group, each time, on machines of our own.

    python -m benchmarks.nodes [--nodes N] [--losses N] [--how kill|cut|both] [--load N] [--seed N] [--json]
    python -m benchmarks.nodes --nodes 3 --scale-ups 20
    python -m benchmarks.nodes --store-losses 5

Each node is a network namespace with an agent, one worker of the bundled trainer and an address of its own; node 0
holds the rendezvous. A node other than that is lost by SIGKILL for all of its processes, or by a network that goes
silent; the survivors go on without it, then it comes back. Every step is kept: two worlds that train at one time would
be a split. `--scale-ups` starts so many groups instead, node after node. `--store-losses` cuts the network of node 0
instead, so many times: node 0 must train on alone, and the agents of the others must end. `--load` keeps so many
processes busy. `--json` prints one object at the end, and what happens meanwhile to stderr. Needs root, for the
namespaces.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path

from benchmarks import yardstick
from deploy.dev.fleet import Fleet, NoRecovery, find_split
from deploy.dev.network import Network

_SETTLED_STEPS = 10
_ENDS_WITHIN_S = 300.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--losses", type=int, default=5)
    parser.add_argument("--how", choices=("kill", "cut", "both"), default="both")
    parser.add_argument("--scale-ups", type=int, default=0)
    parser.add_argument("--store-losses", type=int, default=0)
    parser.add_argument("--load", type=int, default=0, help="busy processes beside it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # what was started ends all the same
    with redirect_stdout(sys.stderr) if options.json else nullcontext():
        figures = _measure(options)
    if options.json:
        print(json.dumps(figures))
    return 0 if figures["passed"] else 1


def _measure(options: argparse.Namespace) -> dict[str, object]:
    """What was found; `passed` says whether it is as it must be. Times in seconds."""
    print(f"{yardstick.describe()}  seed {options.seed}", flush=True)
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(options.load)]
    try:
        with Network(options.nodes) as network:
            return {"nodes": network.count, **_try(network, options)}
    finally:
        for process in busy:
            process.kill()


def _try(network: Network, options: argparse.Namespace) -> dict[str, object]:
    if options.scale_ups:
        return _scale_up(network, options.scale_ups)
    if options.store_losses:
        return _lose_store(network, options.store_losses)
    with _fleet(network) as fleet:
        return _lose(fleet, options)


@contextmanager
def _fleet(network: Network) -> Iterator[Fleet]:
    with tempfile.TemporaryDirectory() as folder:
        fleet = Fleet(network, Path(folder).resolve())
        try:
            yield fleet
        finally:
            fleet.end()


def _grow(fleet: Fleet) -> list[float]:
    """Start the nodes one after the other; the seconds from each one's start to the first step with it."""
    joined_s = []
    for node in range(fleet.network.count):
        began = time.time()
        fleet.start(node)
        joined_s.append(fleet.until_world(node + 1, after_s=began, steps=_SETTLED_STEPS).at_s - began)
    told = ", ".join(f"{seconds:.2f}" for seconds in joined_s)
    print(f"1 to {fleet.network.count} nodes: first step {told} s after the start of each", flush=True)
    return joined_s


def _scale_up(network: Network, times: int) -> dict[str, object]:
    joined_s: list[float] = []
    whole = 0
    for _ in range(times):
        with _fleet(network) as fleet:
            try:
                joined_s += _grow(fleet)[1:]
            except NoRecovery as error:
                print(f"did not grow: {error}", flush=True)
                continue
            whole += find_split(fleet.history()) is None
    print(f"{whole} of {times} grew without a split; {_tell('join', joined_s)}")
    return {"passed": whole == times, "scale_ups": times, "whole": whole, "join": _summary(joined_s)}


def _lose_store(network: Network, times: int) -> dict[str, object]:
    alone_s: list[float] = []
    ended_s: list[float] = []
    for number in range(times):
        with _fleet(network) as fleet:
            _grow(fleet)
            at = time.time()
            network.cut(0)
            alone_s.append(fleet.until_world(1, after_s=at, steps=_SETTLED_STEPS).at_s - at)
            for agent in fleet.agents[1:]:
                agent.wait(_ENDS_WITHIN_S)
            ended_s.append(time.time() - at)
            split = find_split(fleet.history())
            left = sum(len(network.pids(node)) for node in range(1, network.count))
        print(
            f"{number + 1:3} cut node 0: it goes on after {alone_s[-1]:.2f} s, the others ended after "
            f"{ended_s[-1]:.2f} s and left {left} processes; split: {split or 'none'}",
            flush=True,
        )
    print(f"{_tell('goes on', alone_s)}; {_tell('the others ended', ended_s)}")
    return {"passed": True, "store_losses": times, "goes_on": _summary(alone_s), "others_ended": _summary(ended_s)}


def _lose(fleet: Fleet, options: argparse.Namespace) -> dict[str, object]:
    dice = random.Random(options.seed)
    lost_s: dict[str, list[float]] = {"kill": [], "cut": []}
    count = options.nodes
    joined_s = _grow(fleet)[1:]
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
            print(_tell(name, times))
    print(f"split: {split or 'none'}")
    losses = {f"loss_by_{how}": _summary(told) for how, told in lost_s.items()}
    return {"passed": split is None, "split": split, "losses": options.losses, **losses, "join": _summary(joined_s)}


def _summary(times: list[float]) -> dict[str, object]:
    return {
        "n": len(times),
        "p50_s": round(statistics.median(times), 3) if times else None,
        "max_s": round(max(times), 3) if times else None,
    }


def _tell(name: str, times: list[float]) -> str:
    return f"{name}: n {len(times)}  median {statistics.median(times):.2f} s  max {max(times):.2f} s"


if __name__ == "__main__":
    sys.exit(main())
