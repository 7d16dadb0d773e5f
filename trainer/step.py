"""One optimizer step: the global batch, cut into microbatches of fixed size, on any number of ranks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainer.contract.config import TrainerConfig
from trainer.errors import DataError, NonFiniteLoss
from trainer.feeder import Feeder
from trainer.optim import clip_gradients, learning_rate_at, local_of, set_learning_rate
from trainer.parallel import Trainee
from trainer.seeds import seed_of
from trainer.shares import Share, own_shares
from trainer.source import BadSample
from trainer.state import RunState
from trainer.task import Task
from trainer.waits import Waits


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
    data_s: float  # waited for data, mean over the ranks
    skipped: int  # samples that could not be read, on all ranks
    own_skipped: tuple[BadSample, ...]  # those that this rank came upon; the only field that ranks differ in


def take_step(
    config: TrainerConfig,
    task: Task,
    trainee: Trainee,
    feeder: Feeder,
    state: RunState,
    waits: Waits,
    wish: Wish,
) -> StepResult:
    """One optimizer step on the next global batch. Raises NonFiniteLoss and DataError, before anything is changed."""
    shares, world_size = own_shares(config, task), dist.get_world_size()
    scale = state.loss_scale
    expected = config.global_batch * task.sample_weight
    skipped: list[BadSample] = []
    feeder.waited_s = 0.0
    sums_2 = torch.zeros(2, dtype=torch.float64, device=trainee.device)  # of losses and of weights
    for position, share in enumerate(shares):
        waits.end()
        read = feeder.next()
        trainee.synchronise(is_last=position == len(shares) - 1)
        loss, weight = _microbatch_loss(config, task, trainee, read.batch, state, share, waits)
        loss = loss * (share.weight / expected)
        sums_2[0] += loss.detach()
        sums_2[1] += weight * share.weight
        skipped += read.skipped if share.weight else ()
        if position == len(shares) - 1:
            # What ranks wish for travels with the loss, and both while gradients are computed: agreeing costs nothing.
            rest = sums_2.new_tensor([feeder.waited_s, len(skipped), wish.stop, wish.save, wish.too_late])
            totals = torch.cat((sums_2, rest))
            agreement = dist.all_reduce(totals, async_op=True)
        # Every strategy averages over ranks: undo it.
        (loss * (world_size * scale.factor)).backward()  # type: ignore[no-untyped-call]
    waits.begin()
    trainee.refuse_unused()
    agreement.wait()
    loss_sum, weight_sum, waited_s, skips, stops, saves, too_lates = totals.tolist()
    if not weight_sum > 0:
        raise DataError(f"the batch of step {state.step + 1} weighs {weight_sum:g}: there is nothing to learn from it")
    if weight_sum != expected:
        loss_sum *= expected / weight_sum
        _scale_gradients(trainee.parameters.values(), expected / weight_sum)
    grad_norm = clip_gradients(trainee.parameters.values(), config.grad_clip, loss_scale=scale.factor)
    waits.end()
    if not (math.isfinite(loss_sum) and (math.isfinite(grad_norm) or scale.is_on)):
        raise NonFiniteLoss(f"loss is {loss_sum} and the gradient's norm {grad_norm} at step {state.step + 1}")
    _set_rates(config, task, trainee, state.step)
    if scale.accepts(grad_norm):
        trainee.optimizer.step()
    trainee.optimizer.zero_grad(set_to_none=True)
    state.step += 1
    state.samples_seen += config.global_batch
    return StepResult(
        loss=loss_sum,
        grad_norm=grad_norm,
        stop=stops > 0,
        save=saves > 0 or (stops > 0 and not too_lates),
        data_s=waited_s / world_size,
        skipped=round(skips),
        own_skipped=tuple(skipped),
    )


def _microbatch_loss(
    config: TrainerConfig, task: Task, trainee: Trainee, batch: object, state: RunState, share: Share, waits: Waits
) -> tuple[Tensor, Tensor | float]:
    if task.is_random:
        torch.manual_seed(seed_of("dropout", config.seed, state.step, share.microbatch))
    if trainee.exchanges_throughout:
        waits.begin()
    with trainee.autocast():
        return task.loss(trainee.forward, batch, task.source.micro_batch)


@torch.no_grad()
def _scale_gradients(parameters: Iterable[nn.Parameter], factor: float) -> None:
    gradients = [local_of(parameter.grad) for parameter in parameters if parameter.grad is not None]
    torch._foreach_mul_(gradients, factor)


def _set_rates(config: TrainerConfig, task: Task, trainee: Trainee, step: int) -> None:
    """A schedule is a factor of each group's own rate; an optimizer of the user's without one keeps its rates."""
    if task.schedule is not None:
        factor = task.schedule(step)
        for group in trainee.optimizer.param_groups:
            group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor
    elif task.optimizer is None:
        set_learning_rate(trainee.optimizer, learning_rate_at(step, config))
