"""What each generation should have restored, computed from the order of events and not from names."""

from __future__ import annotations

from tests.fakes.lineage import Began, Committed, FakeLineage
from trainer.contract.fence import Term
from trainer.contract.manifest import SnapshotName, parse_snapshot_name


class SnapshotOracle:
    """Follows one job. Commits of the newest generation count. A retry with `restore_from` drops newer snapshots."""

    def __init__(self, lineage: FakeLineage) -> None:
        self._lineage = lineage
        self._seen = 0
        self._counted: list[SnapshotName] = []  # oldest first
        self._newest = Term(0, 0)
        self._ways_back: set[int] = set()  # retries

    @property
    def counted(self) -> list[SnapshotName]:
        return self._counted

    def follow(self) -> list[str]:
        """What went wrong since the last call."""
        news, self._seen = self._lineage.history[self._seen :], len(self._lineage.history)
        return [wrong for entry in news for wrong in self._take(entry)]

    def _take(self, entry: Began | Committed) -> list[str]:
        if isinstance(entry, Committed):
            if entry.name.term >= self._newest:
                self._counted.append(entry.name)
            return []
        wanted = None if entry.restore_from is None else parse_snapshot_name(entry.restore_from)
        if wanted is not None and entry.retry not in self._ways_back:
            self._ways_back.add(entry.retry)
            self._counted = [name for name in self._counted if name.step < wanted.step] + [wanted]
        wrong = []
        if entry.term < self._newest:
            wrong.append(f"{entry.term} starts after {self._newest}")
        self._newest = max(self._newest, entry.term)
        expected = self._counted[-1] if self._counted else None
        # One step may have two equal snapshots, of two generations.
        if (None if entry.restored is None else entry.restored.step) != (None if expected is None else expected.step):
            wrong.append(f"{entry.term} restored {entry.restored}, not {expected}")
        return wrong
