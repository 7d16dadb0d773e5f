"""The whole state of a rank that survives its group, in memory, for the next generation: no completed step is repeated.

It is the state of the bundled trainer, or that of the objects of a script.

A rank that loses a peer stops in a collective. Under ddp it then has the whole state after its last completed step:
before the optimizer runs, a step changes only gradients. Sharded states have a part on the lost rank, and a forward
pass may have changed buffers. In both cases the next generation restores a copy or a snapshot.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, Protocol

from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

from trainer.contract.env import WorkerPlace
from trainer.contract.manifest import Manifest
from trainer.elastic.health.oom import find_shortage
from trainer.snapshot.memory_copy import CopyWriter
from trainer.snapshot.writing import Plan, open_planner, resolve, tensors_in


class State(Protocol):
    """What a rank hands over."""

    @property
    def step(self) -> int:
        """Completed optimizer steps."""

    @property
    def is_whole(self) -> bool:
        """Whether it is the state after that step, and not one that an update has begun to change."""

    def contents(self) -> dict[str, Any]:
        """Live tensors and other values, nested as a snapshot holds them."""

    def is_steady(self, name: str) -> bool:
        """Whether only an optimizer step changes this tensor of the newest `contents`."""


class Handover:
    """Writes this rank's state when its group has broken.

    `is_wanted` says that this process may outlive its group, and that each rank has the whole state.
    """

    def __init__(self, place: WorkerPlace, *, is_wanted: bool) -> None:
        # On one node, at least one rank is lost. With several nodes, all ranks of this node may survive.
        self._path, self._survivors = place.own_handover, max(1, place.local_world_size - place.is_on_one_node)
        self._plan: Plan | None = None
        self.is_possible = is_wanted and place.can_outlive_group
        self._is_freed = self._path is None

    def free(self) -> None:
        """Give back the memory of a handover to this generation. All ranks have read it once a step is complete."""
        if self._path is not None and not self._is_freed:
            self._is_freed = True
            with suppress(OSError):
                CopyWriter(self._path).free()

    def plan(self, state: State) -> None:
        """Plan ahead what `write` writes, so that a restart does not wait for that. Not collective. Never raises."""
        if self.is_possible:
            with suppress(Exception):  # `write` reports it
                self._plan = _plan_whole(open_planner(state.contents(), is_coordinator=True))

    def write(self, state: State, describe: Callable[[], Manifest]) -> None:
        """Write the state, if it is whole and there is memory for it. Not collective. Never raises."""
        if self._path is None or not self.is_possible:
            return
        try:
            why_not = self._write(state, describe, CopyWriter(self._path))
        except Exception as error:  # noqa: BLE001  # an older state remains
            why_not = str(error)
        if why_not:
            print(f"the state of step {state.step} could not be handed over: {why_not}", file=sys.stderr, flush=True)

    def _write(self, state: State, describe: Callable[[], Manifest], writer: CopyWriter) -> str:
        """Why nothing was written, or an empty text."""
        if not state.is_whole:
            return "it has changed since, an update has begun, or the ranks have different optimizer state"
        planner = open_planner(state.contents(), is_coordinator=True)
        if self._plan is None or _names_in(self._plan) != planner.state_dict.keys():
            self._plan = _plan_whole(planner)
        values = resolve(planner, self._plan)
        sources = tensors_in(values)
        if not all(state.is_steady(index.fqn) for index in sources):
            return "the model has buffers, which a forward pass may have changed"
        shortage = find_shortage(self._survivors * sum(source.nbytes for source in sources.values()))
        if shortage is not None:
            return shortage
        manifest = describe()
        assert self._plan.metadata is not None
        writer.erase()
        writer.write_whole(values, manifest, self._plan.metadata)
        if _has_changed(state):
            writer.erase()
            return "it has changed meanwhile"
        return ""


def _has_changed(state: State) -> bool:
    """Whether another thread has begun to change the state meanwhile."""
    return not state.is_whole


def _plan_whole(planner: DefaultSavePlanner) -> Plan:
    (own,), metadata = planner.create_global_plan([planner.create_local_plan()])
    return Plan(own, metadata)


def _names_in(plan: Plan) -> Collection[str]:
    return () if plan.metadata is None else plan.metadata.state_dict_metadata.keys()
