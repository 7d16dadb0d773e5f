"""Lines of a replica's `resources.jsonl`, and the memory that a rank used before it failed. Pure.

A line is one sample: when it was taken, the generation, and lists with one item for each rank of the replica. A list
without any value is left out. Any program of the job can write the file, so a reader gets nothing out of range.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

LINE_BYTES = 64 * 1024  # longer lines are not samples
MOST_RANKS = 512  # in one line
_MOST = 2**53  # of bytes: JavaScript and JSON's other readers have exact integers up to here
_MOST_CORES = 1e6
_MEASURED = ("memory_bytes", "cpu_cores", "gpu_memory_bytes", "gpu_utilization")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSample:
    """What a rank's process and its descendants use. A value is None if it is not known."""

    rank: int
    memory_bytes: int | None = None  # the sum of their resident sets; pages that they share count for each
    cpu_cores: float | None = None  # the mean since the previous sample; 1.0 is one busy core
    gpu_memory_bytes: int | None = None
    gpu_utilization: float | None = None  # 0 to 1: how much of the time the rank's GPUs ran a kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    at: str  # RFC 3339 UTC
    generation: int
    ranks: tuple[RankSample, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LastMinute:
    """The memory of a rank in the samples of the minute before it failed: of the host, or of its GPUs.

    `node_bytes` is the highest sum of all ranks of the node; of GPUs, it is the rank's own.
    """

    seconds: float  # from the first to the last sample
    age_s: float  # of the last sample when the failure was noticed
    first_bytes: int
    highest_bytes: int
    node_bytes: int
    limit_bytes: int | None
    of_gpu: bool


def render_sample(sample: Sample) -> dict[str, object]:
    lists = {name: [getattr(each, name) for each in sample.ranks] for name in _MEASURED}
    known = {name: values for name, values in lists.items() if any(value is not None for value in values)}
    ranks = [each.rank for each in sample.ranks]
    return {"at": sample.at, "generation": sample.generation, "ranks": ranks, **known}


def parse_sample(document: Mapping[str, object]) -> Sample:
    """Parse a line. Unknown fields are ignored, a value out of range reads as None. Raises ValueError."""
    ranks = document.get("ranks")
    generation = _integer(document.get("generation"))
    if not isinstance(ranks, list) or len(ranks) > MOST_RANKS or generation is None:
        raise ValueError("not a sample: ranks or generation is missing or out of range")
    memory, cores, gpu_memory, utilization = (_list_of(document.get(name), len(ranks)) for name in _MEASURED)
    samples = [
        RankSample(
            rank=rank,
            memory_bytes=_integer(memory[place]),
            cpu_cores=_number(cores[place], _MOST_CORES),
            gpu_memory_bytes=_integer(gpu_memory[place]),
            gpu_utilization=_number(utilization[place], 1.0),
        )
        for place, value in enumerate(ranks)
        if (rank := _integer(value)) is not None
    ]
    return Sample(at=str(document.get("at"))[:64], generation=generation, ranks=tuple(samples))


def summarize(
    minute: Sequence[tuple[float, Sample]], rank: int, now_s: float, *, of_gpu: bool, limit_bytes: int | None
) -> LastMinute | None:
    """Summarize the samples of one generation, each with its time in seconds. None without a sample of the rank."""
    by_rank = [
        (at_s, {each.rank: each.gpu_memory_bytes if of_gpu else each.memory_bytes for each in sample.ranks})
        for at_s, sample in minute
    ]
    known = [(at_s, used) for at_s, ranks in by_rank if (used := ranks.get(rank)) is not None]
    if not known:
        return None
    highest = max(used for _, used in known)
    everyone = max(sum(used or 0 for used in ranks.values()) for _, ranks in by_rank)
    return LastMinute(
        seconds=round(known[-1][0] - known[0][0], 1),
        age_s=round(max(0.0, now_s - known[-1][0]), 1),
        first_bytes=known[0][1],
        highest_bytes=highest,
        node_bytes=highest if of_gpu else everyone,  # each rank has GPUs of its own
        limit_bytes=limit_bytes,
        of_gpu=of_gpu,
    )


def parse_last_minute(document: object) -> LastMinute | None:
    """None for anything but a complete document."""
    if not isinstance(document, Mapping):
        return None
    seconds, age_s = (_number(document.get(name), 1e9) for name in ("seconds", "age_s"))
    first, highest, everyone = (_integer(document.get(name)) for name in ("first_bytes", "highest_bytes", "node_bytes"))
    if seconds is None or age_s is None or first is None or highest is None or everyone is None:
        return None
    return LastMinute(
        seconds=seconds,
        age_s=age_s,
        first_bytes=first,
        highest_bytes=highest,
        node_bytes=everyone,
        limit_bytes=_integer(document.get("limit_bytes")),
        of_gpu=document.get("of_gpu") is True,
    )


def _list_of(value: object, length: int) -> Sequence[object]:
    return value if isinstance(value, list) and len(value) == length else [None] * length


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST else None


def _number(value: object, most: float) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= most else None  # NaN compares as false
