"""What a run begins with: a snapshot's state or first values, if they are its own; and what is told of it."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass

import torch

from trainer import snapshot
from trainer.contract.config import TrainerConfig
from trainer.contract.env import WorkerPlace
from trainer.contract.exit_record import EventKind
from trainer.contract.progress import Phase
from trainer.data.tokens import describe_difference
from trainer.errors import DataError, SnapshotError, StrategyError, TaskError
from trainer.loop.batch_change import advise_batch
from trainer.loop.task import Task
from trainer.model.initial import Digests, Draft, named_tensors
from trainer.snapshot import Place, Remote
from trainer.snapshot.events import tell_restored
from trainer.snapshot.lineage import Beginning, Restore, Tell, begin_term, fence_of, refuse_lost, snapshots_of
from trainer.snapshot.run_state import RunState, read_state
from trainer.snapshot.verification import TooLarge, choose_together, verify_small
from trainer.worker.agreement import Outcome, on_every_rank, share
from trainer.worker.run import Run


@dataclass(frozen=True)
class Sight:
    """What one rank has seen before the group is there; `beginning` on rank 0 alone."""

    program: dict[str, object]  # what has to be the same on every rank: versions and configuration
    data: dict[str, object]  # its fingerprint
    beginning: Beginning | None  # None there as well where all ranks have to verify the snapshot


def look_ahead(config: TrainerConfig, place: WorkerPlace, task: Task, tell: Tell) -> Sight:
    """Rank 0 chooses and verifies the snapshot while the other ranks start. Raises SnapshotError and StaleTerm."""
    directory = snapshots_of(place)
    refuse_lost(place, directory)
    _refuse_unwritable(directory, f".probe-a{place.attempt}-g{place.generation}-{place.rank}")
    beginning = None
    if place.rank == 0:
        with suppress(TooLarge):
            verify = snapshot.verify if place.world_size == 1 else verify_small
            beginning = begin_term(place, directory, fence_of(place), tell, verify)
    return Sight(describe_program(config), task.source.fingerprint, beginning)


def describe_program(config: TrainerConfig) -> dict[str, object]:
    """What has to be the same on every rank, one entry for each key and version."""
    versions = {"torch": torch.__version__, "CUDA": torch.version.cuda, "Python": platform.python_version()}
    return {**{f"version of {name}": version for name, version in versions.items()}, **asdict(config)}


def agree(run: Run, sight: Outcome[Sight]) -> Beginning:
    """Give all ranks rank 0's beginning, once they have verified the snapshot together if it is large. Collective.

    Raises on all ranks what failed on one, StrategyError when one of them runs something else than rank 0, and
    DataError when it sees other data.
    """
    sights = share(sight, run.waits)
    for rank, seen in enumerate(sights):
        difference = describe_difference(seen.program, sights[0].program)
        if difference is not None:
            raise StrategyError(f"rank {rank} is not what rank 0 is: {difference}; start all ranks from one image")
        difference = describe_difference(seen.data, sights[0].data)
        if difference is not None:
            raise DataError(f"rank {rank} sees other data than rank 0: {difference}; give all nodes the same files")
    if sights[0].beginning is not None:
        return sights[0].beginning
    run.heartbeat.beat(Phase.RESTORE)
    directory, fence = snapshots_of(run.place), fence_of(run.place)
    return choose_together(
        lambda verify: begin_term(run.place, directory, fence, run.heartbeat.tell, verify), run.waits
    )


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
    """Raise TaskError where a rank has made other first values than rank 0: copies would be trained apart for ever."""
    for rank, own in enumerate(digests):
        name = next((name for name, digest in digests[0].items() if own.get(name) != digest), None)
        if name is not None:
            raise TaskError(
                f"model: rank {rank} begins with other values of {name} than rank 0; draw them from torch's, NumPy's "
                "or Python's own generators, which are seeded alike, and read them from the same files"
            )


def _refuse_other_run(config: TrainerConfig, task: Task, restore: Restore) -> None:
    """A snapshot fits only its own model; one of this job also only its own data."""
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
        raise DataError(f"data {task.name} changed since {name}: {difference}; give back the data, or start a new job")


def _refuse_unwritable(directory: Place, name: str) -> None:
    """Fail at once when this rank cannot write snapshots at all; `name` is its own. Raises SnapshotError."""
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
    """Rank 0 journals what was restored, what the configuration asks for in vain, and a batch that has changed."""
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
