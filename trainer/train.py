"""Training, from the configuration to the last step. Read this first.

The trajectory is a function of the configuration and the global step alone: the global batch is cut into microbatches
of fixed size, microbatch k belongs to rank k mod world_size, and whatever is random is seeded by step and microbatch.
A run may therefore end on any number of ranks and go on upon any other.
"""

from __future__ import annotations

import gc
import math
import time
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.agreement import on_every_rank, on_rank_zero
from trainer.cadence import Cadence
from trainer.contract.config import TrainerConfig, parse_interval
from trainer.contract.env import WorkerPlace
from trainer.contract.exit_record import EventKind
from trainer.contract.progress import Phase
from trainer.data import Data, describe_difference, open_data
from trainer.errors import DataError, NonFiniteLoss, SnapshotError
from trainer.group import process_group
from trainer.heartbeat import Heartbeat
from trainer.lineage import Beginning, Restore, begin_term, fence_of, snapshots_of
from trainer.model import SHAPES, Decoder, build_initial
from trainer.optim import ShardedAdamW, clip_gradients, learning_rate_at, set_learning_rate
from trainer.order import draw_windows
from trainer.parallel import Trainee, build_trainee
from trainer.precision import LossScale
from trainer.saver import Saver, refuse_unwritable
from trainer.seeds import seed_of
from trainer.signals import STOPPED_EXIT_CODE, StopFlag
from trainer.state import RunState, read_state
from trainer.values import initialise
from trainer.waits import Waits
from trainer.wishes import SnapshotWishes, desired_of


@dataclass(frozen=True)
class Share:
    """One microbatch that this rank computes. Weight 0 makes it a dummy: it takes part in collectives only."""

    microbatch: int
    weight: float


@dataclass(frozen=True)
class Wish:
    """What a rank wants after a step: any may ask for a stop, rank 0 alone for the rest."""

    stop: bool = False
    save: bool = False
    too_late: bool = False  # for a snapshot, should all stop now


@dataclass(frozen=True)
class StepResult:
    """The same on every rank. A stop without a save leaves no time for one."""

    loss: float
    grad_norm: float
    stop: bool
    save: bool


def run(config: TrainerConfig, place: WorkerPlace, stop: StopFlag) -> int:
    """Train to the last step and return the exit code: 0, or 143 when SIGTERM asked for an end and got a snapshot."""
    gc.freeze()  # what the imports left is never garbage: no collection has to look at it again
    heartbeat = Heartbeat(place, config.steps)
    heartbeat.beat(Phase.DATA)
    data = open_data(config)  # before the group forms: a rank without data must not keep the others waiting
    heartbeat.beat(Phase.START)
    waits = Waits(heartbeat)
    if place.world_size > 1:
        waits.start()
    with process_group(place, waits) as device:
        # A function of its own: what it made of the group must be gone when the group is destroyed.
        return _run_in_group(config, place, data, device, heartbeat, waits, stop)


def _run_in_group(
    config: TrainerConfig,
    place: WorkerPlace,
    data: Data,
    device: torch.device,
    heartbeat: Heartbeat,
    waits: Waits,
    stop: StopFlag,
) -> int:
    directory, fence = snapshots_of(place), fence_of(place)
    _refuse_different_data(data, waits)
    refuse_unwritable(directory, waits)
    heartbeat.beat(Phase.RESTORE)
    beginning = on_rank_zero(lambda: begin_term(place, directory, fence, heartbeat.tell), waits)
    state = RunState(LossScale(config.precision))
    with torch.device("meta"):
        model = Decoder(SHAPES[config.preset], vocab_size=data.vocab_size, dropout=config.dropout)
    write_values = partial(_write_values, config, data, beginning, state, waits)
    trainee = build_trainee(config, model=model, place=place, device=device, waits=waits, write_values=write_values)
    _tell_beginning(beginning, trainee.notices, heartbeat)
    saver = Saver(
        directory=directory,
        beginning=beginning,
        fence=fence,
        config=config,
        strategy=trainee.layout.strategy,
        data=data.fingerprint,
        heartbeat=heartbeat,
        waits=waits,
    )
    trainee.on_backward_done(waits.begin)
    wishes = SnapshotWishes(desired_of(place), answered=saver.answered_wishes)
    heartbeat.beat(Phase.STEP)
    return _train(config, trainee, data, state, saver, wishes, heartbeat, waits, stop, place.notice_s)


