"""A hand-written training loop: `handwritten.py LINES '{"strategy": "ddp", ...}'`, on each rank.

It has no snapshots, no reproducible order of samples and no heartbeat. After every `window` steps rank 0 waits for the
device and writes a line to LINES: the time, the number of the step and its loss.
"""

from __future__ import annotations

import json
import os
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from trainer.contract.shapes import SHAPES
from trainer.model.decoder import Decoder

Work = dict[str, Any]


def build(work: Work, device: torch.device) -> nn.Module:
    torch.manual_seed(0)
    with device:
        model = Decoder(SHAPES[work["preset"]], vocab_size=256, dropout=0.0)
    if work["strategy"] == "fsdp":
        short = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        policy = short if work["precision"] == "bf16" else MixedPrecisionPolicy()
        for block in model.blocks:
            fully_shard(block, mp_policy=policy)
        fully_shard(model, mp_policy=policy)
    if work["is_compiled"]:
        for block in model.blocks:
            block.forward = torch.compile(block.forward)
    if work["strategy"] != "ddp":
        return model
    devices = None if device.type == "cpu" else [device]
    return DistributedDataParallel(model, device_ids=devices, gradient_as_bucket_view=True)


def read_tokens() -> Tensor:
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return torch.from_numpy(np.frombuffer(b"".join(file.read_bytes() for file in files), dtype=np.uint8).copy())


def draw(tokens_N: Tensor, batch: int, seq_len: int, device: torch.device) -> Tensor:
    starts_B = torch.randint(len(tokens_N) - seq_len - 1, (batch,))
    tokens_BT = torch.stack([tokens_N[start : start + seq_len + 1] for start in starts_B]).long()
    return tokens_BT if device.type == "cpu" else tokens_BT.pin_memory().to(device, non_blocking=True)


def main() -> None:
    lines, work = Path(sys.argv[1]), json.loads(sys.argv[2])
    world_size, device = int(os.environ["WORLD_SIZE"]), torch.device(work["device"])
    if work["strategy"] != "plain":
        dist.init_process_group("gloo" if device.type == "cpu" else "nccl")
    is_cast = work["precision"] == "bf16" and work["strategy"] != "fsdp"  # FSDP casts by its policy
    tokens_N = read_tokens()
    model = build(work, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    step = 0
    with lines.open("w", buffering=1) if os.environ["RANK"] == "0" else open(os.devnull, "w") as reported:  # noqa: PTH123
        while True:
            tokens_BT = draw(tokens_N, work["global_batch"] // world_size, work["seq_len"], device)
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=is_cast):
                logits_BTV = model(tokens_BT[:, :-1])
                loss = F.cross_entropy(logits_BTV.flatten(0, 1).float(), tokens_BT[:, 1:].flatten())
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1
            if step % work["window"] == 0:
                value = loss.item()  # waits for the update, which is before it in the device's queue
                print(f"{time.time():.6f} {step} {value:.4f}", file=reported)


if __name__ == "__main__":
    main()
