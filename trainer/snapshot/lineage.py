"""How a generation begins: take a term, choose the snapshot to restore, remove what was never committed.

Only rank 0 runs this. The rules are in contract/fence.py and contract/manifest.py. This module does the I/O.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from trainer import snapshot
from trainer.contract import layout
from trainer.contract.copy_record import CopyFile
from trainer.contract.env import WorkerPlace
from trainer.contract.exit_record import EventKind
from trainer.contract.fence import Term, TermRecord, counts, may_commit, parse_term
from trainer.contract.layout import MANIFEST
from trainer.contract.location import is_url, why_no_place
from trainer.contract.manifest import Manifest, SnapshotName, parse_snapshot_name, restore_order
from trainer.errors import DamagedSnapshot, SnapshotError, StaleTerm
from trainer.snapshot import Location, Remote

Tell = Callable[[EventKind, str, dict[str, object]], None]
Verify = Callable[[Location], Manifest]  # raises what snapshot.verify does
_TRIES = 3  # generations that may begin with the same state in memory
_NOTHING: Mapping[SnapshotName, StateInMemory] = MappingProxyType({})


class StateInMemory(Protocol):
    """A whole state in the memory of nodes."""

    @property
    def manifest(self) -> Manifest: ...

    @property
    def files(self) -> tuple[CopyFile, ...]: ...

    @property
    def source(self) -> str:
        """`survivor` if a rank that lost its group handed it over, `buddy` if a mirror has a part, else `memory`."""

    def verify(self) -> None:
        """Raises DamagedSnapshot."""


@dataclass(frozen=True, kw_only=True)
class Restore:
    """A verified snapshot. `is_own` is False if another job made it.

    `memory` has the files of one that is in the memory of nodes. Then nothing is at `path`. `source` is `disk`,
    `memory`, `buddy` or `survivor`.
    """

    path: Location
    manifest: Manifest
    is_own: bool
    memory: tuple[CopyFile, ...] = ()
    source: str = "disk"


@dataclass(frozen=True, kw_only=True)
class Beginning:
    """A term that has begun. `restore` is None at step 0."""

    term: Term
    restore: Restore | None


class Fence:
    """The folder of terms. Outside a job `directory` is None, and nothing is fenced."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory

    def read(self) -> list[TermRecord]:
        """All terms that have begun. A file with a torn record counts as begun, without a choice."""
        return [_read_term(term, f"{self._directory}/{name}") for name, term in self._list().items()]

    def _list(self) -> dict[str, Term]:
        try:
            names = os.listdir(self._directory) if self._directory is not None else []  # noqa: PTH208  # of thousands
        except FileNotFoundError:
            return {}
        return {name: term for name in names if (term := parse_term(name)) is not None}

    def begun_at(self) -> list[float]:
        """When each term began, in seconds since the epoch, without the supervisor's generation 0."""
        times = []
        for name, term in self._list().items():
            if term.generation > 0:
                with suppress(OSError):
                    times.append(os.stat(f"{self._directory}/{name}").st_mtime)  # noqa: PTH116  # of thousands
        return sorted(times)

    def check(self, term: Term) -> None:
        """Raise StaleTerm if a later term has begun."""
        terms = list(self._list().values())
        if not may_commit(term, terms):
            latest = max(terms)
            raise StaleTerm(
                f"attempt {term.attempt} generation {term.generation} may not commit: "
                f"attempt {latest.attempt} generation {latest.generation} has begun"
            )

    def begin(self, record: TermRecord) -> None:
        """Create the term's file exclusively. Raises StaleTerm if another group has begun this term."""
        if self._directory is None:
            return
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / record.term.file_name
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            raise StaleTerm(f"{path} exists: another group has begun this term") from None
        with os.fdopen(descriptor, "w") as file:
            json.dump({"base_step": record.base_step, "retry": record.retry}, file)
            file.flush()
            os.fsync(file.fileno())
        snapshot.sync_directory(self._directory)


def fence_of(place: WorkerPlace) -> Fence:
    return Fence(None if place.job_dir is None else layout.fence_dir(Path(place.job_dir)))


def snapshots_of(place: WorkerPlace) -> Location:
    """ORCHESTRATOR_SNAPSHOT_DIR, else the job's own folder, else (outside a job) `./snapshots`.

    Raises SnapshotError for a URL whose storage ends with the process.
    """
    if place.snapshot_dir is not None:
        reason = why_no_place(place.snapshot_dir) if is_url(place.snapshot_dir) else None
        if reason is not None:
            raise SnapshotError(f"snapshots cannot be kept in {place.snapshot_dir}: it {reason}")
        found = snapshot.parse_location(place.snapshot_dir)
        return found if isinstance(found, Remote) else found.absolute()
    return Path("snapshots").absolute() if place.job_dir is None else layout.snapshots_dir(Path(place.job_dir))


