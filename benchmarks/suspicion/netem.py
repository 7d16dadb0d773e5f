"""Real links between simulated machines whose networks delay, reorder and lose datagrams. Linux, as root.

tc-netem(8) does so where the kernel has it, otherwise a relay between the machines.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass

from benchmarks.frame import Figures
from benchmarks.suspicion.relay import DELAY_S, JITTER_S, LOSS
from deploy.dev.network import Network

NODES = 4
_SETTLES_S = 10.0  # in which the links learn


@dataclass
class Measured:
    """`deaths_s`: how soon each of the others suspected the machine whose packets were dropped."""

    shaped_by: str
    reports: list[Figures]
    deaths_s: list[float]


def measure(minutes: float) -> Measured:
    """Raises NoNamespaces."""
    with Network(NODES + 1) as network, ExitStack() as stack:
        has_netem = all(_shape(network, node) for node in range(NODES))
        nodes = [_start(stack, network, node, "node", _name(node)) for node in range(NODES)]
        places = [(network.address(node), json.loads(_read(process))) for node, process in enumerate(nodes)]
        if not has_netem:
            relay = _start(stack, network, NODES, "relay", str(NODES))
            ports = json.loads(_read(relay))
            _write(relay, places)
            places = [(network.address(NODES), port) for port in ports]
        for process in nodes:
            _write(process, {_name(node): place for node, place in enumerate(places)})
        time.sleep(_SETTLES_S + minutes * 60)
        for process in nodes:
            _write(process, None)
        reports = [json.loads(_read(process)) for process in nodes]
        cut_s = time.monotonic()
        network.cut(0)
        for process in nodes[1:]:
            _write(process, _name(0))
        deaths_s = [json.loads(_read(process)) - cut_s for process in nodes[1:]]
        return Measured("tc netem" if has_netem else "a relay (this kernel has no netem)", reports, deaths_s)


def _shape(network: Network, node: int) -> bool:
    """Whether the kernel can do it."""
    times = [f"{seconds * 1000:.0f}ms" for seconds in (DELAY_S, JITTER_S)]
    shape = ["tc", "qdisc", "add", "dev", "eth0", "root", "netem", "delay", *times, "loss", f"{LOSS:.0%}"]
    return subprocess.run(network.inside(node, shape), capture_output=True, check=False).returncode == 0


def _start(stack: ExitStack, network: Network, node: int, module: str, argument: str) -> subprocess.Popen[str]:
    command = network.inside(node, [sys.executable, "-m", f"benchmarks.suspicion.{module}", argument])
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    return stack.enter_context(process)  # which closes its input, so that it ends


def _write(process: subprocess.Popen[str], message: object) -> None:
    assert process.stdin is not None
    print(json.dumps(message), file=process.stdin, flush=True)


def _read(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def _name(node: int) -> str:
    return f"{node:012x}"
