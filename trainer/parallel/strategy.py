"""The layout of the model on the ranks: the strategy of a configuration for one group. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trainer.contract import advice
from trainer.contract.config import TrainerConfig, parse_strategy
from trainer.contract.workload import build_workload


@dataclass(frozen=True, kw_only=True)
class Layout:
    """`replicas` x `shards` ranks. Neighbors share one copy of the model. `notice` says what is not possible."""

    strategy: str
    replicas: int
    shards: int
    frees_after_forward: bool = True  # gather parameters again for the backward pass
    syncs_once: bool = False  # reduce gradients only after the last microbatch of a step
    notice: str | None = None

    @property
    def is_sharded(self) -> bool:
        return self.strategy != "ddp"


def choose_layout(
    config: TrainerConfig,
    *,
    parameters: int,
    world_size: int,
    ranks_per_node: int | None,
    device_bytes: int | None = None,
) -> Layout:
    """`ranks_per_node` is None if nodes differ: hsdp then has no default shard size.

    `device_bytes` is the memory of the smallest device of the group, the same on every rank; None: not known.
    """
    strategy = choose_strategy(config, parameters, world_size, device_bytes)
    shards, notice = world_size, None
    if strategy == "ddp":
        shards = 1
    elif strategy == "hsdp":
        shards, notice = _choose_shard_size(config.shard_size or ranks_per_node, world_size)
    return Layout(
        strategy=strategy,
        replicas=world_size // shards,
        shards=shards,
        frees_after_forward=strategy != "shard_grad_op",
        syncs_once=_syncs_once(config, strategy),
        notice=notice,
    )


def _syncs_once(config: TrainerConfig, strategy: str) -> bool:
    """DDP learns a static graph from a backward pass with gradient reduction: then every pass needs it."""
    if config.gradient_sync == "auto":
        return strategy == "ddp" and not config.static_graph
    return config.gradient_sync == "step"


def choose_strategy(config: TrainerConfig, parameters: int, world_size: int, device_bytes: int | None) -> str:
    """What `auto` means for a model of this size, by the memory formulas. See advice.choose_strategy."""
    strategy = parse_strategy(config.strategy)
    if strategy != "auto":
        return strategy
    load = build_workload(config, world_size=world_size)
    load = replace(load, shape=replace(load.shape, parameters=parameters))
    return advice.choose_strategy(load, device_bytes)


def _choose_shard_size(wanted: int | None, world_size: int) -> tuple[int, str | None]:
    """Shard over all ranks if the group cannot be divided evenly: slower than copies, but it fits into memory."""
    if wanted is not None and world_size % wanted == 0:
        return wanted, None
    reason = "nodes differ in size" if wanted is None else f"{world_size} ranks are not a multiple of {wanted}"
    return world_size, f"hsdp shards over all ranks: {reason}"
