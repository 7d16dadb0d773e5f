"""Delete old snapshots, on rank 0, between two saves. Those that stay are verified. The last good one always stays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from trainer import snapshot
from trainer.contract.exit_record import EventKind
from trainer.contract.manifest import Manifest, SnapshotName, restore_order
from trainer.errors import DamagedSnapshot, SnapshotError
from trainer.snapshot import Location
from trainer.snapshot.lineage import Fence, Tell, verify_or_quarantine


class Retention:
    """Snapshots outside the lineage stay. Each snapshot is verified at most once."""

    def __init__(
        self,
        directory: Location,
        fence: Fence,
        tell: Tell,
        *,
        keep: int,
        keep_every: int | None = None,
        verified: Location | None = None,  # the snapshot that this generation was restored from
    ) -> None:
        self._directory, self._fence, self._tell = directory, fence, tell
        self._keep, self._keep_every = keep, keep_every
        self._verified = {verified.name} if verified is not None and verified.parent == directory else set()
        self._unreported: set[str] = set()  # verified since the last report
        self._is_stopping = False

    def stop_verifying(self) -> None:
        """Read no old snapshot from now on, in any thread. Then none is deleted."""
        self._is_stopping = True

    def delete_old(self) -> None:
        """Idempotent. The next call tries again what cannot be read or deleted now."""
        with suppress(OSError):
            order = restore_order(snapshot.list_committed(self._directory), self._fence.read())
            for name in choose_deletions(order, keep=self._keep, keep_every=self._keep_every, is_good=self._is_good):
                snapshot.remove(self._directory / str(name))
                evidence: dict[str, object] = {"name": str(name), "verified": sorted(self._unreported)}
                self._tell(EventKind.SNAPSHOT_DELETED, f"deleted snapshot {name}", evidence)
                self._unreported.clear()

    def _is_good(self, name: SnapshotName) -> bool:
        if str(name) not in self._verified:
            try:
                if verify_or_quarantine(self._directory / str(name), self._tell, verify=self._verify) is None:
                    return False
            except (OSError, SnapshotError):
                return False
            self._verified.add(str(name))
            self._unreported.add(str(name))
        return True

    def _verify(self, path: Location) -> Manifest:
        """Like `snapshot.verify`, but an I/O error is no damage: only a restore sets a snapshot aside for it."""
        try:
            return snapshot.verify(path, lambda: not self._is_stopping)
        except DamagedSnapshot as damage:
            if isinstance(damage.__cause__, OSError):
                raise SnapshotError(str(damage)) from damage
            raise


def choose_deletions(
    order: Sequence[SnapshotName], *, keep: int, keep_every: int | None, is_good: Callable[[SnapshotName], bool]
) -> list[SnapshotName]:
    """The snapshots of a lineage that may go: older than the newest `keep` good ones, and not a `keep_every`-th step.

    `is_good` verifies a snapshot. It is called newest first, and only while an older snapshot could go.
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
