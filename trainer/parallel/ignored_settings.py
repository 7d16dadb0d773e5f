"""Settings without effect. Each becomes an event."""

from __future__ import annotations

from trainer.contract.config import TrainerConfig, render_config

_OF_DDP = ("bucket_mb", "gradient_as_bucket_view", "broadcast_buffers", "static_graph", "find_unused_parameters")
_OF_SHARDS = ("prefetch_blocks",)
_OF_ADAMW = ("optimizer_impl", "weight_decay", "learning_rate", "final_learning_rate", "warmup_steps")


def find_ignored(config: TrainerConfig, *, strategy: str, device: str, has_own_optimizer: bool = False) -> list[str]:
    """One sentence for each setting without effect. `device` is "cpu" or "cuda"."""
    asked = [name for name in render_config(config) if name != "strategy"]
    notices = []
    if config.sync_batchnorm and device == "cpu":
        notices.append("sync_batchnorm: has no effect on CPUs; each rank keeps its own statistics")
    if config.compile == "reduce-overhead" and device == "cpu":
        notices.append("compile: CPUs have no CUDA graphs; reduce-overhead equals default")
    if config.cpu_offload and device == "cpu":
        notices.append("cpu_offload: has no effect on CPUs")
    if strategy != "hsdp" and "shard_size" in asked:
        notices.append(f"shard_size: applies to hsdp only; the strategy of this run is {strategy}")
    unused = _OF_SHARDS if strategy == "ddp" else _OF_DDP
    notices += [f"{name}: has no effect with the strategy {strategy}" for name in unused if name in asked]
    if has_own_optimizer:
        notices += [f"{name}: has no effect: the task has its own optimizer" for name in _OF_ADAMW if name in asked]
    return notices