def folder_of(place: WorkerPlace) -> Path:
    """Like `snapshots_of`, for callers that need a folder. Raises SnapshotError for an object store."""
    found = snapshots_of(place)
    if isinstance(found, Remote):
        raise SnapshotError(f"a script's own snapshots need a folder that all ranks see, {found} is an object store")
    return found


def refuse_lost(place: WorkerPlace, snapshots: Location) -> None:
    """Raise SnapshotError if this job committed snapshots to a folder that is gone, for example unmounted.

    Each rank calls this before it makes the folder. An empty folder is accepted: its owner emptied it.
    """
    if isinstance(snapshots, Remote) or place.job_dir is None:
        return
    try:
        if snapshot.is_there(snapshots) or not _has_commit(Path(place.job_dir), str(snapshots)):
            return
    except OSError as error:
        raise SnapshotError(f"{error.filename or snapshots} cannot be used: {error.strerror}") from error
    raise SnapshotError(
        f"{snapshots} is gone, with the snapshots that this job committed there: not starting again from step 0. "
        "Mount the file system that holds it, or make an empty folder there to start afresh"
    )


def _has_commit(job_dir: Path, snapshots: str) -> bool:
    """Whether any worker of the job has journaled a commit to this folder. Raises OSError."""
    for journal in job_dir.glob(f"attempts/*/replica-*/*/{layout.EVENTS}"):
        for line in journal.read_bytes().splitlines():
            with suppress(ValueError, LookupError, TypeError, RecursionError):
                event = json.loads(line)
                if event["kind"] == EventKind.SNAPSHOT_COMMITTED.value and event["evidence"]["folder"] == snapshots:
                    return True
    return False


def answered_requests(restore: Restore | None) -> int:
    """How many requests for a snapshot had been answered when the restored one was written."""
    requests = 0 if restore is None or not restore.is_own else restore.manifest.details.get("wishes")
    return requests if isinstance(requests, int) else 0


def begin_term(
    place: WorkerPlace,
    snapshots: Location,
    fence: Fence,
    tell: Tell,
    verify: Verify = snapshot.verify,
    *,
    in_memory: Mapping[SnapshotName, StateInMemory] = _NOTHING,
) -> Beginning:
    """Begin this generation's term. Raises StaleTerm, and SnapshotError if nothing can be restored that must be.

    Other exceptions of `verify` propagate. Then no term has begun.
    """
    try:
        term = _own_term(place, snapshots)
        fence.check(term)
        restore = choose_restore(place, snapshots, fence.read(), tell, verify, in_memory=in_memory)
        base_step = 0 if restore is None else restore.manifest.step
        fence.begin(TermRecord(term=term, base_step=base_step, retry=place.retry))
        _check_again(restore, fence)
        _sweep(snapshots, term)
    except OSError as error:
        raise SnapshotError(f"{error.filename or snapshots} cannot be used: {error.strerror}") from error
    return Beginning(term=term, restore=restore)


def _check_again(restore: Restore | None, fence: Fence) -> None:
    """Check that no older term began meanwhile from an earlier step: our snapshot would be outside the lineage."""
    name = None if restore is None or not restore.is_own else parse_snapshot_name(restore.path.name)
    if name is not None and not counts(name.term, name.step, fence.read()):
        raise StaleTerm(f"another term began while {name} was being verified; the next generation chooses again")


def choose_restore(
    place: WorkerPlace,
    snapshots: Location,
    records: Sequence[TermRecord],
    tell: Tell,
    verify: Verify = snapshot.verify,
    *,
    in_memory: Mapping[SnapshotName, StateInMemory] = _NOTHING,
) -> Restore | None:
    """The newest good snapshot of the lineage, on disk or in memory. Damaged ones are quarantined. None only if there
    are none on disk.

    `place.restore_from` names the snapshot to start from, which must be good. If it is one of the job's own, others
    count only if they were written since the retry that asked for it. Any other path is used until the job has a
    snapshot of its own.
    """
    restore_from = place.restore_from
    pinned = None if restore_from is None else _locate(restore_from, snapshots)
    is_way_back = pinned is not None and pinned.parent == _resolve(snapshots)
    found = snapshot.list_found(snapshots)
    own = restore_order((each.name for each in found if each.committed and not each.quarantined), records)
    remembered = restore_order(in_memory, records)
    lost = [each.name for each in found if each.quarantined and counts(each.name.term, each.name.step, records)]
    if is_way_back:
        since = {record.term for record in records if record.retry == place.retry}
        own, remembered = ([name for name in names if name.term in since] for names in (own, remembered))
    for name in remembered:
        if own and own[0].step > name.step:
            break
        if _has_failed(name, records):
            continue
        restore = _try_memory(in_memory[name], snapshots / str(name), tell)
        if restore is not None:
            return restore
    for name in own:
        manifest = verify_or_quarantine(snapshots / str(name), tell, place.job_id, verify)
        if manifest is not None:
            return Restore(path=snapshots / str(name), manifest=manifest, is_own=True)
    if pinned is not None:
        return Restore(path=pinned, manifest=_verify_pinned(pinned, str(restore_from), verify), is_own=is_way_back)
    if own or lost:
        count = len(set(own) | set(lost))
        raise SnapshotError(
            f"none of the {count} committed snapshots in {snapshots} is whole: not starting again from step 0. "
            "Name a good one in ORCHESTRATOR_RESTORE_FROM, or remove the quarantined ones to start afresh"
        )
    return None


