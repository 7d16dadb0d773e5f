"""Choose and read copies in memory: a state is whole if all its parts are there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from io import BytesIO
from operator import itemgetter
from typing import Any

from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from trainer.contract.manifest import Manifest, SnapshotName
from trainer.errors import DamagedSnapshot
from trainer.snapshot.memory_copy import MemoryCopy, open_copy


class StateInMemory:
    """A whole state: the copies of its parts, in their order."""

    def __init__(self, copies: Sequence[MemoryCopy]) -> None:
        self.copies = copies

    @property
    def manifest(self) -> Manifest:
        return self.copies[0].header.manifest

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(copy.path for copy in self.copies)

    @property
    def source(self) -> str:
        """`survivor` if one rank wrote the state of several, else `memory`."""
        return "survivor" if len(self.copies) < self.manifest.world_size else "memory"

    def verify(self) -> None:
        """Raises DamagedSnapshot for the first copy that has changed since it was sealed."""
        for copy in self.copies:
            copy.verify()


def find_states(files: Iterable[str]) -> dict[SnapshotName, StateInMemory]:
    """The whole states in these files. Of equal ones that were divided differently, the one with the fewest parts."""
    found: dict[tuple[SnapshotName, int], dict[int, MemoryCopy]] = {}
    for path in files:
        copy = open_copy(path)
        if copy is not None:
            found.setdefault((copy.header.name, copy.header.parts), {})[copy.header.part] = copy
    states: dict[SnapshotName, StateInMemory] = {}
    for name, parts in sorted(found, key=itemgetter(1)):
        copies = found[name, parts]
        if len(copies) == parts:
            states.setdefault(name, StateInMemory([copies[part] for part in range(parts)]))
    return states


class MemoryReader(StorageReader):
    """Reads a state from its copies, on any number of ranks. They were verified before. Raises DamagedSnapshot."""

    def __init__(self, copies: Sequence[MemoryCopy], name: str) -> None:
        self.path = f"{name} in memory"
        self._copies = copies
        self._tensors = {index: copy for copy in copies for index in copy.header.tensors}
        self._others = {index: value for copy in copies for index, value in copy.header.others.items()}

    def reset(self, checkpoint_id: object = None) -> None:
        """There is one state to read."""

    def read_metadata(self, *_: object, **__: object) -> Metadata:
        metadata = self._copies[0].header.metadata
        assert metadata is not None
        return metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *_: object, **__: object) -> None:
        """The copies are open."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, BytesIO(self._others[item.storage_index]))
            else:
                target = planner.resolve_tensor(item).detach()
                target.copy_(_part_of(self._tensors[item.storage_index].tensor(item.storage_index), item))
                planner.commit_tensor(item, target)
        for copy in self._copies:
            copy.refuse_replaced()
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return False


def _part_of(stored: Tensor, item: ReadItem) -> Tensor:
    for dimension, (offset, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
        stored = stored.narrow(dimension, offset, length)
    return stored


def open_memory(files: Iterable[str], name: SnapshotName) -> MemoryReader:
    """Read a state that rank 0 has chosen and verified. Raises DamagedSnapshot if it is gone."""
    with suppress(KeyError):
        return MemoryReader(find_states(files)[name].copies, str(name))
    raise DamagedSnapshot(str(name), "is not in memory any more")
