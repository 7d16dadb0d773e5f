"""What a run begins with: the state of a snapshot, or initial values. Events report which."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial

import torch

from trainer import snapshot
from trainer.contract.config import TrainerConfig
from trainer.contract.copy_record import CopyFile
from trainer.contract.env import COPIES, WorkerPlace
from trainer.contract.exit_record import EventKind
from trainer.contract.manifest import SnapshotName, restore_order
from trainer.contract.progress import Phase
from trainer.data.token_files import describe_difference
from trainer.errors import DataError, SnapshotError, StrategyError, TaskError
from trainer.loop.batch_change import advise_batch
from trainer.loop.task import Task
from trainer.model.initial import Digests, Draft, named_tensors
from trainer.snapshot import Location, Remote
from trainer.snapshot.events import tell_restored
from trainer.snapshot.lineage import (
    Beginning,
    Restore,
    StateInMemory,
    Tell,
    begin_term,
    fence_of,
    refuse_lost,
    snapshots_of,
    tell_damaged,
)
from trainer.snapshot.memory_reading import FoundPart, find_intact, find_parts, find_whole
from trainer.snapshot.run_state import RunState
from trainer.snapshot.state_reading import read_state
from trainer.snapshot.verification import TooLarge, choose_together, verify_small
from trainer.worker.agreement import Outcome, on_every_rank, on_rank_zero, share
from trainer.worker.run import Run


@dataclass(frozen=True)
class RankFindings:
    """What a rank found before the group formed."""

    program: dict[str, object]  # versions and configuration, equal on every rank
    data: dict[str, object]  # the fingerprint of the data
    beginning: Beginning | None  # on rank 0, unless it has to be chosen in the group


def find_beginning(config: TrainerConfig, place: WorkerPlace, task: Task, tell: Tell) -> RankFindings:
    """Rank 0 chooses and verifies the snapshot while the other ranks start. Raises SnapshotError and StaleTerm.

    After survivors it chooses in `agree` instead: they join the group only when their states are written. So it does
    when other nodes may have copies.
    """
    directory = snapshots_of(place)
    refuse_lost(place, directory)
    _refuse_unwritable(directory, f".probe-a{place.attempt}-g{place.generation}-{place.rank}")
    beginning = None
    if place.rank == 0 and not _chooses_in_group(place):
        beginning = _choose_alone(place, tell, find_whole(_find_copies(place)))
    return RankFindings(describe_program(config), task.source.fingerprint, beginning)


def _chooses_in_group(place: WorkerPlace) -> bool:
    return bool(place.survivors) or _has_copies_elsewhere(place)


def _has_copies_elsewhere(place: WorkerPlace) -> bool:
    """Whether other nodes may have copies of an earlier generation."""
    return bool(place.copy_server) and not place.is_on_one_node and place.generation > 1


def _choose_alone(place: WorkerPlace, tell: Tell, in_memory: Mapping[SnapshotName, StateInMemory]) -> Beginning | None:
    """Choose on this rank. None if all ranks have to verify a large snapshot."""
    verify = snapshot.verify if place.world_size == 1 else verify_small
    with suppress(TooLarge):
        return begin_term(place, snapshots_of(place), fence_of(place), tell, verify, in_memory=in_memory)
    return None


def _find_copies(place: WorkerPlace, server: str = "") -> list[FoundPart]:
    """What is in this node's memory."""
    own = [
        CopyFile(path=path, server=server, is_handover=number == COPIES)
        for files in place.memory
        for number, path in enumerate(files)
    ]
    mirrors = [CopyFile(path=path, server=server, is_mirror=True) for files in place.mirrors for path in files]
    return find_parts([*own, *mirrors])


def describe_program(config: TrainerConfig) -> dict[str, object]:
    """Versions and configuration, which must be equal on every rank."""
    versions = {"torch": torch.__version__, "CUDA": torch.version.cuda, "Python": platform.python_version()}
    return {**{f"version of {name}": version for name, version in versions.items()}, **asdict(config)}


def agree(run: Run, findings: Outcome[RankFindings]) -> Beginning:
    """Give all ranks rank 0's beginning. All ranks verify a large snapshot together before. Collective.

    Raises on all ranks what failed on one, StrategyError when one of them runs something else than rank 0, and
    DataError when it sees other data.
    """
    found = share(findings, run.waits)
    for rank, other in enumerate(found):
        difference = describe_difference(other.program, found[0].program)
        if difference is not None:
            raise StrategyError(f"rank {rank} differs from rank 0: {difference}; start all ranks from one image")
        difference = describe_difference(other.data, found[0].data)
        if difference is not None:
            raise DataError(f"rank {rank} sees other data than rank 0: {difference}; give all nodes the same files")
    beginning = found[0].beginning
    if _has_copies_elsewhere(run.place):
        beginning = _choose_among_nodes(run)
    elif run.place.survivors:
        own = run.place
        beginning = on_rank_zero(
            lambda: _choose_alone(own, run.heartbeat.tell, find_whole(_find_copies(own))), run.waits
        )
    if beginning is not None:
        return beginning
    run.heartbeat.beat(Phase.RESTORE)
    directory, fence = snapshots_of(run.place), fence_of(run.place)
    return choose_together(
        lambda verify: begin_term(run.place, directory, fence, run.heartbeat.tell, verify), run.waits
    )


