"""Sentences about the memory that a rank used before it ran out of memory. Pure."""

from __future__ import annotations

from orchestrator.domain.counted import sized
from trainer.contract.resource_sample import LastMinute

_STEADY = 1.05  # a rise below 5% is none
_FULL = 0.9  # of the limit; below that, the last sample missed the end


def tell_last_minute(rank: int, found: LastMinute) -> str:
    """Return how much memory the rank used against the limit, in one to three sentences."""
    kind = "GPU memory" if found.of_gpu else "memory"
    first, highest = sized(found.first_bytes), sized(found.highest_bytes)
    if found.seconds == 0:
        sentence = f"In its only sample, rank {rank} used {highest} of {kind}."
    elif found.highest_bytes > _STEADY * found.first_bytes:
        sentence = f"In its last {found.seconds:.0f} s, the {kind} of rank {rank} rose from {first} to {highest}."
    else:
        sentence = f"In its last {found.seconds:.0f} s, rank {rank} used {highest} of {kind}."
    return " ".join([sentence, *_tell_limit(found), *_tell_age(found)])


def _tell_limit(found: LastMinute) -> list[str]:
    if found.limit_bytes is None:
        return []
    limit = sized(found.limit_bytes)
    if found.of_gpu:
        return [f"The GPU has {limit}."]
    if found.node_bytes > _STEADY * found.highest_bytes:
        return [f"All ranks of the node used {sized(found.node_bytes)} of at most {limit}."]
    return [f"The limit is {limit}."]


def _tell_age(found: LastMinute) -> list[str]:
    """A fast rise at the end is in no sample."""
    if found.limit_bytes is None or found.node_bytes >= _FULL * found.limit_bytes:
        return []
    return [f"The last sample is {found.age_s:.1f} s older than the failure."]
