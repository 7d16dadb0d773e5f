"""Build a model that is ready to train on every rank, from a configuration.

Nothing here knows what kind of model it is. Every strategy averages gradients over ranks; the loop multiplies the loss
by the world size to undo it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from trainer.contract.config import TrainerConfig, parse_checkpointing, parse_strategy, parse_wrap
from trainer.errors import UnusedParameters
from trainer.parallel.blocks import count_parameters, find_blocks
from trainer.parallel.communication import CommunicationTimer, build_communication_timer
from trainer.parallel.ignored_settings import find_ignored
from trainer.parallel.materialize import allocate, refuse_unwritten
from trainer.parallel.optim import build_optimizer
from trainer.parallel.precision import PRECISIONS
from trainer.parallel.recomputation import recompute
from trainer.parallel.replication import convert_batchnorm, replicate
from trainer.parallel.sharding import shard
from trainer.parallel.strategy import Layout, choose_layout
from trainer.worker.agreement import on_every_rank
from trainer.worker.group import find_device_bytes
from trainer.worker.run import Run

_NAMES_SHOWN = 5


@dataclass(frozen=True)
class Trainee:
    """A model ready to train. `model` owns the parameters, `forward` is what a microbatch goes through."""

    config: TrainerConfig
    model: nn.Module
    forward: nn.Module
    optimizer: torch.optim.Optimizer
    layout: Layout
    device: torch.device
    communication: CommunicationTimer
    notices: tuple[str, ...] = ()  # settings without effect
    parameters: dict[str, nn.Parameter] = field(init=False)  # trainable parameters

    def __post_init__(self) -> None:
        trained = {name: value for name, value in self.model.named_parameters() if value.requires_grad}
        object.__setattr__(self, "parameters", trained)

    def synchronize(self, is_last: bool) -> None:
        """Announce a microbatch, and whether it is the last of the step. Gradients may be reduced only then.

        By default sharded strategies reduce after every microbatch: until then, gradients are held unsharded.
        Copies of a shard (hsdp) always wait.
        """
        if self.config.compile == "reduce-overhead":
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        if isinstance(self.forward, DistributedDataParallel):
            self.forward.require_backward_grad_sync = is_last or not self.layout.syncs_once
        elif isinstance(self.forward, FSDPModule):
            self.forward.set_requires_gradient_sync(is_last or not self.layout.syncs_once)
            self.forward.set_requires_all_reduce(is_last)

    @property
    def exchanges_throughout(self) -> bool:
        """Sharded strategies communicate in every block. ddp only reduces gradients after the backward pass."""
        return self.layout.is_sharded

    def on_backward_done(self, action: Callable[[], None]) -> AbstractContextManager[object]:
        """Within the block, under ddp, call `action` once this rank has computed its gradients and starts to wait.

        The first parameter's gradient is the last: autograd accumulates a gradient as soon as it is there. A hook that
        stayed would keep the model in memory, because the garbage collector does not see the reference of DDP.
        """

        def hook(_: torch.Tensor) -> None:
            self.communication.begin()
            action()

        if not isinstance(self.forward, DistributedDataParallel):
            return nullcontext()
        first = next(iter(self.parameters.values()))
        handle: RemovableHandle = first.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
        return handle

    def autocast(self) -> AbstractContextManager[object]:
        """Autocast under ddp. Sharded blocks use FSDP's mixed-precision policy."""
        return nullcontext() if self.layout.is_sharded else PRECISIONS[self.config.precision].autocast(self.device)

    def refuse_unused(self) -> None:
        """After a backward pass, raise UnusedParameters if ddp missed a gradient: the copies would diverge."""
        if not isinstance(self.forward, DistributedDataParallel) or self.config.find_unused_parameters:
            return
        unused = [name for name, parameter in self.parameters.items() if parameter.grad is None]
        if unused:
            names = ", ".join(unused[:_NAMES_SHOWN]) + (f" and {len(unused) - _NAMES_SHOWN} more" * (len(unused) > 5))
            raise UnusedParameters(f"no gradient reached {names}; set find_unused_parameters: true, or remove them")


def build_trainee(
    run: Run,
    model: nn.Module,
    write_values: Callable[[nn.Module, Optimizer], None],
    *,
    own_optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] | None = None,
    wrap: tuple[type[nn.Module], ...] | None = None,
) -> Trainee:
    """Spread a model on the meta device over the group. Collective.

    `write_values` fills every parameter, with first values or from a snapshot; `wrap` is what `wrap: auto` means for
    this model.

    The order of the steps matters. Modules are replaced before anything refers to them. Blocks are recomputed inside,
    sharded outside. Memory is allocated after sharding, so that no rank ever holds the whole model. The optimizer keeps
    the parameters that it is given, and DDP and the compiler need the final model.
    """
    config, device = run.config, run.device
    model = model.double() if PRECISIONS[config.precision].parameters == torch.float64 else model
    if config.sync_batchnorm and device.type != "cpu":
        model = convert_batchnorm(model)
    layout = choose_layout(
        config,
        parameters=count_parameters(model),
        world_size=dist.get_world_size(),
        ranks_per_node=_ranks_per_node(run),
        device_bytes=_smallest_device(run),
    )
    blocks = find_blocks(model, parse_wrap(config.wrap), wrap)
    recompute(blocks, parse_checkpointing(config.activation_checkpointing))
    if layout.is_sharded:
        shard(model, blocks, layout, config, device)
    allocate(model, device, home=torch.device("cpu") if config.cpu_offload else device)
    optimizer = build_optimizer(model, config) if own_optimizer is None else own_optimizer(model.parameters())
    write_values(model, optimizer)
    refuse_unwritten(model)
    forward = model if layout.is_sharded else replicate(model, config, device)
    _compile(blocks, config.compile)
    notices = find_ignored(
        config, strategy=layout.strategy, device=device.type, has_own_optimizer=own_optimizer is not None
    )
    notices += [layout.notice] if layout.notice else []
    communication = build_communication_timer(layout, device, model)
    return Trainee(config, model, forward, optimizer, layout, device, communication, tuple(notices))


def _ranks_per_node(run: Run) -> int | None:
    """None if nodes differ. Only hsdp needs this, so only hsdp communicates here."""
    if parse_strategy(run.config.strategy) != "hsdp":
        return None
    sizes = set(on_every_rank(lambda: run.place.local_world_size, run.waits))
    return sizes.pop() if len(sizes) == 1 else None


def _smallest_device(run: Run) -> int | None:
    """The smallest device memory, for `auto`: all ranks must decide alike, and devices may differ."""
    if parse_strategy(run.config.strategy) != "auto" or run.device.type == "cpu":
        return None
    sizes = on_every_rank(lambda: find_device_bytes(run.device), run.waits)
    return min((size for size in sizes if size is not None), default=None)


def _compile(blocks: Sequence[nn.Module], mode: str) -> None:
    """Compile each block separately: equal blocks share the work, and gradients are reduced between them."""
    if mode == "none":
        return
    for block in blocks:
        block.forward = torch.compile(block.forward, mode=None if mode == "default" else mode)
