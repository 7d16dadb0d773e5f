"""A job's fence and snapshots as a fake worker group writes them, by the real rules in a real run directory."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from trainer.contract import layout
from trainer.contract.fence import Term, TermRecord, may_commit, parse_term
from trainer.contract.manifest import SnapshotName, parse_snapshot_name, restore_order


class StaleTerm(Exception):
    """A later term has begun."""


@dataclass(frozen=True, slots=True)
class Began:
    """A generation began from a snapshot, or from step 0 if it is None."""

    term: Term
    retry: int
    restored: SnapshotName | None
    restore_from: str | None


@dataclass(frozen=True, slots=True)
class Committed:
    name: SnapshotName


class FakeLineage:
    """`history` is what was done to the folders, oldest first."""

    def __init__(self, job_dir: Path) -> None:
        self.history: list[Began | Committed] = []
        self._fence = layout.fence_dir(job_dir)
        self._snapshots = layout.snapshots_dir(job_dir)

    def begin(self, term: Term, *, retry: int, restore_from: str | None) -> SnapshotName | None:
        """Choose the snapshot to restore and write the term down. Raises StaleTerm."""
        self.check(term)
        restored = self._choose(retry, restore_from)
        step = 0 if restored is None else restored.step
        self._fence.mkdir(parents=True, exist_ok=True)
        try:
            with (self._fence / term.file_name).open("x") as file:
                json.dump({"base_step": step, "retry": retry}, file)
        except FileExistsError:
            raise StaleTerm(f"{term} was begun by another group") from None
        self.history.append(Began(term, retry, restored, restore_from))
        return restored

    def check(self, term: Term) -> None:
        """Raises StaleTerm if the term may no longer commit."""
        if not may_commit(term, [record.term for record in self.records()]):
            raise StaleTerm(f"{term} is not the newest")

    def commit(self, name: SnapshotName) -> None:
        """Commit. `check` came before, and anything may have happened in between."""
        folder = self._snapshots / str(name)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / layout.MANIFEST).write_text(json.dumps({"step": name.step}))
        self.history.append(Committed(name))

    def names(self) -> list[SnapshotName]:
        """The committed snapshots."""
        folders = [path.parent for path in self._snapshots.glob(f"*/{layout.MANIFEST}")]
        return [name for folder in folders if (name := parse_snapshot_name(folder.name)) is not None]

    def order(self) -> list[SnapshotName]:
        """The committed snapshots that count, newest first."""
        return restore_order(self.names(), self.records())

    def records(self) -> list[TermRecord]:
        found = [] if not self._fence.exists() else list(self._fence.iterdir())
        return [_read(term, path) for path in found if (term := parse_term(path.name)) is not None]

    def _choose(self, retry: int, restore_from: str | None) -> SnapshotName | None:
        """Choose as trainer.snapshot.lineage: the newest that counts, and after `restore_from` only this retry's."""
        wanted = None if restore_from is None else parse_snapshot_name(restore_from)
        if wanted is None:
            return next(iter(self.order()), None)
        since = {record.term for record in self.records() if record.retry == retry}
        return next((name for name in self.order() if name.term in since), wanted)


def _read(term: Term, path: Path) -> TermRecord:
    text = path.read_text()
    document = json.loads(text) if text else {}
    return TermRecord(term=term, base_step=document.get("base_step"), retry=document.get("retry", 0))
