"""Names from FSDP1, ZeRO, Lightning and Transformers, and their counterparts here.

A name without a counterpart gets a sentence on what to use instead. Any other is compared with the known names.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection

# The field with the same meaning.
_FIELDS = {
    "batch_size": "global_batch",
    "bf16": "precision",
    "devices": "--nproc-per-node, in a job topology.workers_per_node",
    "fp16": "precision",
    "gradient_checkpointing": "activation_checkpointing",
    "gradient_clip_val": "grad_clip",
    "lr": "learning_rate",
    "max_grad_norm": "grad_clip",
    "max_steps": "steps",
    "mixed_precision": "precision",
    "num_nodes": "--nnodes, in a job topology.nodes",
    "num_workers": "data_workers",
    "dataloader_num_workers": "data_workers",
    "offload_optimizer": "cpu_offload",
    "per_device_train_batch_size": "micro_batch",
    "per_device_batch_size": "micro_batch",
    "save_interval": "snapshot_interval",
    "save_steps": "snapshot_interval",
    "save_total_limit": "snapshot_keep",
    "sharding_strategy": "strategy",
    "torch_compile": "compile",
    "train_batch_size": "global_batch",
    "train_micro_batch_size_per_gpu": "micro_batch",
    "auto_wrap_policy": "wrap",
    "backward_prefetch": "prefetch_blocks",
    "forward_prefetch": "prefetch_blocks",
}
_ACCUMULATION = "a rank accumulates over global_batch / (micro_batch * ranks) microbatches; set micro_batch"
# Fields without a counterpart, and what to do instead.
_FIELD_ADVICE = {
    "accumulate_grad_batches": _ACCUMULATION,
    "gradient_accumulation_steps": _ACCUMULATION,
    "deepspeed": "DeepSpeed is not used; strategy 'shard_grad_op' corresponds to ZeRO-2 and 'fsdp' to ZeRO-3",
    "fsdp": "set strategy to 'fsdp'",
    "limit_all_gathers": "FSDP2 limits its gathers by itself, so leave it out or set prefetch_blocks",
    "max_epochs": "a run is counted in steps, so set steps",
    "num_train_epochs": "a run is counted in steps, so set steps",
    "resume_from_checkpoint": "a job continues from its newest snapshot; to start from another one, set snapshot.from",
    "sync_module_states": "all ranks start from one seed, so leave it out",
    "use_orig_params": "FSDP2 keeps the original parameters, so leave it out",
    "output_dir": "the job has its own folder, so leave it out or set snapshot.dir in the job",
    "zero_optimization": "set strategy: 'shard_grad_op' corresponds to ZeRO-2 and 'fsdp' to ZeRO-3",
}
# Values by another name.
_VALUES = {
    "bf16-mixed": "bf16",
    "bf16-true": "bf16",
    "bfloat16": "bf16",
    "16": "fp16",
    "16-mixed": "fp16",
    "16-true": "fp16",
    "float16": "fp16",
    "half": "fp16",
    "32": "fp32",
    "32-true": "fp32",
    "float32": "fp32",
    "no": "fp32",
    "64": "fp64",
    "64-true": "fp64",
    "float64": "fp64",
    "double": "fp64",
    "ddp_find_unused_parameters_true": "ddp with find_unused_parameters",
    "ddp_spawn": "ddp",
    "deepspeed_stage_2_offload": "shard_grad_op with cpu_offload",
    "deepspeed_stage_3_offload": "fsdp with cpu_offload",
    "distributeddataparallel": "ddp",
    "fullyshardeddataparallel": "fsdp",
}


def advise_field(name: str, known: Collection[str]) -> str:
    """What to write instead of an unknown field: its counterpart, a similar name, or else where all are listed."""
    if name in _FIELD_ADVICE:
        return _FIELD_ADVICE[name]
    meant = _FIELDS.get(name) or _nearest(name, known)
    return "docs/trainer.md lists its keys" if meant is None else f"did you mean {meant}?"


def advise_value(text: str, allowed: Collection[str]) -> str:
    """The clause "; did you mean ...?" for a value that is not in `allowed`. Empty if none is similar."""
    meant = _VALUES.get(text.lower()) or _nearest(text.lower(), allowed)
    is_offered = meant is not None and meant.split(" ")[0] in allowed
    return f"; did you mean {meant}?" if is_offered else ""


def _nearest(name: str, known: Collection[str]) -> str | None:
    return next(iter(difflib.get_close_matches(name, known, n=1)), None)
