"""Save the parts of a script's state that differ between ranks in one snapshot, so that each rank reads its own.

A value is saved under its name by the first rank that has it. Each rank whose value differs saves its own, too, below
`rank-<rank>`. A rank that has saved no value of its own reads that of the first rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import takewhile
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata

from trainer.script.fingerprint import fingerprint

State = dict[str, Any]
Path = tuple[str, ...]


class RankParts:
    """The state of this rank. `fingerprint` is equal on all ranks if no part differs."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._checksums = {path: _checksum(value) for path, value in _walk(state)}
        self.fingerprint = fingerprint(self._checksums)

    def divide(self) -> State:
        """Return the state, with the values that differ from the first rank's below this rank's name. Collective."""
        rank, every = dist.get_rank(), [dict[Path, int]()] * dist.get_world_size()
        dist.all_gather_object(every, self._checksums)
        first: dict[Path, int] = {}
        for checksums in reversed(every):
            first |= checksums
        shared, own = State(), State()
        for path, value in _walk(self.state):
            is_own = self._checksums[path] != first[path]
            _put(own if is_own else shared, path, value)
        return {**shared, f"rank-{rank}": own} if own else shared


class RankReader(FileSystemReader):
    """Reads the values of this rank. Raises what FileSystemReader does."""

    def __init__(self, folder: object, rank: int) -> None:
        super().__init__(str(folder))
        self._rank = rank

    def read_metadata(self, *args: object, **options: object) -> Metadata:
        return _select_own(super().read_metadata(*args, **options), self._rank)


def _select_own(metadata: Metadata, rank: int) -> Metadata:
    """Return the metadata with the values of this rank in place of those of the first rank."""
    prefix, paths = f"rank-{rank}.", metadata.planner_data or {}
    own = {name: name.removeprefix(prefix) for name in paths if name.startswith(prefix)}
    if not own:
        return metadata
    replaced = {_find_root(paths[name][1:]) for name in own}
    kept = {name: name for name, path in paths.items() if name not in own and _find_root(path) not in replaced}
    names = kept | own
    entries, places = metadata.state_dict_metadata, metadata.storage_data or {}
    return replace(
        metadata,
        state_dict_metadata={new: entries[name] for name, new in names.items() if name in entries},
        planner_data={new: paths[name][1:] if name in own else paths[name] for name, new in names.items()},
        storage_data={
            replace(index, fqn=names[index.fqn]): place for index, place in places.items() if index.fqn in names
        },
    )


def _walk(value: Mapping[str, Any], above: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield the leaves with their paths. An empty mapping is a leaf, too."""
    for key, each in value.items():
        if isinstance(each, Mapping) and each:
            yield from _walk(each, (*above, key))
        else:
            yield (*above, key), each


def _put(state: State, path: Path, value: object) -> None:
    *parents, last = path
    for parent in parents:
        state = state.setdefault(parent, {})
    state[last] = value


def _checksum(value: object) -> int:
    try:
        return fingerprint(value)
    except Exception:  # noqa: BLE001  # DCP cannot save it either, and reports that on all ranks
        return 0


def _find_root(path: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the path of a value. If it is in a list, the list's path, because a list is read as a whole."""
    return tuple(takewhile(lambda key: not isinstance(key, int), path))
