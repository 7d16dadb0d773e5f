"""A snapshot's manifest (`MANIFEST.json`), which is its commit, and the order in which snapshots are tried."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from trainer.contract.fence import Term, TermRecord, counts

CONTIGUOUS = {"tensors": "contiguous"}  # in `details`: each tensor is stored row by row, whatever its strides were
FRESH_OPTIMIZER = {"optimizer": "fresh"}  # in `details`: no optimizer state, so any optimizer starts afresh
FILES = "files"  # as `strategy`: a script's own files, not a distributed checkpoint of torch
IMPORTED = "imported"  # as `strategy`: made from another format, which may not keep the order of parameters
_NAME = re.compile(r"step-([0-9]{1,18})-a([0-9]{1,18})-g([0-9]{1,18})\Z")  # numbers that fit 64 bits


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    size_bytes: int
    checksum: str  # "<algorithm>:<hex>", e.g. "xxh3-64:..."


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a committed snapshot holds. `parent` is the directory name that its term restored from, or None."""

    step: int
    attempt: int
    generation: int
    parent: str | None
    at: str
    world_size: int
    strategy: str
    samples_seen: int
    files: dict[str, FileEntry]  # by path relative to the snapshot's directory
    versions: dict[str, str] = field(default_factory=dict)  # torch, python, trainer
    details: dict[str, object] = field(default_factory=dict)

    @property
    def term(self) -> Term:
        return Term(self.attempt, self.generation)

    @property
    def has_contiguous_tensors(self) -> bool:
        return self.details.items() >= CONTIGUOUS.items()

    @property
    def has_optimizer(self) -> bool:
        return not self.details.items() >= FRESH_OPTIMIZER.items()

    @property
    def size_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.files.values())


@dataclass(frozen=True)
class SnapshotName:
    step: int
    term: Term

    def __str__(self) -> str:
        return f"step-{self.step:08d}-a{self.term.attempt}-g{self.term.generation}"


def parse_snapshot_name(name: str) -> SnapshotName | None:
    match = _NAME.match(name)
    return None if match is None else SnapshotName(int(match[1]), Term(int(match[2]), int(match[3])))


def restore_order(names: Iterable[SnapshotName], records: Sequence[TermRecord]) -> list[SnapshotName]:
    """Snapshots of the job's lineage, newest first: by step, and of one step by the later term."""
    on_lineage = [name for name in names if counts(name.term, name.step, records)]
    return sorted(on_lineage, key=lambda name: (name.step, name.term), reverse=True)


def render_manifest(manifest: Manifest) -> dict[str, object]:
    return {"version": 1, **asdict(manifest)}


def parse_manifest(document: Mapping[str, object]) -> Manifest:
    """Raises ValueError, naming the field, for a document that cannot be a manifest."""
    try:
        files = document["files"]
        if not isinstance(files, Mapping) or not files:
            raise ValueError("manifest lists no files")
        parent = document.get("parent")
        versions, details = document.get("versions") or {}, document.get("details") or {}
        return Manifest(
            step=int(str(document["step"])),
            attempt=int(str(document["attempt"])),
            generation=int(str(document["generation"])),
            parent=None if parent is None else str(parent),
            at=str(document["at"]),
            world_size=int(str(document["world_size"])),
            strategy=str(document["strategy"]),
            samples_seen=int(str(document["samples_seen"])),
            files={
                str(name): FileEntry(size_bytes=int(entry["size_bytes"]), checksum=str(entry["checksum"]))
                for name, entry in files.items()
            },
            versions={str(key): str(value) for key, value in versions.items()} if isinstance(versions, Mapping) else {},
            details=dict(details) if isinstance(details, Mapping) else {},
        )
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"not a manifest: {error!r}") from error
