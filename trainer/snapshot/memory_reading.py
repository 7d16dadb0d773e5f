"""Find and read copies in the memory of nodes: a state is whole if all its parts are there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from io import BytesIO
from operator import itemgetter
from typing import Any

from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from trainer.contract.copy_record import NO_RECORD, RECORD_BYTES, CopyFile, parse_record
from trainer.contract.fence import Term
from trainer.contract.manifest import Manifest, SnapshotName
from trainer.elastic.copies.copy_client import CopyClient
from trainer.errors import DamagedSnapshot
from trainer.snapshot.memory_copy import MemoryCopy, open_copy
from trainer.snapshot.remote_copy import RemoteCopy


@dataclass(frozen=True, kw_only=True)
class FoundPart:
    """Part number `part` of `parts` of a state, and the file that has it."""

    name: SnapshotName
    part: int
    parts: int
    file: CopyFile


class StateInMemory:
    """A whole state: the files with its parts, in their order."""

    def __init__(self, found: Sequence[FoundPart]) -> None:
        self._found = found
        self._files = OpenFiles()

    def _copy(self, part: int) -> MemoryCopy | RemoteCopy:
        return self._files.open(self._found[part].file)

    @property
    def files(self) -> tuple[CopyFile, ...]:
        return tuple(each.file for each in self._found)

    def seen_from(self, server: str, found: Iterable[FoundPart]) -> tuple[CopyFile, ...]:
        """The same parts, read from the files of the node of this server where it has them."""
        here = {(each.name, each.parts, each.part): each.file for each in found if each.file.server == server}
        files = (here.get((each.name, each.parts, each.part), each.file) for each in self._found)
        return tuple(replace(file, server="") if file.server == server else file for file in files)

    @property
    def manifest(self) -> Manifest:
        return self._copy(0).header.manifest

    @property
    def source(self) -> str:
        """`survivor` if one rank handed it over, `buddy` if a mirror has a part of it, else `memory`."""
        if self._found[0].file.is_handover or len(self._found) < self.manifest.world_size:
            return "survivor"
        return "buddy" if any(each.file.is_mirror for each in self._found) else "memory"

    def verify(self) -> None:
        """Raises DamagedSnapshot for the first copy of this node that has changed since it was sealed.

        The copies of other nodes are verified there.
        """
        for part, each in enumerate(self._found):
            if not each.file.server and isinstance(copy := self._copy(part), MemoryCopy):
                copy.verify()


def find_parts(files: Iterable[CopyFile]) -> list[FoundPart]:
    """The parts in files of this node. The files may name its server, for other nodes."""
    found = []
    for file in files:
        copy = open_copy(file.path)
        if copy is not None:
            header = copy.header
            found.append(FoundPart(name=header.name, part=header.part, parts=header.parts, file=file))
    return found


def forget_outdated(files: Iterable[str], term: Term, base_step: int) -> None:
    """Erase copies that cannot count any more since a term began from a step: those of earlier terms and later steps.

    Mirrors overwrite the oldest copy. Such a copy would not be the oldest, and the one that was restored would be.
    """
    for path in files:
        with suppress(OSError):
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                record = parse_record(os.pread(file, RECORD_BYTES, 0))
                if record is not None and record.name.term < term and record.name.step > base_step:
                    os.pwrite(file, NO_RECORD, 0)
            finally:
                os.close(file)


def find_intact(found: Iterable[FoundPart], tell_damaged: Callable[[DamagedSnapshot], None]) -> list[FoundPart]:
    """Those of this node's parts whose checksums are right."""
    intact = []
    for each in found:
        copy = open_copy(each.file.path)
        try:
            if copy is not None:
                copy.verify()
                intact.append(each)
        except DamagedSnapshot as damage:
            tell_damaged(damage)
    return intact


def find_whole(found: Iterable[FoundPart]) -> dict[SnapshotName, StateInMemory]:
    """The states of which all parts are there. Of equal ones that were divided differently, the one with the fewest
    parts. A part's own file is preferred to its mirror."""
    by_division: dict[tuple[SnapshotName, int], dict[int, FoundPart]] = {}
    for each in sorted(found, key=lambda each: each.file.is_mirror):
        by_division.setdefault((each.name, each.parts), {}).setdefault(each.part, each)
    states: dict[SnapshotName, StateInMemory] = {}
    for name, parts in sorted(by_division, key=itemgetter(1)):
        own = by_division[name, parts]
        if len(own) == parts:
            states.setdefault(name, StateInMemory([own[part] for part in range(parts)]))
    return states


def find_states(files: Iterable[str]) -> dict[SnapshotName, StateInMemory]:
    """The whole states in these files of this node."""
    return find_whole(find_parts(CopyFile(path=path) for path in files))


class MemoryReader(StorageReader):
    """Reads a state from its copies, on any number of ranks. They were verified before. Raises DamagedSnapshot."""

    def __init__(self, copies: Sequence[MemoryCopy | RemoteCopy], name: str) -> None:
        self.path = f"{name} in memory"
        self._copies = copies
        self._tensors = {index: copy for copy in copies for index in copy.header.contents.tensors}
        self._others = {index: value for copy in copies for index, value in copy.header.contents.others.items()}

    def reset(self, checkpoint_id: object = None) -> None:
        """There is one state to read."""

    def read_metadata(self, *_: object, **__: object) -> Metadata:
        metadata = self._copies[0].header.contents.metadata
        assert metadata is not None
        return metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *_: object, **__: object) -> None:
        """The copies are open."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        used = {self._tensors[item.storage_index] for item in plan.items if item.type != LoadItemType.BYTE_IO}
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, BytesIO(self._others[item.storage_index]))
            else:
                target = planner.resolve_tensor(item).detach()
                target.copy_(_part_of(self._tensors[item.storage_index].tensor(item.storage_index), item))
                planner.commit_tensor(item, target)
        for copy in used:
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


def open_memory(files: Iterable[CopyFile], name: SnapshotName) -> MemoryReader:
    """Read a state that rank 0 has chosen. Raises DamagedSnapshot if it is gone."""
    opened = OpenFiles()
    copies = [opened.open(file) for file in files]
    if not all(copy.header.name == name for copy in copies):
        raise DamagedSnapshot(str(name), "is not in memory any more")
    return MemoryReader(copies, str(name))


class OpenFiles:
    """Files of this node and of others, each opened once, with one connection to each server."""

    def __init__(self) -> None:
        self._clients: dict[str, CopyClient] = {}
        self._copies: dict[CopyFile, MemoryCopy | RemoteCopy] = {}

    def open(self, file: CopyFile) -> MemoryCopy | RemoteCopy:
        """Raises DamagedSnapshot if there is no whole copy, or if it cannot be reached."""
        if file not in self._copies:
            self._copies[file] = self._open_remote(file) if file.server else _open_own(file)
        return self._copies[file]

    def _open_remote(self, file: CopyFile) -> RemoteCopy:
        client = self._clients.setdefault(file.server, CopyClient(file.server))
        try:
            return RemoteCopy(file, client)
        except OSError as error:
            raise DamagedSnapshot(file.path, f"a copy on another node cannot be read: {error}") from error


def _open_own(file: CopyFile) -> MemoryCopy:
    copy = open_copy(file.path)
    if copy is None:
        raise DamagedSnapshot(file.path, "has no copy any more")
    return copy
