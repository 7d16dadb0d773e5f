"""The last minute of a rank, from the samples that are left when the agent died with it."""

from __future__ import annotations

from datetime import timedelta

from orchestrator.domain.observation.last_samples import find_minute
from orchestrator.domain.observation.rank_series import ReplicaSample
from tests.builders import NOW
from trainer.contract.failure import Failure, FailureKind
from trainer.contract.resource_sample import RankSample

KILLED = Failure(kind=FailureKind.HOST_OOM, message="OOMKilled")
RANK_0 = Failure(kind=FailureKind.HOST_OOM, message="OOMKilled", rank=0)


def taken(second: float, generation: int = 1, **memory: int) -> ReplicaSample:
    """A sample of one node: `r1=5` means that rank 1 used 5 bytes."""
    ranks = tuple(RankSample(rank=int(name[1:]), memory_bytes=used) for name, used in memory.items())
    return ReplicaSample(at=NOW + timedelta(seconds=second), attempt=1, generation=generation, ranks=ranks)


def test_a_failure_without_a_rank_is_of_the_rank_with_the_most_memory() -> None:
    samples = [taken(0, r0=3, r1=4), taken(1, r2=7, r3=6), taken(20, r0=3, r1=5), taken(21, r2=9, r3=6)]
    found = find_minute(samples, KILLED, None)
    assert found is not None
    rank, minute = found
    assert (rank, minute.first_bytes, minute.highest_bytes, minute.seconds) == (2, 7, 9, 20.0)
    assert minute.node_bytes == 15, "ranks of another node do not share its memory"


def test_only_the_last_minute_of_the_failed_generation_counts() -> None:
    samples = [taken(0, r0=99), taken(100, r0=5), taken(130, r0=6), taken(140, 2, r0=50)]
    found = find_minute(samples, RANK_0, 1)
    assert found is not None
    assert (found[1].first_bytes, found[1].highest_bytes) == (5, 6)
    newest = find_minute(samples, RANK_0, None)
    assert newest is not None
    assert newest[1].highest_bytes == 50


def test_without_samples_of_the_rank_nothing_is_known() -> None:
    assert find_minute([], KILLED, None) is None
    assert find_minute([taken(0, r1=5)], RANK_0, None) is None
    assert find_minute([taken(0, r0=5)], RANK_0, 7) is None
    gpu = Failure(kind=FailureKind.DEVICE_OOM, message="CUDA out of memory", rank=0)
    assert find_minute([taken(0, r0=5)], gpu, None) is None, "its memory on the GPU is not known"