def _train(
    config: TrainerConfig,
    trainee: Trainee,
    data: Data,
    state: RunState,
    saver: Saver,
    wishes: SnapshotWishes,
    heartbeat: Heartbeat,
    waits: Waits,
    stop: StopFlag,
    notice_s: float | None,
) -> int:
    cadence = Cadence(parse_interval(config.snapshot_interval), started_at=time.monotonic())
    is_first = dist.get_rank() == 0
    while state.step < config.steps:
        started, now = time.perf_counter(), time.monotonic()
        save_due = is_first and (cadence.is_due(state.step + 1, now) or wishes.is_due(now))
        too_late = is_first and not cadence.fits(notice_s)
        wish = Wish(stop=stop.is_set, save=save_due, too_late=too_late)
        result = take_step(config, trainee, data, state, waits, wish)
        step_s = time.perf_counter() - started
        waits.expect(step_s)
        _beat_step(config, state, result, step_s, heartbeat)
        if result.save or state.step == config.steps:
            _save(saver, state, cadence, wishes, heartbeat)
        elif result.stop and is_first:
            sentence = f"stopped at step {state.step} without a snapshot: none fits into {notice_s:g} s"
            heartbeat.tell(EventKind.SNAPSHOT_SKIPPED, sentence, {"step": state.step, "notice_s": notice_s})
        if result.stop and state.step < config.steps:
            return STOPPED_EXIT_CODE
    if saver.saved_step != state.step:
        heartbeat.beat(Phase.SNAPSHOT, state.step)
    if not saver.save(state, wishes=wishes.answer()):
        raise SnapshotError(f"training ended at step {state.step}, and its last snapshot could not be written")
    heartbeat.beat(Phase.DONE, state.step)
    return 0


