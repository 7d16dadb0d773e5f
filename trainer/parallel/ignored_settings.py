"""What a configuration asks for in vain. Each is an event, so that nobody waits for its effect."""

from __future__ import annotations

from trainer.contract.config import TrainerConfig, render_config

_OF_DDP = ("bucket_mb", "gradient_as_bucket_view", "broadcast_buffers", "static_graph", "find_unused_parameters")
_OF_SHARDS = ("prefetch_blocks",)
_OF_ADAMW = ("optimizer_impl", "weight_decay", "learning_rate", "final_learning_rate", "warmup_steps")


def find_ignored(config: TrainerConfig, *, strategy: str, device: str, has_own_optimizer: bool = False) -> list[str]:
    """A sentence for each key that changes nothing under this strategy, on a `device` as "cpu" or "cuda"."""
    asked = [name for name in render_config(config) if name != "strategy"]
    notices = []
    if config.sync_batchnorm and device == "cpu":
        notices.append("sync_batchnorm: CPUs have none; each rank keeps statistics of its own")
    if config.compile == "reduce-overhead" and device == "cpu":
        notices.append("compile: CPUs have no CUDA graphs; reduce-overhead is what default is")
    if config.cpu_offload and device == "cpu":
        notices.append("cpu_offload: a CPU computes in the host's memory; there is nothing to offload")
    if strategy != "hsdp" and "shard_size" in asked:
        notices.append(f"shard_size: only hsdp has copies of shards, this run's strategy is {strategy}")
    unused = _OF_SHARDS if strategy == "ddp" else _OF_DDP
    notices += [f"{name}: does nothing where the strategy is {strategy}" for name in unused if name in asked]
    if has_own_optimizer:
        notices += [f"{name}: the task's own optimizer decides on that" for name in _OF_ADAMW if name in asked]
    return notices
