"""Lines of samples, and the last minute before a failure, as documents."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from trainer.contract.failure import Failure, FailureKind, parse_failure, render_failure
from trainer.contract.resource_sample import (
    MOST_RANKS,
    LastMinute,
    RankSample,
    Sample,
    parse_last_minute,
    parse_sample,
    render_sample,
)

AT = "2026-01-31T12:00:00.000000Z"
LAST = LastMinute(seconds=58.0, age_s=1.5, first_bytes=1, highest_bytes=9, node_bytes=12, limit_bytes=16, of_gpu=False)


def line(**fields: object) -> dict[str, object]:
    return {"at": AT, "generation": 1, "ranks": [0], **fields}


def test_a_sample_survives_its_line() -> None:
    ranks = (
        RankSample(rank=2, memory_bytes=5, cpu_cores=1.5, gpu_memory_bytes=7, gpu_utilization=0.5),
        RankSample(rank=3, memory_bytes=6),
    )
    sample = Sample(at=AT, generation=4, ranks=ranks)
    assert parse_sample(json.loads(json.dumps(render_sample(sample)))) == sample


def test_a_list_without_values_is_left_out() -> None:
    assert set(render_sample(Sample(at=AT, generation=1, ranks=(RankSample(rank=0, memory_bytes=1),)))) == {
        "at",
        "generation",
        "ranks",
        "memory_bytes",
    }


@pytest.mark.parametrize(
    "document",
    [
        {},
        line(ranks="0"),
        line(ranks=list(range(MOST_RANKS + 1))),
        line(generation=-1),
        line(generation="1"),
        line(generation=True),
    ],
)
def test_other_documents_are_refused(document: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="not a sample"):
        parse_sample(document)


@pytest.mark.parametrize("value", [-1, 2**53 + 1, 10**400, "5", None, True, [], float("nan"), float("inf"), 1.5])
def test_memory_out_of_range_reads_as_absent(value: object) -> None:
    assert parse_sample(line(memory_bytes=[value])).ranks == (RankSample(rank=0),)


@pytest.mark.parametrize("value", [-0.1, 1.1, 10**400, "0.5", True, float("nan"), float("inf")])
def test_a_utilization_out_of_range_reads_as_absent(value: object) -> None:
    assert parse_sample(line(gpu_utilization=[value])).ranks == (RankSample(rank=0),)


def test_a_list_of_another_length_reads_as_absent() -> None:
    assert parse_sample(line(memory_bytes=[1, 2], cpu_cores=7)).ranks == (RankSample(rank=0),)


def test_a_rank_out_of_range_costs_only_its_own_values() -> None:
    assert parse_sample(line(ranks=[-1, 4], memory_bytes=[1, 2])).ranks == (RankSample(rank=4, memory_bytes=2),)


def test_a_failure_carries_the_last_minute() -> None:
    failure = Failure(kind=FailureKind.HOST_OOM, message="killed", rank=1, last_minute=LAST)
    assert parse_failure(json.loads(json.dumps(render_failure(failure)))) == failure
    unlimited = replace(failure, last_minute=replace(LAST, limit_bytes=None))
    assert parse_failure(json.loads(json.dumps(render_failure(unlimited)))) == unlimited
    assert "last_minute" not in render_failure(replace(failure, last_minute=None))


@pytest.mark.parametrize("name", ["seconds", "age_s", "first_bytes", "highest_bytes", "node_bytes"])
@pytest.mark.parametrize("value", [None, "1", -1, float("nan"), 10**400])
def test_an_incomplete_last_minute_reads_as_absent(name: str, value: object) -> None:
    document = {field: getattr(LAST, field) for field in LastMinute.__dataclass_fields__}
    assert parse_last_minute(document) == LAST
    assert parse_last_minute({**document, name: value}) is None
    assert parse_last_minute([document]) is None
