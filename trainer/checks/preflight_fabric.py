"""The all-reduce of a preflight: of all ranks, and of each pair of nodes. Each check gives every rank one verdict."""

from __future__ import annotations

import statistics
import time

import torch
import torch.distributed as dist

from trainer.checks.preflight_nodes import CheckContext
from trainer.contract.blame import Pair, judge_pairs, pair_rounds
from trainer.contract.verdict import Outcome, Verdict, bus_bandwidth
from trainer.worker.agreement import on_every_rank, share

_REDUCED_BYTES, _OF_A_PAIR = 64 * 1024 * 1024, 16 * 1024 * 1024
_REDUCTIONS = 5


def check_bandwidth(context: CheckContext) -> Verdict:
    """Time the all-reduce of a ddp step over all ranks."""
    ranks = context.place.world_size
    if ranks == 1:
        return Verdict(check="bandwidth", outcome=Outcome.SKIPPED, sentence="a single rank exchanges nothing")
    values = torch.ones(_REDUCED_BYTES // 4, device=context.device)
    seconds = _time_reduction(values, None)
    slowest_s = max(on_every_rank(lambda: seconds, context.waits))
    return Verdict(
        check="bandwidth",
        outcome=Outcome.OK,
        sentence=f"all-reduce of {_REDUCED_BYTES >> 20} MiB over {ranks} ranks by {dist.get_backend()} takes "
        f"{slowest_s * 1000:.1f} ms, {bus_bandwidth(_REDUCED_BYTES, slowest_s, ranks) / 1e9:.2f} GB/s of bus bandwidth",
    )


def check_pairs(context: CheckContext) -> Verdict:
    """Time the all-reduce between two nodes at a time, one rank of each, to find slow links."""
    leaders, rank = context.leaders, context.place.rank
    bandwidths: dict[Pair, float] = {}
    for pairs in pair_rounds(len(leaders)):
        # All ranks make all groups, in the same order.
        groups = {pair: dist.new_group([leaders[one] for one in pair]) for pair in pairs}
        mine = next((pair for pair in pairs if rank in (leaders[pair[0]], leaders[pair[1]])), None)
        seconds = 0.0
        if mine is not None:
            values = torch.ones(_OF_A_PAIR // 4, device=context.device)
            seconds = _time_reduction(values, groups[mine])
        reported = share((seconds, None), context.waits)
        for pair in pairs:
            slowest_s = max(reported[leaders[one]] for one in pair)
            nodes = (context.nodes[pair[0]], context.nodes[pair[1]])
            bandwidths[nodes] = bus_bandwidth(_OF_A_PAIR, slowest_s, 2)
    return judge_pairs(bandwidths)


def _time_reduction(values: torch.Tensor, group: dist.ProcessGroup | None) -> float:
    """The median time in seconds, after a warm-up."""
    _reduce(values, group)
    return statistics.median(_reduce(values, group) for _ in range(_REDUCTIONS))


def _reduce(values: torch.Tensor, group: dist.ProcessGroup | None) -> float:
    began = time.perf_counter()
    dist.all_reduce(values, group=group)
    if values.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - began
