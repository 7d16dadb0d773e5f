"""The last minute of a rank that ran out of memory, from samples. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from orchestrator.domain.observation.rank_series import ReplicaSample
from trainer.contract.failure import Failure, FailureKind
from trainer.contract.resource_sample import LastMinute, Sample, summarize

_MINUTE = timedelta(seconds=60)


def find_minute(
    taken: Sequence[ReplicaSample], failure: Failure, generation: int | None
) -> tuple[int, LastMinute] | None:
    """Return the last minute of the failed rank and the rank itself. If the failure names no rank, of the rank that
    used the most memory.

    `taken` is from one attempt. Without `generation`, its newest one counts. None if the rank has no samples. The limit
    is not known.
    """
    of_gpu = failure.kind is FailureKind.DEVICE_OOM
    number = max((each.generation for each in taken), default=None) if generation is None else generation
    ordered = sorted((each for each in taken if each.generation == number), key=lambda each: each.at)
    minute = [each for each in ordered if each.at >= ordered[-1].at - _MINUTE]
    rank = _find_largest(minute, of_gpu=of_gpu) if failure.rank is None else failure.rank
    # A sample has the ranks of one node, which share its memory.
    node = [each for each in minute if any(sample.rank == rank for sample in each.ranks)]
    timed = [(each.at.timestamp(), Sample(at="", generation=each.generation, ranks=each.ranks)) for each in node]
    if rank is None or not timed:
        return None
    found = summarize(timed, rank, timed[-1][0], of_gpu=of_gpu, limit_bytes=None)
    return None if found is None else (rank, found)


def _find_largest(minute: Sequence[ReplicaSample], *, of_gpu: bool) -> int | None:
    used = [
        ((sample.gpu_memory_bytes if of_gpu else sample.memory_bytes) or 0, sample.rank)
        for each in minute
        for sample in each.ranks
    ]
    return max(used)[1] if used else None