def _choose_among_nodes(run: Run) -> Beginning | None:
    """Choose on rank 0, when each node has verified its parts of the newest state in memory. Collective."""
    place, waits, tell = run.place, run.waits, run.heartbeat.tell
    find = partial(_find_copies, place, place.copy_server) if place.local_rank == 0 else list[FoundPart]
    found = [part for parts in on_every_rank(find, waits) for part in parts]
    names = on_rank_zero(lambda: restore_order(find_whole(found), fence_of(place).read()), waits)
    state, intact = None, list[FoundPart]()
    for name in names:
        own = [part for part in found if part.name == name and part.file.server == place.copy_server]
        verify = partial(find_intact, own if place.local_rank == 0 else (), partial(tell_damaged, tell))
        intact = [part for parts in on_every_rank(verify, waits) for part in parts]
        state = find_whole(intact).get(name)
        if state is not None:
            break
    in_memory = {} if state is None else {name: state}
    beginning = on_rank_zero(lambda: _choose_alone(place, tell, in_memory), waits)
    if state is None or beginning is None or beginning.restore is None or not beginning.restore.memory:
        return beginning
    files = state.seen_from(place.copy_server, intact)
    return replace(beginning, restore=replace(beginning.restore, memory=files))


def write_values(run: Run, task: Task, draft: Draft, beginning: Beginning, state: RunState) -> None:
    """Fill the model and the optimizer of `state`. Collective. Raises SnapshotError, DataError and TaskError."""
    model = state.model
    names = named_tensors(model).keys()
    if beginning.restore is None:
        digests = draft.write(model, names)
        if run.config.task is not None:
            refuse_different(on_every_rank(lambda: digests, run.waits))
        return
    _refuse_other_run(run.config, task, beginning.restore)
    draft.write(model, names - model.state_dict().keys())  # buffers that no snapshot holds
    read_state(state, beginning.restore, run.waits)


def refuse_different(digests: Sequence[Digests]) -> None:
    """Raise TaskError if initial values differ between ranks: the copies of the model would never agree."""
    for rank, own in enumerate(digests):
        name = next((name for name, digest in digests[0].items() if own.get(name) != digest), None)
        if name is not None:
            raise TaskError(
                f"model: rank {rank} begins with other values of {name} than rank 0; draw them from torch's, NumPy's "
                "or Python's own generators, which are seeded alike, and read them from the same files"
            )


def _refuse_other_run(config: TrainerConfig, task: Task, restore: Restore) -> None:
    """Raise if the snapshot is of another model, or if it is of this job and the data changed."""
    details, name = restore.manifest.details, restore.path.name
    saved_config, saved_data = details.get("config"), details.get("data")
    for field in ("task", "preset"):
        wanted = getattr(config, field)
        saved = saved_config.get(field, wanted) if isinstance(saved_config, dict) else wanted
        if saved != wanted:
            raise SnapshotError(f"{name} holds a model of {field} {saved!r}, the configuration says {wanted!r}")
    if not (restore.is_own and isinstance(saved_data, dict)):
        return
    difference = describe_difference(task.source.fingerprint, saved_data)
    if difference is not None:
        raise DataError(f"data {task.name} changed since {name}: {difference}; restore the data, or start a new job")


def _refuse_unwritable(directory: Location, name: str) -> None:
    """Raise SnapshotError if this rank cannot write snapshots. `name` is a file name unique to the rank."""
    try:
        if isinstance(directory, Remote):
            probe = directory / name
            probe.unlink(missing_ok=True)
            probe.create()
            probe.unlink()
            return
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / name
        path.touch()
        path.unlink(missing_ok=True)
    except OSError as error:
        raise SnapshotError(f"snapshots cannot be written to {directory}: {error.strerror}") from error


def tell_beginning(run: Run, task: Task, beginning: Beginning, notices: tuple[str, ...]) -> None:
    """Rank 0 reports what was restored, settings without effect, and a changed batch."""
    if not run.is_first:
        return
    for notice in notices:
        run.heartbeat.tell(EventKind.SETTING_IGNORED, notice, {})
    restore = beginning.restore
    if restore is None:
        return
    tell_restored(restore, run.place.world_size, run.heartbeat.tell)
    saved = restore.manifest.details.get("config")
    if not (restore.is_own and isinstance(saved, dict)):
        return
    advice = advise_batch(saved, run.config, has_own_rate=task.optimizer is not None)
    if advice is not None:
        sentence = f"since {restore.path.name} {advice}"
        run.heartbeat.tell(EventKind.BATCH_CHANGED, sentence, {"name": restore.path.name})
