"""What `why` says about the memory of a rank that ran out of memory."""

from __future__ import annotations

import pytest

from orchestrator.domain.explanation.last_minute import tell_last_minute
from trainer.contract.resource_sample import LastMinute

MB, GB = 10**6, 10**9


def last(
    first: int, highest: int, everyone: int, limit: int | None, *, gpu: bool = False, seconds: float = 58.0
) -> LastMinute:
    return LastMinute(
        seconds=seconds,
        age_s=1.5,
        first_bytes=first,
        highest_bytes=highest,
        node_bytes=everyone,
        limit_bytes=limit,
        of_gpu=gpu,
    )


@pytest.mark.parametrize(
    ("found", "sentences"),
    [
        (
            last(1200 * MB, 3840 * MB, 3840 * MB, 4 * GB),
            "In its last 58 s, the memory of rank 1 rose from 1.2 GB to 3.84 GB. The limit is 4 GB.",
        ),
        (
            last(GB, GB, 3800 * MB, 4 * GB),
            "In its last 58 s, rank 1 used 1 GB of memory. All ranks of the node used 3.8 GB of at most 4 GB.",
        ),
        (last(GB, 2 * GB, 2 * GB, None), "In its last 58 s, the memory of rank 1 rose from 1 GB to 2 GB."),
        (
            last(30 * GB, 78 * GB, 78 * GB, 80 * GB, gpu=True),
            "In its last 58 s, the GPU memory of rank 1 rose from 30 GB to 78 GB. The GPU has 80 GB.",
        ),
        (
            last(300 * MB, 300 * MB, 300 * MB, 4 * GB, seconds=0.0),
            "In its only sample, rank 1 used 300 MB of memory. The limit is 4 GB. "
            "The last sample is 1.5 s older than the failure.",
        ),
    ],
)
def test_the_sentences_compare_the_last_minute_with_the_limit(found: LastMinute, sentences: str) -> None:
    assert tell_last_minute(1, found) == sentences
