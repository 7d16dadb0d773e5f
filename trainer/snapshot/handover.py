"""The whole state of a rank that survives its group, in memory, for the next generation: no completed step is repeated.

A rank that loses a peer stops in a collective. Under ddp it then has the whole state after its last completed step:
before the optimizer runs, a step changes only gradients. Sharded states have a part on the lost rank, and a forward
pass may have changed buffers. In both cases the next generation restores a copy or a snapshot.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress

from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

from trainer.contract.manifest import Manifest
from trainer.elastic.health.oom import read_free_memory
from trainer.snapshot.memory_copy import CopyWriter
from trainer.snapshot.run_state import KEY, RunState
from trainer.worker.run import Run


class Handover:
    """Writes this rank's state when its group has broken.

    `describe` returns the manifest of a state. `is_wanted` says that this process may outlive its group, and that each
    rank has the whole state.
    """

    def __init__(self, run: Run, describe: Callable[[RunState], Manifest], *, is_wanted: bool) -> None:
        place = run.place
        self._path, self._ranks, self._describe = place.own_handover, place.local_world_size, describe
        self._can_write = is_wanted and place.is_on_one_node and place.world_size > 1
        self._is_freed = self._path is None

    def free(self) -> None:
        """Give back the memory of a handover to this generation. All ranks have read it once a step is complete."""
        if self._path is not None and not self._is_freed:
            self._is_freed = True
            with suppress(OSError):
                CopyWriter(self._path).free()

    def write(self, state: RunState) -> None:
        """Write the state, if it is whole and there is memory for it. Not collective. Never raises."""
        try:
            if self._path is not None and self._can_write and state.is_whole:
                self._write(state, CopyWriter(self._path))
        except Exception as error:  # noqa: BLE001  # an older state remains
            print(f"the state of step {state.step} could not be handed over: {error}", file=sys.stderr, flush=True)

    def _write(self, state: RunState, writer: CopyWriter) -> None:
        planner = DefaultSavePlanner()
        planner.set_up_planner({KEY: state.state_dict()}, is_coordinator=True)
        (own,), metadata = planner.create_global_plan([planner.create_local_plan()])
        values = {item.index: planner.resolve_data(item) for item in own.items}
        sources = {index: value for index, value in values.items() if isinstance(value, Tensor)}
        if not all(state.is_steady(index.fqn) for index in sources):
            return
        needed, free = self._ranks * sum(source.nbytes for source in sources.values()), read_free_memory()
        if free is not None and needed > free / 2:
            raise OSError(f"it needs {needed / 1e9:.2f} GB, more than half of the {free / 1e9:.2f} GB that are free")
        writer.erase()
        writer.reserve(sources)
        writer.seal(values, self._describe(state), part=0, parts=1, metadata=metadata)
