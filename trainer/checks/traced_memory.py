"""The peak of one training step, traced with fake tensors: no memory is taken and nothing is computed.

The very decoder goes through two steps under torch's own trackers. They are private names (torch_compat.py): the plain
advice does without. Everything is traced as on a CPU, because a wheel without CUDA has no fake CUDA either. The
optimizer is the plain one: fused and foreach ones are decomposed and show temporaries that they do not have.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from trainer.contract.config import Checkpointing
from trainer.contract.shapes import Shape
from trainer.contract.workload import Workload
from trainer.model.decoder import Decoder
from trainer.parallel.recomputation import recompute
from trainer.worker.torch_compat import fake_store, fake_tensors, memory_tracker, sharded_memory_tracker

_CPU = torch.device("cpu")


def trace_peak(load: Workload) -> int:
    """Bytes of tensors of one device at the peak of a second step, when the optimizer has its moments.

    Raises ValueError for what is not traceable. It makes a fake process group of `load.devices` ranks: none may exist.
    """
    if not is_traceable(load):
        raise ValueError("only the trainer's own strategies with AdamW, in fp32 or bf16, can be traced")
    with _fake_group(load) as mesh, fake_tensors():
        model = _build(load, mesh)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False, fused=False)
        tokens_BT = torch.zeros(load.micro_batch, load.seq_len + 1, dtype=torch.int64)
        tracker = _tracker(load, model, optimizer, tokens_BT)
        with tracker:
            for _ in range(2):
                _step(load, model, optimizer, tokens_BT, tracker)
        return int(tracker.get_tracker_snapshot("peak")[_CPU]["Total"])


def is_traceable(load: Workload) -> bool:
    """Whether the trainer has it and the trackers see it: AdamW in fp32 or bf16, on the devices."""
    known = load.strategy in ("ddp", "shard_grad_op", "fsdp", "hsdp") and load.precision in ("fp32", "bf16")
    return known and load.optimizer == "adamw" and not (load.offloads or load.keeps_products or load.holds_gradients)


@contextmanager
def _fake_group(load: Workload) -> Iterator[DeviceMesh]:
    """The mesh is made outside of fake mode: inside, its creation reads values that fake tensors do not have."""
    dist.init_process_group("fake", store=fake_store(), rank=0, world_size=load.devices)
    try:
        if load.strategy == "hsdp":
            shape = (load.devices // load.shards, load.shards)
            yield init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
        else:
            yield init_device_mesh("cpu", (load.devices,), mesh_dim_names=("shard",))
    finally:
        dist.destroy_process_group()


def _build(load: Workload, mesh: DeviceMesh) -> Decoder:
    shape = load.shape
    own = Shape(width=shape.width, layers=shape.layers, heads=shape.heads, feed_forward=shape.feed_forward)
    model = Decoder(own, vocab_size=shape.vocab, dropout=0.0)
    recompute(list(model.blocks), Checkpointing(every=load.recompute_every) if load.recompute_every else None)
    if load.strategy == "ddp":
        return model
    policy = MixedPrecisionPolicy()
    if load.precision == "bf16":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=load.division.reshards)
    policy = replace(policy, output_dtype=torch.float32)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    return model


def _tracker(load: Workload, model: Decoder, optimizer: torch.optim.Optimizer, tokens_BT: torch.Tensor) -> Any:
    if load.strategy == "ddp":
        tracker = memory_tracker()
        tracker.track_external(model, optimizer, tokens_BT)
        return tracker
    sharded = sharded_memory_tracker(model, optimizer)
    sharded.track_inputs((tokens_BT,))
    return sharded


def _step(
    load: Workload,
    model: Decoder,
    optimizer: torch.optim.Optimizer,
    tokens_BT: torch.Tensor,
    tracker: Any,
) -> None:
    autocast = torch.autocast("cpu", dtype=torch.bfloat16, enabled=load.precision == "bf16" and load.strategy == "ddp")
    for _ in range(2 if load.accumulates else 1):
        tracker.reset_mod_stats()  # of each module, which it keeps for one forward pass only; the peak stays
        with autocast:
            logits_BTV = model(tokens_BT[:, :-1])
        loss = F.cross_entropy(logits_BTV.float().flatten(0, 1), tokens_BT[:, 1:].flatten(), reduction="sum")
        del logits_BTV
        loss.backward()  # type: ignore[no-untyped-call]
        del loss
    optimizer.step()
    # DDP's buckets hold the gradients for as long as the model lives, so that none is ever freed.
    optimizer.zero_grad(set_to_none=not (load.strategy == "ddp" and load.devices > 1))
