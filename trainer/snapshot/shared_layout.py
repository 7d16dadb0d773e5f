"""Compare for which parameters the ranks have optimizer state. If it is the same under ddp, each has the whole state.

An optimizer may keep the state of a parameter on one rank only. Another rank could then not hand over the whole state.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import xxhash

from trainer.snapshot.run_state import Layout, RunState
from trainer.worker.waits import Waits


class SharedLayout:
    """A rank whose layout is outdated asks for a comparison in the next step. Then all ranks call `compare`."""

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        self._compared: Layout | None = None
        self._is_equal = False

    def is_outdated(self, state: RunState) -> bool:
        """Whether the optimizer has other tensors than at the last comparison. Cheap enough for each step."""
        return self._compared is None or state.num_moments != len(self._compared)

    def compare(self, state: RunState) -> None:
        """Compare the layout with those of the other ranks. Collective: one small all-reduce."""
        self._is_equal = False  # until all have answered
        self._compared = state.layout
        names = "\n".join(sorted(f"{name} {kind}" for name, kind in self._compared))
        checksum = xxhash.xxh3_64_intdigest(names.encode()) >> 1  # 63 bits
        extremes = torch.tensor([checksum, -checksum])
        with self._waits.waiting():
            dist.all_reduce(extremes, dist.ReduceOp.MAX)
        greatest, negated_least = extremes.tolist()
        self._is_equal = greatest == -negated_least

    def covers(self, state: RunState) -> bool:
        """Whether all ranks had the same tensors at the last comparison, and this one still has them."""
        return self._is_equal and state.layout == self._compared
