"""Verify a large snapshot on all ranks, each a part of its files. Rank 0 decides what follows.

Rank 0 verifies a small snapshot alone, before the group forms, while the other ranks start. With a large one, all ranks
would wait until a single node has read everything. Nothing is unpickled here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch.distributed as dist

from trainer import snapshot
from trainer.contract.manifest import FileEntry, Manifest
from trainer.errors import DamagedSnapshot, SnapshotError
from trainer.snapshot import Location
from trainer.snapshot.lineage import Verify
from trainer.worker.agreement import Outcome, attempt, unwrap
from trainer.worker.waits import Waits

T = TypeVar("T")

# One rank reads this much in 0.1 s (2.5 GB/s from the page cache, two cores) while the others start. All ranks together
# can only begin after their start, and need an exchange, 7 ms between two ranks.
ALONE_BYTES = 256 * 1024 * 1024


class TooLarge(Exception):
    """The snapshot is too large for one rank to verify."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Rank 0's order to all ranks: verify your part of these files."""

    directory: Location
    files: dict[str, FileEntry]


def verify_small(directory: Location) -> Manifest:
    """Like `snapshot.verify`. Raises TooLarge for more than ALONE_BYTES, before it reads a file."""
    manifest = snapshot.check_manifest(directory)
    if manifest.size_bytes > ALONE_BYTES:
        raise TooLarge
    snapshot.verify_files(directory, manifest.files)
    return manifest


def choose_together(choose: Callable[[Verify], T], waits: Waits) -> T:
    """Run `choose` on rank 0, verify on all ranks, and return the result on every rank. Collective.

    What it raises is raised on every rank.
    """
    if dist.get_rank() == 0:
        outcome = attempt(lambda: choose(lambda directory: _verify_with_all(directory, waits)))
        _send(outcome, waits)
        return unwrap(outcome)
    message: Order | Outcome[T] = _receive(waits)
    while isinstance(message, Order):
        _gather(message, waits)
        message = _receive(waits)
    return unwrap(message)


def share_of(files: Mapping[str, FileEntry], rank: int, world_size: int) -> dict[str, FileEntry]:
    """The files of one rank. Large files go to different ranks."""
    names = sorted(files, key=lambda name: (-files[name].size_bytes, name))
    return {name: files[name] for name in names[rank::world_size]}


def _verify_with_all(directory: Location, waits: Waits) -> Manifest:
    manifest = snapshot.check_manifest(directory)
    order = Order(directory=directory, files=manifest.files)
    _send(order, waits)
    problems = {rank: error for rank, (_, error) in enumerate(_gather(order, waits)) if error is not None}
    damages = {rank: error for rank, error in problems.items() if isinstance(error, DamagedSnapshot)}
    # If only one node sees damage, the node is at fault and not the snapshot: rank 0 checks the file itself.
    suspects = {damage.file for damage in damages.values()}  # without their folders
    own = {name: entry for name, entry in manifest.files.items() if name.rpartition("/")[2] in suspects}
    snapshot.verify_files(directory, own)
    for rank, damage in damages.items():
        advice = "do all nodes see the same storage?"
        raise SnapshotError(
            f"rank {rank} finds damage in {directory.name} where rank 0 finds none ({damage}); {advice}"
        )
    for error in problems.values():
        raise error
    return manifest


def _gather(order: Order, waits: Waits) -> list[Outcome[None]]:
    """Verify this rank's part. Rank 0 gets the results of all ranks."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    own = attempt(lambda: snapshot.verify_files(order.directory, share_of(order.files, rank, world_size)))
    outcomes: list[Outcome[None]] | None = [(None, None)] * world_size if rank == 0 else None
    with waits.waiting():
        dist.gather_object(own, outcomes, dst=0)
    return outcomes or []


def _send(message: Order | Outcome[T], waits: Waits) -> None:
    with waits.waiting():
        dist.broadcast_object_list([message], src=0)


def _receive(waits: Waits) -> Order | Outcome[T]:
    message: list[Order | Outcome[T]] = [(None, None)]
    with waits.waiting():
        dist.broadcast_object_list(message, src=0)
    return message[0]
