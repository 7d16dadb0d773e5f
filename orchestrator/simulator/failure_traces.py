"""Failure traces: what fails when and where, in order of time. The same seed gives the same trace.

`mtbf_us` is the mean time between failures of single nodes in the whole cluster. All other incidents (racks, a lemon,
preemptions, outages) come on top.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from orchestrator.simulator.virtual_clock import HOUR, SECOND

# Software bugs and timeouts of NCCL's watchdog are 54 + 7 of the 419 unexpected interruptions in 54 days on 16,384
# GPUs. The other kinds break a part of the node or of the network. "The Llama 3 Herd of Models", arXiv:2407.21783,
# table 5.
WORKER_SHARE = 0.146
WEIBULL_SHAPE = 0.7
RACK_NODES = 32
_NODES_PER_RACK_FAILURE = 10  # failures of single nodes for each failure of a rack
_LEMON_TIMES = 10  # failures of the lemon for each failure among all other nodes
_WAVE_EVERY_US, _WAVE_US = 12 * HOUR, 600 * SECOND
_OUTAGE_EVERY_US, _OUTAGE_US = 24 * HOUR, 1800 * SECOND


class IncidentKind(StrEnum):
    NODE = "node"
    WORKER = "worker"  # a process fails, and its node stays
    RACK = "rack"
    LEMON = "lemon"  # always the same machine, which is repaired soon
    WAVE = "wave"  # all running attempts are preempted
    CLUSTER_SILENT = "cluster-silent"
    STORE_SILENT = "store-silent"


@dataclass(frozen=True, slots=True, order=True)
class Incident:
    at_us: int
    kind: IncidentKind
    where: float = 0.0  # the place among all nodes, in [0, 1)
    lasts_us: int = 0


Gap = Callable[[random.Random], float]  # draws microseconds to the next incident


def build_trace(name: str, *, mtbf_us: int, seed: int, worker_share: float = 0.0) -> Iterator[Incident]:
    """Return an endless trace. `worker_share` of the failures of single nodes are failures of one of their workers.

    Raises KeyError for an unknown name.
    """
    trace = heapq.merge(*(part(mtbf_us, seed) for part in TRACES[name]))
    return _spare_nodes(trace, worker_share, seed) if worker_share else trace


def _spare_nodes(trace: Iterator[Incident], share: float, seed: int) -> Iterator[Incident]:
    """Let some failures spare the node. Time and place stay, so that traces can be compared."""
    rng = random.Random(f"{seed}/{IncidentKind.WORKER}")
    for each in trace:
        is_spared = each.kind is IncidentKind.NODE and rng.random() < share
        yield replace(each, kind=IncidentKind.WORKER) if is_spared else each


def exponential(mtbf_us: int, seed: int) -> Iterator[Incident]:
    return _renewals(IncidentKind.NODE, seed, lambda rng: rng.expovariate(1 / mtbf_us))


def weibull(mtbf_us: int, seed: int) -> Iterator[Incident]:
    """Yield failures that cluster. After one, the next is more likely. The mean is scale * Gamma(1 + 1/shape)."""
    scale = mtbf_us / math.gamma(1 + 1 / WEIBULL_SHAPE)
    return _renewals(IncidentKind.NODE, seed, lambda rng: rng.weibullvariate(scale, WEIBULL_SHAPE))


def racks(mtbf_us: int, seed: int) -> Iterator[Incident]:
    return _renewals(IncidentKind.RACK, seed, lambda rng: rng.expovariate(1 / (mtbf_us * _NODES_PER_RACK_FAILURE)))


def lemon(mtbf_us: int, seed: int) -> Iterator[Incident]:
    return _renewals(IncidentKind.LEMON, seed, lambda rng: rng.expovariate(_LEMON_TIMES / mtbf_us))


def preemption_waves(mtbf_us: int, seed: int) -> Iterator[Incident]:
    return _renewals(IncidentKind.WAVE, seed, lambda rng: rng.expovariate(1 / _WAVE_EVERY_US), _WAVE_US)


def outages_of_cluster(mtbf_us: int, seed: int) -> Iterator[Incident]:
    return _renewals(IncidentKind.CLUSTER_SILENT, seed, lambda rng: rng.expovariate(1 / _OUTAGE_EVERY_US), _OUTAGE_US)


def outages_of_store(mtbf_us: int, seed: int) -> Iterator[Incident]:
    return _renewals(IncidentKind.STORE_SILENT, seed, lambda rng: rng.expovariate(1 / _OUTAGE_EVERY_US), _OUTAGE_US)


TRACES: dict[str, tuple[Callable[[int, int], Iterator[Incident]], ...]] = {
    "exponential": (exponential,),
    "weibull": (weibull,),
    "rack": (exponential, racks),
    "lemon": (exponential, lemon),
    "crash-loop": (exponential,),  # the first job's program fails, see workload.py
    "preemption-wave": (exponential, preemption_waves),
    "outage": (exponential, outages_of_cluster, outages_of_store),
    "mixed": (exponential, racks, lemon, preemption_waves, outages_of_cluster, outages_of_store),
}


def _renewals(kind: IncidentKind, seed: int, gap: Gap, lasts_us: int = 0) -> Iterator[Incident]:
    """Yield incidents of one kind. Each kind has its own random numbers."""
    rng = random.Random(f"{seed}/{kind}")
    at_us = 0
    while True:
        at_us += max(1, round(gap(rng)))
        yield Incident(at_us, kind, rng.random(), lasts_us)
