"""Training, from the configuration to the last step. Read this first.

The trajectory is a function of the configuration and the global step alone: the global batch is cut into microbatches
of fixed size, microbatch k belongs to rank k mod world_size, and whatever is random is seeded by step and microbatch.
A run may therefore end on any number of ranks and go on upon any other.
"""

from __future__ import annotations

import gc
import os
import time
from contextlib import closing
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.contract.config import TrainerConfig, parse_interval
from trainer.contract.env import WorkerPlace
from trainer.contract.exit_record import EventKind
from trainer.contract.progress import Phase
from trainer.data.feeder import Feeder
from trainer.data.source import BadSample
from trainer.errors import DataError, SnapshotError
from trainer.loop.beginning import Sight, agree, look_ahead, tell_beginning, write_values
from trainer.loop.evaluation import evaluate
from trainer.loop.mfu import find_ideal_step_s
from trainer.loop.microbatches import assign_microbatches, open_feeder
from trainer.loop.observer import Observer
from trainer.loop.step import StepRequest, StepResult, take_step
from trainer.loop.task import Task, open_task
from trainer.parallel.precision import LossScale
from trainer.parallel.trainee import Trainee, build_trainee
from trainer.snapshot.cadence import Cadence, estimate_mtbf_s
from trainer.snapshot.lineage import Beginning, fence_of, snapshots_of
from trainer.snapshot.run_state import RunState
from trainer.snapshot.saver import Saver
from trainer.worker.agreement import Outcome, attempt, on_every_rank
from trainer.worker.barrier import Barrier
from trainer.worker.group import process_group
from trainer.worker.heartbeat import Heartbeat
from trainer.worker.malloc import keep_freed_memory
from trainer.worker.signals import STOPPED_EXIT_CODE, StopFlag
from trainer.worker.snapshot_requests import SnapshotRequests, desired_of
from trainer.worker.waits import Waits

_EVALUATION_MEETING_S = 600.0  # a rank that is later than the others by so much does not come


def run(config: TrainerConfig, place: WorkerPlace, stop: StopFlag) -> int:
    """Train to the last step and return the exit code: 0, or 143 when SIGTERM asked for an end and got a snapshot."""
    gc.freeze()  # what the imports left is never garbage: no collection has to look at it again
    heartbeat = Heartbeat(place, config.steps)
    heartbeat.beat(Phase.DATA)
    task = open_task(config)  # before the group forms: a rank without data must not keep the others waiting
    if place.rank == 0:
        heartbeat.beat(Phase.RESTORE)
    sight = attempt(lambda: look_ahead(config, place, task, heartbeat.tell))
    heartbeat.beat(Phase.START)
    waits = Waits(heartbeat)
    if place.world_size > 1:
        waits.start()
    with process_group(place, waits) as device:
        if device.type == "cpu":
            keep_freed_memory(os.environ)
        # A function of its own: what it made of the group must be gone when the group is destroyed.
        return _run_in_group(config, place, task, sight, device, heartbeat, waits, stop)


