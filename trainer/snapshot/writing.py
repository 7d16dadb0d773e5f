"""Write a state to files: the ranks plan who writes what, and then each writes its part.

Plan and files have the format of torch's distributed checkpoint (DCP). One rank stages and writes state that all ranks
hold. Only planning is collective.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, WriteItem
from torch.distributed.checkpoint.storage import WriteResult

from trainer.contract.manifest import FileEntry
from trainer.errors import StrategyError
from trainer.snapshot import Location
from trainer.snapshot.run_state import Layout, RunState
from trainer.snapshot.streams import COPY_AHEAD_BYTES, Writer, in_one_line
from trainer.worker.agreement import through_rank_zero
from trainer.worker.waits import Waits

Values = dict[MetadataIndex, "Tensor | BytesIO"]

_METADATA = ".metadata"


@dataclass(frozen=True)
class Plan:
    """The part of the state that this rank writes. On rank 0 `metadata` describes the whole."""

    own: SavePlan
    metadata: Metadata | None


@dataclass(frozen=True)
class Part:
    """What one rank wrote to disk, with checksums."""

    results: list[WriteResult]
    files: dict[str, FileEntry]


class Abandoned(Exception):
    """The group broke, and the snapshot is not needed any more."""


class SharedPlan:
    """The ranks' plan. They make a new one as soon as the optimizer of one of them has made more tensors."""

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        self._plan: Plan | None = None
        self._layout: Layout = frozenset()

    def of(self, state: RunState) -> Plan:
        """Return this rank's part. Collective: one small all-reduce, and an exchange of plans if a new one is needed.

        Raises StrategyError and TaskError on all ranks if the state of one cannot be saved.
        """
        layout = state.layout
        is_outdated = torch.tensor(self._plan is None or layout != self._layout, dtype=torch.int32)
        with self._waits.waiting():
            dist.all_reduce(is_outdated, dist.ReduceOp.MAX)
        if self._plan is None or is_outdated:
            self._plan, self._layout = _plan_writing(state, self._waits), layout
        return self._plan


def tensors_in(values: Mapping[MetadataIndex, Tensor | BytesIO]) -> dict[MetadataIndex, Tensor]:
    return {index: value for index, value in values.items() if isinstance(value, Tensor)}


def open_planner(contents: dict[str, Any], *, is_coordinator: bool) -> DefaultSavePlanner:
    """A planner of DCP for this state."""
    planner = DefaultSavePlanner()
    planner.set_up_planner(contents, is_coordinator=is_coordinator)
    return planner


def resolve(planner: DefaultSavePlanner, plan: Plan) -> Values:
    """What the plan names: live tensors, and everything else serialized now."""
    return {item.index: planner.resolve_data(item) for item in plan.own.items}


def values_of(state: RunState, plan: Plan) -> Values:
    """This rank's part."""
    return resolve(open_planner(state.contents(), is_coordinator=dist.get_rank() == 0), plan)


def write_part(
    plan: Plan, values: Values, directory: Location, should_continue: Callable[[], bool] = lambda: True
) -> Part:
    """Write this rank's files with fsync. Raises OSError, and Abandoned once `should_continue` returns False."""
    try:
        is_live = any(isinstance(value, Tensor) and not value.is_cpu for value in values.values())
        writer = Writer(directory, copy_ahead_bytes=COPY_AHEAD_BYTES if is_live else 0)
        results = writer.write_data(plan.own, _Given(values, should_continue)).wait()
    except Abandoned:
        raise
    except Exception as error:
        raise in_one_line(error, directory) from error
    return Part(results, writer.describe(sorted({result.storage_data.relative_path for result in results})))


def write_metadata(plan: Plan, parts: list[Part], directory: Location) -> dict[str, FileEntry]:
    """On rank 0, once all parts are on disk, write `.metadata` and return all file entries. Raises OSError."""
    assert plan.metadata is not None
    try:
        writer = Writer(directory)
        writer.finish(plan.metadata, [part.results for part in parts])
    except Exception as error:
        raise in_one_line(error, directory) from error
    files = {name: entry for part in parts for name, entry in part.files.items()}
    return {**files, **writer.describe([_METADATA])}


class _Given(DefaultSavePlanner):
    """A planner that returns values taken earlier."""

    def __init__(self, values: Values, should_continue: Callable[[], bool]) -> None:
        super().__init__()
        self._values, self._should_continue = values, should_continue

    def resolve_data(self, write_item: WriteItem) -> Tensor | BytesIO:
        if not self._should_continue():
            raise Abandoned
        value = self._values[write_item.index]
        return value.contiguous() if isinstance(value, Tensor) else value  # as the manifest says


def _plan_writing(state: RunState, waits: Waits) -> Plan:
    """Agree on who writes what, including state that only some ranks have. Collective."""
    planner = DefaultSavePlanner()
    metadata: list[Metadata] = []

    def plan_own() -> SavePlan:
        planner.set_up_planner(state.contents(), is_coordinator=dist.get_rank() == 0)
        return planner.create_local_plan()

    def combine(plans: list[SavePlan]) -> list[SavePlan]:
        _refuse_incomplete(plans)
        plans, described = planner.create_global_plan(plans)
        metadata.append(described)
        return FileSystemWriter("").prepare_global_plan(plans)

    own = through_rank_zero(plan_own, combine, waits)
    return Plan(own, metadata[0] if metadata else None)


def _refuse_incomplete(plans: list[SavePlan]) -> None:
    """Raise StrategyError for a tensor of which some part is on no rank."""
    parts = {item.index: item.tensor_data for plan in plans for item in plan.items if item.tensor_data is not None}
    held: Counter[str] = Counter()
    for index, part in parts.items():
        held[index.fqn] += part.chunk.sizes.numel()
    for index, part in parts.items():
        if held[index.fqn] != part.size.numel():
            raise StrategyError(
                f"{index.fqn} is not whole: the ranks have {held[index.fqn]} of its {part.size.numel()} values; the "
                "optimizer must have state for the same sharded parameters on all ranks"
            )
