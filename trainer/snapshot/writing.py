"""Write a state to files: the ranks plan who writes what, and then each writes its part.

Plan and files have the format of torch's distributed checkpoint (DCP). One rank stages and writes state that all ranks
hold. Only planning is collective.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO

import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, WriteItem
from torch.distributed.checkpoint.storage import WriteResult

from trainer.contract.manifest import FileEntry
from trainer.snapshot import Location
from trainer.snapshot.run_state import RunState
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


def plan_writing(state: RunState, waits: Waits) -> Plan:
    """Agree on who writes what. Collective. The plan is valid until the group or the state's tensors change."""
    planner = _plan_of(state)
    metadata: list[Metadata] = []

    def combine(plans: list[SavePlan]) -> list[SavePlan]:
        plans, described = planner.create_global_plan(plans)
        metadata.append(described)
        return FileSystemWriter("").prepare_global_plan(plans)

    own = through_rank_zero(planner.create_local_plan, combine, waits)
    return Plan(own, metadata[0] if metadata else None)


def values_of(state: RunState, plan: Plan) -> Values:
    """This rank's part: live tensors, and everything else serialized now."""
    planner = _plan_of(state)
    return {item.index: planner.resolve_data(item) for item in plan.own.items}


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


def _plan_of(state: RunState) -> DefaultSavePlanner:
    planner = DefaultSavePlanner()
    planner.set_up_planner(state.contents(), is_coordinator=dist.get_rank() == 0)
    return planner
