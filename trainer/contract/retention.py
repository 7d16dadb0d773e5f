"""Which snapshots are kept: a pure rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trainer.contract.manifest import SnapshotName


def choose_deletions(
    order: Sequence[SnapshotName], *, keep: int, keep_every: int | None, is_good: Callable[[SnapshotName], bool]
) -> list[SnapshotName]:
    """What may go of a lineage, newest first: all behind the newest `keep` good ones but every `keep_every`-th step.

    `is_good` verifies, newest first, and is asked only while there is something behind that could go.
    """
    good = 0
    for position, name in enumerate(order):
        behind = [older for older in order[position + 1 :] if keep_every is None or older.step % keep_every]
        if not behind:
            return []
        good += is_good(name)
        if good == keep:
            return behind
    return []
