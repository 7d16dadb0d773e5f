"""What a script continues from in this generation: rank 0 chooses it, and the other ranks read the choice in a file.

A script may ask before it has a process group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import ModuleType

from trainer.contract import layout
from trainer.contract.env import WorkerPlace
from trainer.contract.manifest import SnapshotName
from trainer.errors import SnapshotError, StaleTerm
from trainer.script import notes as script_notes
from trainer.snapshot import lineage
from trainer.snapshot.events import tell_restored
from trainer.snapshot.lineage import Restore, StateInMemory, Tell

OBJECTS = "objects"  # in a manifest's details: the fingerprint of the objects that were handed over


@dataclass(frozen=True, kw_only=True)
class ScriptBeginning:
    """Completed steps, and the restored state. At the start it has no name, and in memory it has no folder.

    `requests` is how many requests of the service had been answered.
    """

    step: int = 0
    name: str | None = None
    folder: Path | None = None
    memory: tuple[str, ...] = ()
    requests: int = 0


def begin(place: WorkerPlace, objects: int | None, tell: Tell) -> ScriptBeginning:
    """Begin this generation's term. Raises SnapshotError and StaleTerm.

    `objects` is the fingerprint of the objects that a survivor may have handed over. With None, only snapshots on disk
    count.
    """
    path = layout.beginning_file(Path(str(place.job_dir)), place.attempt, place.generation)
    notes = [path.with_name(f"{path.name}.rank-{rank}") for rank in range(1, place.world_size)]
    path.parent.mkdir(parents=True, exist_ok=True)
    if place.rank == 0:
        try:
            if place.survivors:
                _await_others(notes)
            chosen = _choose(place, objects, tell)
        except (SnapshotError, StaleTerm) as error:
            script_notes.publish(path, {"error": str(error)})
            raise
        script_notes.publish(path, asdict(chosen) | {"folder": chosen.folder and str(chosen.folder)})
        return chosen
    if place.survivors:
        script_notes.publish(notes[place.rank - 1], {})
    found = script_notes.wait_for(partial(script_notes.read, path), f"rank 0 to choose a snapshot: {path}")
    if "error" in found:
        raise SnapshotError(str(found["error"]))
    return _parse(found)


def _await_others(notes: Iterable[Path]) -> None:
    """After survivors, wait for all ranks: one that survived begins only when its state is written."""
    for note in notes:
        script_notes.wait_for(partial(script_notes.read, note), f"{note}: all ranks must call restore() or latest()")
        note.unlink(missing_ok=True)


def _choose(place: WorkerPlace, objects: int | None, tell: Tell) -> ScriptBeginning:
    fence, folder = lineage.fence_of(place), lineage.folder_of(place)
    lineage.refuse_lost(place, folder)
    in_memory = {} if objects is None or not place.is_on_one_node else _find_in_memory(place, objects)
    restore = lineage.begin_term(place, folder, fence, tell, in_memory=in_memory).restore
    requests = lineage.answered_requests(restore)
    if restore is None:
        return ScriptBeginning(requests=requests)
    tell_restored(restore, place.world_size, tell)
    return ScriptBeginning(
        step=restore.manifest.step,
        name=restore.path.name,
        folder=_folder_of(restore),
        memory=tuple(file.path for file in restore.memory),
        requests=requests,
    )


def _folder_of(restore: Restore) -> Path | None:
    return None if restore.memory else Path(str(restore.path))


def _find_in_memory(place: WorkerPlace, objects: int) -> Mapping[SnapshotName, StateInMemory]:
    """The states of objects like these in this node's memory."""
    found: Mapping[SnapshotName, StateInMemory] = _memory_reading().find_states(
        path for own in place.memory for path in own
    )
    return {name: state for name, state in found.items() if state.manifest.details.get(OBJECTS) == objects}


def _parse(found: Mapping[str, object]) -> ScriptBeginning:
    name, folder, memory = found["name"], found["folder"], found["memory"]
    return ScriptBeginning(
        step=int(str(found["step"])),
        name=None if name is None else str(name),
        folder=None if folder is None else Path(str(folder)),
        memory=tuple(map(str, memory)) if isinstance(memory, list) else (),
        requests=int(str(found["requests"])),
    )


def _memory_reading() -> ModuleType:
    from trainer.snapshot import memory_reading  # noqa: PLC0415  # it imports torch, and a script may do without

    return memory_reading
