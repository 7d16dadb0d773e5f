"""One optimizer step: a global batch in microbatches of fixed size, on any number of ranks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.data.feeder import Feeder
from trainer.data.seeds import seed_of
from trainer.data.source import BadSample
from trainer.errors import DataError, NonFiniteLoss
from trainer.loop.microbatches import Share, own_shares
from trainer.loop.task import Task
from trainer.parallel.optim import clip_gradients, gather_gradients, learning_rate_at, measure_norm, set_learning_rate
from trainer.parallel.trainee import Trainee
from trainer.snapshot.run_state import RunState
from trainer.worker.run import Run
from trainer.worker.waits import Waits


@dataclass(frozen=True)
class StepRequest:
    """What a rank asks for after a step, and what it shares. Any rank may ask for a stop, rank 0 for a snapshot or a
    copy."""

    stop: bool = False
    save: bool = False
    copy: bool = False  # the state in memory
    is_copying: bool = False  # the previous copy of this rank is not whole yet, so no other one may begin
    has_new_state: bool = False  # the optimizer has made more tensors since the ranks compared them
    too_late: bool = False  # a snapshot would not fit before the end
    own_times: tuple[float, ...] = ()  # from stragglers.OwnTimes, sometimes; equal length on every rank


@dataclass(frozen=True)
class StepResult:
    """The result of a step. All but the last three fields are equal on every rank."""

    loss: float
    grad_norm: float
    stop: bool
    save: bool
    copy: bool
    compare: bool  # the ranks must compare which tensors their optimizers have
    data_s: float  # waiting for data, mean over the ranks
    skipped: int  # unreadable samples on all ranks
    times: tuple[float, ...]  # the own times of all ranks, if shared in this step
    own_skipped: tuple[BadSample, ...]  # unreadable samples of this rank
    own_data_s: float
    own_communication_s: float | None  # CommunicationTimer.take_s


class Stepper:
    """Makes the steps of one generation. Every rank calls `take` for the same step."""

    def __init__(self, run: Run, task: Task, trainee: Trainee, feeder: Feeder, state: RunState) -> None:
        self.feeder = feeder
        self._run, self._task, self._trainee, self._state = run, task, trainee, state

    def take(self, ask: Callable[[], StepRequest]) -> StepResult:
        """One optimizer step on the next global batch. Raises NonFiniteLoss and DataError before anything changes.

        `ask` is called after the last forward pass.
        """
        config, trainee, feeder, state, waits = (
            self._run.config,
            self._trainee,
            self.feeder,
            self._state,
            self._run.waits,
        )
        shares, world_size = own_shares(config, self._task), dist.get_world_size()
        scale = state.loss_scale
        expected = config.global_batch * self._task.sample_weight
        skipped: list[BadSample] = []
        feeder.waited_s = 0.0
        trainee.communication.take_s()  # discard that of an evaluation
        sums_2 = torch.zeros(2, dtype=torch.float64, device=trainee.device)  # losses and weights
        for position, share in enumerate(shares):
            waits.end()
            read = feeder.next()
            trainee.synchronize(is_last=position == len(shares) - 1)
            loss, weight = self._microbatch_loss(read.batch, share)
            loss = loss * (share.weight / expected)
            sums_2[0] += loss.detach()
            sums_2[1] += weight * share.weight
            skipped += read.skipped if share.weight else ()
            if position == len(shares) - 1:
                # Requests travel with the loss while gradients are computed: this costs no time.
                request = ask()
                flags = (
                    request.stop,
                    request.save,
                    request.too_late,
                    request.copy,
                    request.is_copying,
                    request.has_new_state,
                )
                rest = _send([feeder.waited_s, len(skipped), *flags, *request.own_times], trainee.device)
                totals = torch.cat((sums_2, rest))
                agreement = dist.all_reduce(totals, async_op=True)
            # Every strategy averages over ranks. Undo that.
            (loss * (world_size * scale.factor)).backward()  # type: ignore[no-untyped-call]
            trainee.communication.end()
        waits.begin()
        trainee.refuse_unused()
        trainee.communication.begin()
        agreement.wait()
        trainee.communication.end()
        gradients = gather_gradients(trainee.parameters.values())
        norm = measure_norm(gradients)
        loss_sum, weight_sum, waited_s, skips, *others, norm_read = _read(totals, norm)
        (stops, saves, too_lates, copies, copying, news), times = others[: len(flags)], others[len(flags) :]
        waits.end()
        if not weight_sum > 0:
            found = f"the batch of step {state.step + 1} weighs {weight_sum:g}"
            raise DataError(f"{found}: its samples must weigh more than 0")
        scaled_by = scale.factor * (weight_sum / expected)  # of the loss so far: the weight is known now
        loss_sum, grad_norm = loss_sum * (expected / weight_sum), norm_read / scaled_by
        if not (math.isfinite(loss_sum) and (math.isfinite(grad_norm) or scale.is_on)):
            found = f"loss is {loss_sum} and the gradient's norm {grad_norm} at step {state.step + 1}"
            whose = "" if math.isfinite(loss_sum) else _blame(float(sums_2[0]), trainee.device, waits)
            raise NonFiniteLoss(f"{found}{whose or _tell_once()}")
        clip_gradients(gradients, norm, config.grad_clip, loss_scale=scaled_by)
        self._set_rates()
        with state.changing:
            state.is_whole = False
            if scale.accepts(grad_norm):
                trainee.optimizer.step()
            trainee.optimizer.zero_grad(set_to_none=True)
            state.step += 1
            state.samples_seen += config.global_batch
            state.is_whole = True
        return StepResult(
            loss=loss_sum,
            grad_norm=grad_norm,
            stop=stops > 0,
            save=not too_lates if stops else saves > 0,
            copy=copies > 0 and not copying and not stops,
            compare=news > 0,
            data_s=waited_s / world_size,
            skipped=round(skips),
            times=tuple(times),
            own_skipped=tuple(skipped),
            own_data_s=feeder.waited_s,
            own_communication_s=trainee.communication.take_s(),
        )

    def _microbatch_loss(self, batch: object, share: Share) -> tuple[Tensor, Tensor | float]:
        if self._task.is_random:
            torch.manual_seed(seed_of("dropout", self._run.config.seed, self._state.step, share.microbatch))
        if self._trainee.exchanges_throughout:
            self._run.waits.begin()
        with self._trainee.autocast():
            return self._task.loss(self._trainee.forward, batch, self._task.source.micro_batch)

    def _set_rates(self) -> None:
        """A schedule scales each group's rate. A user's optimizer without a schedule keeps its rates."""
        optimizer, step = self._trainee.optimizer, self._state.step
        if self._task.schedule is not None:
            factor = self._task.schedule(step)
            for group in optimizer.param_groups:
                group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor
        elif self._task.optimizer is None:
            set_learning_rate(optimizer, learning_rate_at(step, self._run.config))


def _blame(own_loss: float, device: torch.device, waits: Waits) -> str:
    """Name the first rank whose loss is not finite. Empty if there is none. Collective."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    with waits.waiting():
        lowest = torch.tensor(world_size if math.isfinite(own_loss) else rank, device=device)
        dist.all_reduce(lowest, dist.ReduceOp.MIN)
        culprit = int(lowest)
    if culprit == rank:
        return "; the loss of this rank is not finite"
    return f"; look at rank {culprit}" if culprit < world_size else ""


def _tell_once() -> str:
    """All ranks fail alike. The others point to rank 0, so that one rank is the cause."""
    return "; as rank 0 says" if dist.get_rank() else ""


def _send(values: list[float], device: torch.device) -> Tensor:
    """Copy asynchronously: a wait would idle the device between the forward and the backward pass."""
    return torch.tensor(values, dtype=torch.float64, pin_memory=device.type == "cuda").to(device, non_blocking=True)


def _read(totals: Tensor, norm: Tensor) -> list[float]:
    """Read both at once: each read waits for the device."""
    values: list[float] = torch.cat((totals, norm.reshape(1).to(totals))).tolist()
    return values