def _has_failed(name: SnapshotName, records: Sequence[TermRecord]) -> bool:
    """Whether the last generations began with the state of this step, and did not get beyond it.

    A rank may be unable to reach the node that has a part, or to load the state. Then only a snapshot on disk helps.
    """
    return [record.base_step for record in records[-_TRIES:]] == [name.step] * _TRIES


def _try_memory(state: StateInMemory, path: Location, tell: Tell) -> Restore | None:
    try:
        state.verify()
        return Restore(path=path, manifest=state.manifest, is_own=True, memory=state.files, source=state.source)
    except DamagedSnapshot as damage:
        tell_damaged(tell, damage)
        return None


def tell_damaged(tell: Tell, damage: DamagedSnapshot) -> None:
    tell(EventKind.COPY_DAMAGED, f"a copy in memory was skipped: {damage}", {"name": damage.file})


def _own_term(place: WorkerPlace, snapshots: Location) -> Term:
    """Attempt and generation of the job. Outside a job, a generation that no earlier run in this folder had."""
    if place.job_dir is not None:
        return Term(place.attempt, place.generation)
    names = [each.name for each in snapshot.list_found(snapshots)]
    last = max((name.term.generation for name in names if name.term.attempt == place.attempt), default=0)
    return Term(place.attempt, max(place.generation, last + 1))


def _locate(restore_from: str, snapshots: Location) -> Location:
    return _resolve(snapshot.parse_location(restore_from) if "/" in restore_from else snapshots / restore_from)


def _resolve(place: Location) -> Location:
    return place if isinstance(place, Remote) else place.resolve()


def _verify_pinned(path: Location, restore_from: str, verify: Verify) -> Manifest:
    try:
        return verify(path)
    except SnapshotError as error:
        raise SnapshotError(f"cannot restore from {restore_from}: {error}") from error


def verify_or_quarantine(
    path: Location, tell: Tell, job_id: str | None = None, verify: Verify = snapshot.verify
) -> Manifest | None:
    """The manifest of a good snapshot. A damaged one, or one of another job, is quarantined and reported."""
    try:
        manifest = verify(path)
        _refuse_other_job(manifest, path, job_id)
        return manifest
    except DamagedSnapshot as damage:
        moved = snapshot.quarantine(path)
        sentence = f"snapshot {path.name} is damaged and was quarantined: {damage}"
        tell(EventKind.SNAPSHOT_QUARANTINED, sentence, {"name": path.name, "file": damage.file, "moved_to": str(moved)})
        return None


def _refuse_other_job(manifest: Manifest, path: Location, job_id: str | None) -> None:
    owner = manifest.details.get("job")
    if job_id is not None and owner is not None and owner != job_id:
        raise DamagedSnapshot(MANIFEST, f"belongs to job {owner}, in {path} of job {job_id}")


def _sweep(snapshots: Location, term: Term) -> None:
    """Delete what earlier terms left without a commit. Directories of later terms stay."""
    for each in snapshot.list_found(snapshots):
        if not (each.committed or each.quarantined) and each.name.term < term:
            snapshot.remove(snapshots / str(each.name))


def _read_term(term: Term, path: str) -> TermRecord:
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123  # read by the thousand, and each restart waits for it
            document = json.loads(file.read())
        base, retry = document.get("base_step"), document.get("retry", 0)
    except (OSError, ValueError, AttributeError, RecursionError):
        return TermRecord(term=term, base_step=None)
    return TermRecord(
        term=term,
        base_step=base if isinstance(base, int) else None,
        retry=retry if isinstance(retry, int) else 0,
    )
