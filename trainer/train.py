"""Training, from the configuration to the last step. Read this first.

The trajectory is a function of the configuration and the global step alone: the global batch is cut into microbatches
of fixed size, microbatch k belongs to rank k mod world_size, and whatever is random is seeded by step and microbatch.
A run may therefore stop on any number of ranks and continue on any other.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial

import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from trainer.contract.config import TrainerConfig, parse_interval
from trainer.contract.env import WorkerPlace
from trainer.contract.exit_record import EventKind
from trainer.contract.failure import STOPPED_EXIT_CODE
from trainer.contract.progress import Phase
from trainer.data.source import BadSample
from trainer.elastic.workers.reentry import Reentry
from trainer.errors import DataError, SnapshotError
from trainer.loop.beginning import RankFindings, agree, find_beginning, tell_beginning, write_values
from trainer.loop.evaluation import evaluate
from trainer.loop.mfu import find_ideal_step_s
from trainer.loop.microbatches import assign_microbatches, open_feeder
from trainer.loop.observer import Observer
from trainer.loop.step import Stepper, StepRequest, StepResult
from trainer.loop.task import Task, open_task
from trainer.parallel.precision import LossScale
from trainer.parallel.trainee import Trainee, build_trainee
from trainer.snapshot.cadence import Cadence, estimate_mtbf_s
from trainer.snapshot.departure import Departure
from trainer.snapshot.handover import Handover
from trainer.snapshot.lineage import Beginning, fence_of
from trainer.snapshot.memory_reading import forget_outdated
from trainer.snapshot.memory_tier import MemoryTier
from trainer.snapshot.run_state import RunState
from trainer.snapshot.saver import Saver
from trainer.snapshot.shared_layout import SharedLayout
from trainer.worker.agreement import Outcome, attempt, on_every_rank, on_rank_zero
from trainer.worker.barrier import Barrier
from trainer.worker.group import process_group
from trainer.worker.heartbeat import Heartbeat
from trainer.worker.lost_peer import GroupChanged, is_end_of_group
from trainer.worker.malloc import keep_freed_memory
from trainer.worker.retries import Retries
from trainer.worker.run import Run
from trainer.worker.signals import StopFlag
from trainer.worker.snapshot_requests import SnapshotRequests, desired_of
from trainer.worker.waits import Waits

_EVALUATION_TIMEOUT_S = 600.0  # a rank that is later than this has failed


def run(config: TrainerConfig, place: WorkerPlace, stop: StopFlag, reentry: Reentry | None = None) -> int:
    """Train to the last step and return the exit code: 0, or 143 after a stop by SIGTERM.

    `reentry` is given if this process may outlive its group.
    """
    gc.freeze()  # imported objects are never garbage: do not scan them again
    heartbeat = Heartbeat(place, config.steps)
    heartbeat.beat(Phase.DATA)
    task = open_task(config)  # before the group forms: a rank without data must not keep the others waiting
    if place.rank == 0:
        heartbeat.beat(Phase.RESTORE)
    findings = attempt(lambda: find_beginning(config, place, task, heartbeat.tell))
    heartbeat.beat(Phase.START)
    waits = Waits(heartbeat)
    if place.world_size > 1:
        waits.start()
    with closing(waits), process_group(place, waits, is_last=reentry is None) as device:
        if device.type == "cpu":
            keep_freed_memory(os.environ)
        own = Run(config=config, place=place, device=device, heartbeat=heartbeat, waits=waits)
        # A separate function: everything that uses the group must be gone when the group is destroyed.
        return _run_in_group(own, task, findings, stop, reentry)


def _run_in_group(
    run: Run, task: Task, findings: Outcome[RankFindings], stop: StopFlag, reentry: Reentry | None
) -> int:
    beginning = agree(run, findings)
    run.heartbeat.beat(Phase.RESTORE)
    state = RunState(LossScale(run.config.precision))
    trainee, ideal_step_s = _build(run, task, beginning, state)
    tell_beginning(run, task, beginning, trainee.notices)
    saver = Saver(run, beginning, strategy=trainee.layout.strategy, data=task.source.fingerprint)
    base_step = 0 if beginning.restore is None else beginning.restore.manifest.step
    still_read = () if beginning.restore is None else beginning.restore.memory
    if run.place.local_rank == 0:
        forget_outdated((path for own in run.place.mirrors for path in own), beginning.term, base_step)
    copies = MemoryTier(
        run,
        plan=saver.plan,
        describe=saver.describe,
        still_read=still_read,
        must_leave=lambda: reentry is not None and reentry.has_order,
    )
    for each in (saver, copies):
        trainee.optimizer.register_step_pre_hook(each.before_update)
    run.heartbeat.beat(Phase.STEP)
    observer = Observer(run, task, trainee, saver.cost, ideal_step_s)
    feeder = open_feeder(run, task, state)
    loop = _Loop(
        run=run,
        task=task,
        trainee=trainee,
        state=state,
        stepper=Stepper(run, task, trainee, feeder, state),
        saver=saver,
        copies=copies,
        handover=Handover(run.place, is_wanted=reentry is not None and not trainee.layout.is_sharded),
        shared=SharedLayout(run.waits),
        cadence=_open_cadence(run, saver),
        requests=SnapshotRequests(desired_of(run.place), answered=saver.answered_requests),
        observer=observer,
        stop=stop,
        reentry=reentry,
        is_from_memory=beginning.restore is not None and bool(beginning.restore.memory),
    )
    departure = Departure(reentry, run.place.generation, loop.hand_over, state.changing)
    with trainee.on_backward_done(run.waits.begin), closing(feeder), observer, saver, copies, departure:
        try:
            return loop.train()
        except RuntimeError as error:
            if is_end_of_group(error):
                departure.leave()
            raise


def _build(run: Run, task: Task, beginning: Beginning, state: RunState) -> tuple[Trainee, float | None]:
    """The model with its values, and on rank 0 the result of `find_ideal_step_s`.

    A separate function: the draft may hold the whole model on the CPU and must not outlive it.
    """
    draft = task.draft()
    ideal_step_s = find_ideal_step_s(run, task, draft.model) if run.is_first else None

    def write(model: nn.Module, optimizer: Optimizer) -> None:
        state.attach(model, optimizer)
        write_values(run, task, draft, beginning, state)

    return build_trainee(run, draft.model, write, own_optimizer=task.optimizer, wrap=task.wrap), ideal_step_s


def _open_cadence(run: Run, saver: Saver) -> Cadence:
    fence, nodes = fence_of(run.place), run.place.world_size // run.place.local_world_size
    return Cadence(
        parse_interval(run.config.snapshot_interval),
        started_at=time.monotonic(),
        cost=saver.cost,
        read_mtbf_s=lambda: estimate_mtbf_s(fence.begun_at(), time.time(), nodes),
    )


@dataclass(frozen=True, kw_only=True)
class _Loop:
    """The steps of one generation, and the objects that take part in them."""

    run: Run
    task: Task
    trainee: Trainee
    state: RunState
    stepper: Stepper
    saver: Saver
    copies: MemoryTier
    handover: Handover
    shared: SharedLayout
    cadence: Cadence  # used by rank 0 only, like `requests`
    requests: SnapshotRequests
    observer: Observer
    stop: StopFlag
    reentry: Reentry | None
    is_from_memory: bool  # the state was restored from memory, where it may have come before its evaluation
    unreadable: dict[int, BadSample] = field(default_factory=dict)  # by their index

    def train(self) -> int:
        """Step until the last step or a stop, and return the exit code. Collective."""
        state, config = self.state, self.run.config
        barrier = Barrier(self.run.waits) if self.task.evaluation is not None else None
        if self.is_from_memory:
            self._evaluate(barrier)
        while state.step < config.steps:
            self._leave_if_ordered()
            own_times = self.observer.before(state.step + 1)
            started = time.perf_counter()
            result = self.stepper.take(partial(self._request, own_times))
            if result.copy and self.copies.is_part_of_step:
                self._copy()
            if result.compare:
                self.shared.compare(state)
            step_s = time.perf_counter() - started
            self.handover.free()
            if self.reentry is not None:
                self.reentry.note_step(self.run.place.generation, step_s)
            self.stepper.feeder.look(step_s)
            self.run.waits.expect(step_s)
            self.saver.start_provenance()
            self.observer.after(state, result, step_s)
            if result.compare:
                self.handover.plan(state)
            self._evaluate(barrier)
            if result.skipped:
                self._note_skipped(result)
            is_end = state.step == config.steps
            if result.copy and not is_end and not self.copies.is_part_of_step:
                self.copies.begin(state)
            if result.save or is_end:
                self._save(is_end=is_end, is_stop=result.stop)
            elif result.stop:
                self._tell_no_snapshot()
            if result.stop and not is_end:
                return STOPPED_EXIT_CODE
        self._finish()
        return 0

    def _leave_if_ordered(self) -> None:
        """Raises GroupChanged. The collectives of the other ranks fail when this one leaves the group."""
        if self.reentry is not None and self.reentry.has_order:
            raise GroupChanged("the group has changed")

    def _request(self, own_times: tuple[float, ...]) -> StepRequest:
        """What this rank asks for after the next step: a stop, or on rank 0 a snapshot or a copy."""
        is_copying = not self.copies.is_ready(self.state.step + 1)
        has_new_state = self.handover.is_possible and self.shared.is_outdated(self.state)
        own = StepRequest(
            stop=self.stop.is_set, is_copying=is_copying, has_new_state=has_new_state, own_times=own_times
        )
        if not self.run.is_first:
            return own
        now, is_busy = time.monotonic(), self.saver.is_busy
        is_due = self.cadence.is_due(self.state.step + 1, now, is_busy=is_busy)
        save = is_due or (not is_busy and self.requests.is_due(now))
        too_late = not self.cadence.fits(self.run.place.notice_s, is_busy=self.saver.is_writing)
        return replace(own, save=save, copy=self.copies.is_due(self.state.step + 1, now), too_late=too_late)

    def hand_over(self) -> None:
        """Write the state for the next generation, if all ranks have agreed that each has all of it. Never raises."""
        self.copies.finish()
        if not self.handover.is_possible:
            return  # a part of the state is on the lost rank
        if self.shared.covers(self.state):
            self.handover.write(self.state, lambda: self.saver.describe(self.state))
        else:
            sentence = "the state is not handed over: the ranks have not agreed that each has all of it"
            print(sentence, file=sys.stderr, flush=True)

    def _copy(self) -> None:
        """Copy the state as a part of the step, which is reported after this. Collective."""
        started = time.perf_counter()
        self.copies.take(self.state)
        self.saver.cost.add_copy(time.perf_counter() - started)

    def _evaluate(self, barrier: Barrier | None) -> None:
        """After every `evaluate_every` steps, and after the last one. Collective."""
        config, step, heartbeat = self.run.config, self.state.step, self.run.heartbeat
        evaluation, every = self.task.evaluation, config.evaluate_every
        is_due = step == config.steps or (every is not None and step % every == 0)
        if evaluation is None or barrier is None or not is_due:
            return
        heartbeat.beat(Phase.EVALUATION, step)
        barrier.wait(f"the evaluation after step {step}", timeout_s=_EVALUATION_TIMEOUT_S)
        shares = assign_microbatches(dist.get_rank(), dist.get_world_size(), evaluation.num_microbatches)

        def loss_of(batch: object, count: int) -> tuple[Tensor, Tensor | float]:
            if self.trainee.exchanges_throughout:
                self.run.waits.begin()
            with self.trainee.autocast():
                return self.task.loss(self.trainee.forward, batch, count)

        weighted = [(share.microbatch, share.weight) for share in shares]
        loss = evaluate(self.run, evaluation, weighted, loss_of, self.trainee.forward)
        heartbeat.beat(Phase.STEP, step, {"evaluation_loss": loss} if self.run.is_first else None)

    def _save(self, *, is_end: bool, is_stop: bool) -> None:
        """Save in the background while training continues, or in the foreground before an end. Collective."""
        self.run.heartbeat.beat(Phase.SNAPSHOT, self.state.step)
        if is_end or is_stop:
            self.saver.save(self.state, requests=self.requests.answer(), keep_all=is_stop)
        else:
            self.saver.begin(self.state, requests=self.requests.answer())
        if self.run.is_first:
            self.cadence.saved(time.monotonic())
        self.run.heartbeat.beat(Phase.STEP, self.state.step)

    def _tell_no_snapshot(self) -> None:
        if self.run.is_first:
            step, notice_s = self.state.step, self.run.place.notice_s
            sentence = f"stopped at step {step} without a snapshot: none fits into {notice_s:g} s"
            self.run.heartbeat.tell(EventKind.SNAPSHOT_SKIPPED, sentence, {"step": step, "notice_s": notice_s})

    def _note_skipped(self, result: StepResult) -> None:
        """Report each unreadable sample once. Raises DataError on all ranks if there are too many. Collective."""
        found = [sample for part in on_every_rank(lambda: result.own_skipped, self.run.waits) for sample in part]
        for sample in found:
            if sample.index not in self.unreadable and self.run.is_first:
                evidence = {"index": sample.index, "position": sample.position, "error": sample.error}
                sentence = f"{sample}; the next one replaces it"
                self.run.heartbeat.tell(EventKind.SAMPLE_SKIPPED, sentence, evidence)
            self.unreadable.setdefault(sample.index, sample)
        limit = self.run.config.skip_bad_samples
        if len(self.unreadable) > limit:
            allowed = f"skip_bad_samples = {limit}"
            raise DataError(
                f"{len(self.unreadable)} samples could not be read, more than {allowed}; the events name them"
            )

    def _finish(self) -> None:
        """Save the last step, if necessary by many tries. Raises SnapshotError if none succeeds. Collective."""
        step, retries = self.state.step, Retries(self.stop)
        if self.saver.saved_step != step:
            self.run.heartbeat.beat(Phase.SNAPSHOT, step)
        while not self.saver.save(self.state, requests=self.requests.answer()):
            if on_rank_zero(lambda: retries.are_over, self.run.waits):
                raise SnapshotError(f"training ended at step {step}, and its last snapshot could not be written")
            retries.pause()
            self.run.heartbeat.beat(Phase.SNAPSHOT, step)
        self.run.heartbeat.beat(Phase.DONE, step)
