"""How the model lies on the ranks: the strategy that a configuration means for one group. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.contract.config import TrainerConfig, parse_strategy

# `auto`: AdamW in fp32 keeps 16 bytes per parameter, so that beyond this a replica takes 16 GB of each device.
AUTO_FSDP_PARAMETERS = 1_000_000_000


@dataclass(frozen=True, kw_only=True)
class Layout:
    """`replicas` x `shards` ranks: neighbours share one copy of the model. `notice` says what was not to be had."""

    strategy: str
    replicas: int
    shards: int
    frees_after_forward: bool = True  # a sharded block's parameters are gathered again for the backward pass
    syncs_once: bool = False  # gradients are exchanged after the step's last microbatch only
    notice: str | None = None

    @property
    def is_sharded(self) -> bool:
        return self.strategy != "ddp"


def choose_layout(config: TrainerConfig, *, parameters: int, world_size: int, ranks_per_node: int | None) -> Layout:
    """`ranks_per_node` is None where nodes differ: hsdp then has no shard size of its own."""
    strategy = choose_strategy(config, parameters, world_size)
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
    """DDP learns a static graph from a backward pass that exchanges gradients: then every one has to."""
    if config.gradient_sync == "auto":
        return strategy == "ddp" and not config.static_graph
    return config.gradient_sync == "step"


def choose_strategy(config: TrainerConfig, parameters: int, world_size: int) -> str:
    """What `auto` means: ddp, or fsdp for several ranks and more than AUTO_FSDP_PARAMETERS, or for offload."""
    strategy = parse_strategy(config.strategy)
    if strategy != "auto":
        return strategy
    return "fsdp" if config.cpu_offload or (world_size > 1 and parameters > AUTO_FSDP_PARAMETERS) else "ddp"


def _choose_shard_size(wanted: int | None, world_size: int) -> tuple[int, str | None]:
    """A group that cannot be cut evenly shards over all ranks: slower than copies, but never short of memory."""
    if wanted is not None and world_size % wanted == 0:
        return wanted, None
    reason = "nodes differ in workers" if wanted is None else f"{world_size} ranks are no multiple of {wanted}"
    return world_size, f"hsdp shards over all ranks: {reason}"