def _run_in_group(
    config: TrainerConfig,
    place: WorkerPlace,
    task: Task,
    sight: Outcome[Sight],
    device: torch.device,
    heartbeat: Heartbeat,
    waits: Waits,
    stop: StopFlag,
) -> int:
    beginning = agree(sight, place, heartbeat, waits)
    heartbeat.beat(Phase.RESTORE)
    fence = fence_of(place)
    state = RunState(LossScale(config.precision))
    trainee, ideal_step_s = _build(config, place, task, beginning, state, device, heartbeat, waits)
    tell_beginning(beginning, config, task, trainee.notices, heartbeat)
    saver = Saver(
        directory=snapshots_of(place),
        beginning=beginning,
        fence=fence,
        config=config,
        strategy=trainee.layout.strategy,
        data=task.source.fingerprint,
        place=place,
        device=device,
        heartbeat=heartbeat,
        waits=waits,
    )
    trainee.on_backward_done(waits.begin)
    trainee.optimizer.register_step_pre_hook(saver.before_update)
    requests = SnapshotRequests(desired_of(place), answered=saver.answered_requests)
    heartbeat.beat(Phase.STEP)
    cadence = Cadence(
        parse_interval(config.snapshot_interval),
        started_at=time.monotonic(),
        cost=saver.cost,
        read_mtbf_s=lambda: estimate_mtbf_s(fence.begun_at(), time.time(), place.world_size // place.local_world_size),
    )
    feeder = open_feeder(config, task, place, state, device)
    observer = Observer(config, task, trainee, place, saver.cost, heartbeat, ideal_step_s)
    with closing(feeder), observer, saver:
        return _train(
            config,
            task,
            trainee,
            feeder,
            state,
            saver,
            cadence,
            requests,
            observer,
            heartbeat,
            waits,
            stop,
            place.notice_s,
        )


def _build(
    config: TrainerConfig,
    place: WorkerPlace,
    task: Task,
    beginning: Beginning,
    state: RunState,
    device: torch.device,
    heartbeat: Heartbeat,
    waits: Waits,
) -> tuple[Trainee, float | None]:
    """The model with its values, and on rank 0 `find_ideal_step_s`.

    A function of its own: the draft holds a model that was built on the CPU, whole, and must not outlive this.
    """
    draft = task.draft()
    ideal_step_s = find_ideal_step_s(config, task, draft.model, device, heartbeat) if place.rank == 0 else None
    trainee = build_trainee(
        config,
        model=draft.model,
        place=place,
        device=device,
        waits=waits,
        write_values=partial(write_values, config, task, draft, beginning, state, waits),
        own_optimizer=task.optimizer,
        wrap=task.wrap,
    )
    return trainee, ideal_step_s


def _train(
    config: TrainerConfig,
    task: Task,
    trainee: Trainee,
    feeder: Feeder,
    state: RunState,
    saver: Saver,
    cadence: Cadence,
    requests: SnapshotRequests,
    observer: Observer,
    heartbeat: Heartbeat,
    waits: Waits,
    stop: StopFlag,
    notice_s: float | None,
) -> int:
    is_first = dist.get_rank() == 0
    bad: dict[int, BadSample] = {}
    barrier = None if task.evaluation is None else Barrier(waits)
    while state.step < config.steps:
        own_times = observer.before(state.step + 1)
        started, now = time.perf_counter(), time.monotonic()
        is_busy = saver.is_busy
        save_due = is_first and (
            cadence.is_due(state.step + 1, now, is_busy=is_busy) or (not is_busy and requests.is_due(now))
        )
        too_late = is_first and not cadence.fits(notice_s, is_busy=saver.is_writing)
        request = StepRequest(stop=stop.is_set, save=save_due, too_late=too_late, own_times=own_times)
        result = take_step(config, task, trainee, feeder, state, waits, request)
        step_s = time.perf_counter() - started
        feeder.look(step_s)
        waits.expect(step_s)
        saver.look_around()
        observer.after(state, result, step_s)
        if barrier is not None:
            _evaluate(config, task, trainee, state, barrier, heartbeat, waits)
        if result.skipped:
            _note_skipped(config, result, bad, heartbeat, waits)
        if result.save or state.step == config.steps:
            _save(saver, state, cadence, requests, heartbeat, is_end=state.step == config.steps, is_stop=result.stop)
        elif result.stop and is_first:
            sentence = f"stopped at step {state.step} without a snapshot: none fits into {notice_s:g} s"
            heartbeat.tell(EventKind.SNAPSHOT_SKIPPED, sentence, {"step": state.step, "notice_s": notice_s})
        if result.stop and state.step < config.steps:
            return STOPPED_EXIT_CODE
    if saver.saved_step != state.step:
        heartbeat.beat(Phase.SNAPSHOT, state.step)
    if not saver.save(state, requests=requests.answer()):
        raise SnapshotError(f"training ended at step {state.step}, and its last snapshot could not be written")
    heartbeat.beat(Phase.DONE, state.step)
    return 0


def _evaluate(
    config: TrainerConfig,
    task: Task,
    trainee: Trainee,
    state: RunState,
    barrier: Barrier,
    heartbeat: Heartbeat,
    waits: Waits,
) -> None:
    """After every `evaluate_every` steps, and after the last one. Collective."""
    every = config.evaluate_every
    is_due = state.step == config.steps or (every is not None and state.step % every == 0)
    if task.evaluation is None or not is_due:
        return
    heartbeat.beat(Phase.EVALUATION, state.step)
    barrier.meet(f"the evaluation after step {state.step}", timeout_s=_EVALUATION_MEETING_S)
    shares = assign_microbatches(dist.get_rank(), dist.get_world_size(), task.evaluation.num_microbatches)

    def loss_of(batch: object, count: int) -> tuple[Tensor, Tensor | float]:
        if trainee.exchanges_throughout:
            waits.begin()
        with trainee.autocast():
            return task.loss(trainee.forward, batch, count)

    weighted = [(share.microbatch, share.weight) for share in shares]
    loss = evaluate(task.evaluation, weighted, loss_of, trainee.forward, trainee.device, waits)
    heartbeat.beat(Phase.STEP, state.step, {"evaluation_loss": loss} if dist.get_rank() == 0 else None)


def _save(
    saver: Saver,
    state: RunState,
    cadence: Cadence,
    requests: SnapshotRequests,
    heartbeat: Heartbeat,
    *,
    is_end: bool,
    is_stop: bool,
) -> None:
    """In the background while training goes on; before an end, the last thing that is done."""
    heartbeat.beat(Phase.SNAPSHOT, state.step)
    if is_end or is_stop:
        saver.save(state, requests=requests.answer(), keep_all=is_stop)
    else:
        saver.begin(state, requests=requests.answer())
    if dist.get_rank() == 0:  # who decides for all
        cadence.saved(time.monotonic())
    heartbeat.beat(Phase.STEP, state.step)


def _note_skipped(
    config: TrainerConfig, result: StepResult, bad: dict[int, BadSample], heartbeat: Heartbeat, waits: Waits
) -> None:
    """Tell each unreadable sample once. Raises DataError, on all ranks, when there are too many. Collective."""
    found = [sample for part in on_every_rank(lambda: result.own_skipped, waits) for sample in part]
    for sample in found:
        if sample.index not in bad and dist.get_rank() == 0:
            evidence = {"index": sample.index, "position": sample.position, "error": sample.error}
            heartbeat.tell(EventKind.SAMPLE_SKIPPED, f"{sample}; the next one stands in for it", evidence)
        bad.setdefault(sample.index, sample)
    if len(bad) > config.skip_bad_samples:
        allowed = f"skip_bad_samples = {config.skip_bad_samples}"
        raise DataError(f"{len(bad)} samples could not be read, more than {allowed}; the events name them")
