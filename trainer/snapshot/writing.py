"""How a state becomes files: who writes what is planned once a generation, then each rank writes its own part.

The planning is torch's distributed checkpoint's (DCP), and so are the files. State that every rank holds is staged and
written by one of them alone. Only the planning is collective.
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
from trainer.snapshot import Place
from trainer.snapshot.run_state import KEY, RunState
from trainer.snapshot.streams import Writer, in_one_line
from trainer.worker.agreement import through_rank_zero
from trainer.worker.waits import Waits

Values = dict[MetadataIndex, "Tensor | BytesIO"]

_METADATA = ".metadata"
_COPY_AHEAD_BYTES = 10_000_000  # DCP's own default


@dataclass(frozen=True)
class Plan:
    """Which part of the state this rank writes; `metadata`, on rank 0 alone, describes the whole."""

    own: SavePlan
    metadata: Metadata | None


@dataclass(frozen=True)
class Part:
    """What one rank has written, on disk and checksummed."""

    results: list[WriteResult]
    files: dict[str, FileEntry]


class Abandoned(Exception):
    """Nobody wants this snapshot any more: the group has broken."""


def plan_writing(state: RunState, waits: Waits) -> Plan:
    """Agree on who writes what. Collective; the plan holds as long as the group and the model's structure."""
    planner = _plan_of(state)
    metadata: list[Metadata] = []

    def combine(plans: list[SavePlan]) -> list[SavePlan]:
        plans, described = planner.create_global_plan(plans)
        metadata.append(described)
        return FileSystemWriter("").prepare_global_plan(plans)

    own = through_rank_zero(planner.create_local_plan, combine, waits)
    return Plan(own, metadata[0] if metadata else None)


def values_of(state: RunState, plan: Plan) -> Values:
    """This rank's part: the live tensors themselves, and all else as the bytes of this moment."""
    planner = _plan_of(state)
    return {item.index: planner.resolve_data(item) for item in plan.own.items}


def write_part(plan: Plan, values: Values, directory: Place, go_on: Callable[[], bool] = lambda: True) -> Part:
    """Write this rank's files, fsync and checksum them. Raises OSError, and Abandoned soon after `go_on` says no."""
    try:
        is_live = any(isinstance(value, Tensor) and not value.is_cpu for value in values.values())
        writer = Writer(directory, copy_ahead_bytes=_COPY_AHEAD_BYTES if is_live else 0)
        results = writer.write_data(plan.own, _Given(values, go_on)).wait()
    except Abandoned:
        raise
    except Exception as error:
        raise in_one_line(error, directory) from error
    return Part(results, writer.describe(sorted({result.storage_data.relative_path for result in results})))


def write_metadata(plan: Plan, parts: list[Part], directory: Place) -> dict[str, FileEntry]:
    """On rank 0, when all parts are on disk: write `.metadata` and return the entries of all files. Raises OSError."""
    assert plan.metadata is not None
    try:
        writer = Writer(directory)
        writer.finish(plan.metadata, [part.results for part in parts])
    except Exception as error:
        raise in_one_line(error, directory) from error
    files = {name: entry for part in parts for name, entry in part.files.items()}
    return {**files, **writer.describe([_METADATA])}


class _Given(DefaultSavePlanner):
    """Hands the writer values that were taken before."""

    def __init__(self, values: Values, go_on: Callable[[], bool]) -> None:
        super().__init__()
        self._values, self._go_on = values, go_on

    def resolve_data(self, write_item: WriteItem) -> Tensor | BytesIO:
        if not self._go_on():
            raise Abandoned
        value = self._values[write_item.index]
        return value.contiguous() if isinstance(value, Tensor) else value  # as the manifest says


def _plan_of(state: RunState) -> DefaultSavePlanner:
    planner = DefaultSavePlanner()
    planner.set_up_planner({KEY: state.state_dict()}, is_coordinator=dist.get_rank() == 0)
    return planner