def take_step(
    config: TrainerConfig,
    trainee: Trainee,
    data: Data,
    state: RunState,
    waits: Waits,
    wish: Wish,
) -> StepResult:
    """One optimizer step on the next global batch. Raises NonFiniteLoss, before anything is changed."""
    rank, world_size, scale = dist.get_rank(), dist.get_world_size(), state.loss_scale
    shares = assign_microbatches(rank, world_size, config.global_batch // config.sequences_per_microbatch)
    local_loss = torch.zeros((), dtype=torch.float64, device=trainee.device)
    for position, share in enumerate(shares):
        waits.end()
        trainee.synchronise(is_last=position == len(shares) - 1)
        loss = _microbatch_loss(config, trainee, data, state, share, waits)
        local_loss += loss.detach()
        if position == len(shares) - 1:
            # What ranks wish for travels with the loss, and both while gradients are computed: agreeing costs nothing.
            wishes_4 = torch.cat((local_loss[None], local_loss.new_tensor([wish.stop, wish.save, wish.too_late])))
            agreement = dist.all_reduce(wishes_4, async_op=True)
        # Every strategy averages over ranks: undo it.
        (loss * (world_size * scale.factor)).backward()  # type: ignore[no-untyped-call]
    waits.begin()
    trainee.refuse_unused()
    grad_norm = clip_gradients(trainee.parameters.values(), config.grad_clip, loss_scale=scale.factor)
    agreement.wait()
    loss_sum, stops, saves, too_lates = wishes_4.tolist()
    waits.end()
    if not (math.isfinite(loss_sum) and (math.isfinite(grad_norm) or scale.is_on)):
        raise NonFiniteLoss(f"loss is {loss_sum} and the gradient's norm {grad_norm} at step {state.step + 1}")
    set_learning_rate(trainee.optimizer, learning_rate_at(state.step, config))
    if scale.accepts(grad_norm):
        trainee.optimizer.step()
    trainee.optimizer.zero_grad(set_to_none=True)
    state.step += 1
    state.samples_seen += config.global_batch
    stop, save = stops > 0, saves > 0 or (stops > 0 and not too_lates)
    return StepResult(loss=loss_sum, grad_norm=grad_norm, stop=stop, save=save)


def assign_microbatches(rank: int, world_size: int, count: int) -> list[Share]:
    """Microbatch k belongs to rank k mod world_size; a rank that comes short adds a dummy, so that all do as many."""
    mine = range(rank, math.ceil(count / world_size) * world_size, world_size)
    return [Share(k % count, 1.0 if k < count else 0.0) for k in mine]


def _microbatch_loss(
    config: TrainerConfig, trainee: Trainee, data: Data, state: RunState, share: Share, waits: Waits
) -> Tensor:
    """The microbatch's part of the global mean: its summed loss over the tokens of the whole batch."""
    size = config.sequences_per_microbatch
    windows_B = draw_windows(
        first=state.samples_seen + share.microbatch * size,
        count=size,
        num_windows=data.num_windows(config.seq_len),
        seed=config.seed,
    )
    tokens_BT = torch.from_numpy(data.read_windows(windows_B, config.seq_len)).to(trainee.device)
    if config.dropout > 0:
        torch.manual_seed(seed_of("dropout", config.seed, state.step, share.microbatch))
    if trainee.exchanges_throughout:
        waits.begin()
    with trainee.autocast():
        logits_BTV = trainee.forward(tokens_BT[:, :-1])
    logits_BTV = logits_BTV.to(torch.promote_types(logits_BTV.dtype, torch.float32))
    total = F.cross_entropy(logits_BTV.flatten(0, 1), tokens_BT[:, 1:].flatten(), reduction="sum")
    return total * (share.weight / (config.global_batch * config.seq_len))


def _save(saver: Saver, state: RunState, cadence: Cadence, wishes: SnapshotWishes, heartbeat: Heartbeat) -> None:
    started = time.monotonic()
    heartbeat.beat(Phase.SNAPSHOT, state.step)
    saver.save(state, wishes=wishes.answer())
    cadence.saved(started_at=started, ended_at=time.monotonic())
    heartbeat.beat(Phase.STEP, state.step)


def _write_values(
    config: TrainerConfig,
    data: Data,
    beginning: Beginning,
    state: RunState,
    waits: Waits,
    model: nn.Module,
    optimizer: ShardedAdamW,
) -> None:
    assert isinstance(model, Decoder)
    state.attach(model, optimizer)
    if beginning.restore is None:
        initialise(model, partial(build_initial, seed=config.seed, layers=len(model.blocks)))
        return
    _refuse_other_run(config, data, beginning.restore)
    read_state(state, beginning.restore.path, waits)


def _refuse_other_run(config: TrainerConfig, data: Data, restore: Restore) -> None:
    """A snapshot fits only its own model; one of this job also only its own data."""
    details, name = restore.manifest.details, restore.path.name
    saved_config, saved_data = details.get("config"), details.get("data")
    preset = saved_config.get("preset") if isinstance(saved_config, dict) else None
    if preset is not None and preset != config.preset:
        raise SnapshotError(f"{name} holds a model of preset {preset!r}, the configuration says {config.preset!r}")
    if not (restore.is_own and isinstance(saved_data, dict)):
        return
    difference = describe_difference(data.fingerprint, saved_data)
    if difference is not None:
        raise DataError(
            f"data {config.data!r} changed since {name}: {difference}; give back the data, or start a new job"
        )


def _refuse_different_data(data: Data, waits: Waits) -> None:
    """Raise DataError on all ranks when one of them sees other data than rank 0."""
    fingerprints = on_every_rank(lambda: data.fingerprint, waits)
    for rank, fingerprint in enumerate(fingerprints):
        difference = describe_difference(fingerprint, fingerprints[0])
        if difference is not None:
            raise DataError(f"rank {rank} sees other data than rank 0: {difference}; give all nodes the same files")


def _tell_beginning(beginning: Beginning, notices: tuple[str, ...], heartbeat: Heartbeat) -> None:
    if dist.get_rank() != 0:
        return
    for notice in notices:
        heartbeat.tell(EventKind.SETTING_IGNORED, notice, {})
    if beginning.restore is None:
        return
    manifest, name, now = beginning.restore.manifest, beginning.restore.path.name, dist.get_world_size()
    heartbeat.tell(
        EventKind.RESTORED,
        f"restored step {manifest.step} from {name} (world size {manifest.world_size} → {now})",
        {"name": name, "step": manifest.step, "from_world_size": manifest.world_size, "world_size": now},
    )


def _beat_step(config: TrainerConfig, state: RunState, result: StepResult, step_s: float, heartbeat: Heartbeat) -> None:
    metrics = {
        "loss": result.loss,
        "tokens_per_s": config.global_batch * config.seq_len / step_s,
        "learning_rate": learning_rate_at(state.step - 1, config),
        "step_s": step_s,
    }
    if math.isfinite(result.grad_norm):
        metrics["grad_norm"] = result.grad_norm
    if state.loss_scale.is_on:
        metrics["loss_scale"] = state.loss_scale.factor
    heartbeat.beat(Phase.STEP, state.step, metrics if dist.get_rank() == 0 else None)
