"""The model and batch to train during snapshots, the kinds of saving to compare, and this trainer's limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

STRATEGIES = ("ddp", "fsdp")
BASELINES = {"ddp": "torch.save", "fsdp": "dcp.save"}
STAGED, ASYNC, SYNC = "ours, staged", "ours, async", "ours, sync"


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    strategy: str
    device: str
    preset: str
    ranks: int
    batch: int  # sequences a step, on each rank
    seq_len: int
    precision: str
    kinds: Sequence[str]  # the kinds that take turns
    rounds: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """How many times smaller `measure` of the kind `ours` must be than the baseline's."""

    ours: str
    measure: str
    limit: float


# If all cores compute, writing always slows training: only staging is compared. A GPU trains while the CPU writes: all
# delays of its steps count until the snapshot is committed.
BOUNDS = {
    "cpu": {
        "ddp": Bound(ours=STAGED, measure="stall_s", limit=5.0),
        "fsdp": Bound(ours=STAGED, measure="stall_s", limit=4.0),
    },
    "cuda": {
        "ddp": Bound(ours=ASYNC, measure="excess_s", limit=10.0),
        "fsdp": Bound(ours=ASYNC, measure="excess_s", limit=4.0),
    },
}


def build_setting(strategy: str, device: str, preset: str | None, rounds: int | None) -> Setting:
    """On CPUs two ranks with short steps; on a GPU a realistic model with 12.9 GB of state."""
    if device == "cuda":
        kinds = (BASELINES[strategy], STAGED, ASYNC)
        return Setting(
            strategy=strategy, device=device, preset=preset or "1b", ranks=1, batch=4, seq_len=2048, precision="bf16",
            kinds=kinds, rounds=rounds or 3,
        )  # fmt: skip
    kinds = ("dcp.save", *(("torch.save",) if strategy == "ddp" else ()), STAGED, ASYNC, SYNC)
    return Setting(
        strategy=strategy, device=device, preset=preset or "124m", ranks=2, batch=1, seq_len=32, precision="fp32",
        kinds=kinds, rounds=rounds or 5,
    )  # fmt: skip
