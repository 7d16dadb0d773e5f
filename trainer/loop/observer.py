"""Observes the loop without changing it: metrics, slow ranks, a profile, TensorBoard files."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType

from trainer.contract import layout
from trainer.contract.config import parse_profile
from trainer.contract.env import WorkerPlace
from trainer.contract.exit_record import EventKind
from trainer.contract.progress import Phase
from trainer.loop.profiling import Profile, Profiler
from trainer.loop.step import StepResult
from trainer.loop.step_metrics import SnapshotTime, StepMetrics
from trainer.loop.stragglers import OwnTimes, Stragglers, rank_standings
from trainer.loop.task import Task
from trainer.loop.tensorboard_files import FOLDER, TensorBoardFiles
from trainer.parallel.trainee import Trainee
from trainer.snapshot.cadence import Cost
from trainer.snapshot.run_state import RunState
from trainer.worker.run import Run


class Observer:
    """`ideal_step_s` is the denominator of MFU, None if unknown."""

    def __init__(self, run: Run, task: Task, trainee: Trainee, cost: Cost, ideal_step_s: float | None) -> None:
        config, place = run.config, run.place
        self._heartbeat, self._is_first = run.heartbeat, run.is_first
        self._metrics = StepMetrics(config, task, trainee, ideal_step_s)
        self._snapshots = SnapshotTime(cost)
        self._own_times = OwnTimes(place.rank, place.world_size if trainee.communication.is_known else 1)
        self._stragglers = Stragglers()
        self._profiled = config.profile
        window = None if config.profile is None else parse_profile(config.profile)
        self._profiler = Profiler(window, _profile_path(place), self._tell_profile, self._ignore)
        self._tensorboard = (
            TensorBoardFiles(Path(place.job_dir or "", FOLDER), self._ignore) if config.tensorboard else None
        )
        if self._tensorboard is not None and self._is_first:
            run.heartbeat.listen(self._tensorboard.write)

    def before(self, step: int) -> tuple[float, ...]:
        """Step `step` (from 1) is about to begin. Returns the times that this rank shares in it."""
        self._profiler.before(step)
        return self._own_times.share(step)

    def after(self, state: RunState, result: StepResult, step_s: float) -> None:
        """Report a finished step."""
        split = self._snapshots.split(result, step_s)
        self._own_times.add(split.compute_s, split.data_s)
        if not self._is_first:
            self._heartbeat.beat(Phase.STEP, state.step)
        else:
            metrics = self._metrics.describe(state, result, split)
            self._heartbeat.beat(Phase.STEP, state.step, {**metrics, **self._look_for_stragglers(state, result)})
        self._profiler.after(state.step)

    def __enter__(self) -> Observer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if kind is None:
            self._profiler.close()
        else:  # do not wait for a trace
            self._profiler.discard()
        if self._tensorboard is not None:
            self._heartbeat.forget(self._tensorboard.write)
            self._tensorboard.close()

    def _look_for_stragglers(self, state: RunState, result: StepResult) -> dict[str, float]:
        standings = rank_standings(result.times)
        if not standings:
            return {}
        for slow in self._stragglers.look(standings, time.monotonic()):
            self._heartbeat.tell(EventKind.RANK_SLOW, str(slow), {**vars(slow), "step": state.step})
        slowest = max(standings, key=lambda standing: standing.ratio)
        return {"slowest_rank": slowest.rank, "slowest_rank_ratio": slowest.ratio}

    def _tell_profile(self, profile: Profile, path: Path) -> None:
        sentence = (
            f"profiled steps {self._profiled}: rank 0 communicated {profile.communication:.0%} of the time, "
            f"and {profile.exposed:.0%} of the time it only communicated; each rank's trace is its {layout.PROFILE}"
        )
        if self._is_first:
            self._heartbeat.tell(EventKind.PROFILED, sentence, {**vars(profile), "path": str(path)})

    def _ignore(self, sentence: str) -> None:
        if self._is_first:
            self._heartbeat.tell(EventKind.SETTING_IGNORED, sentence, {})
        else:
            print(sentence, flush=True)


def _profile_path(place: WorkerPlace) -> Path:
    """The profile's path, next to the worker's log."""
    folder = layout.worker_dir(Path(place.replica_dir or "."), place.generation, place.local_rank)
    return folder / layout.PROFILE
