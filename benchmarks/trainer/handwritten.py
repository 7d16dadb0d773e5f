"""What one writes without a trainer: `handwritten.py plain|ddp|fsdp LINES PRESET BATCH SEQ_LEN`, on each rank.

Nothing but the loop: no snapshots, no order of samples to come back to, no heartbeat. Rank 0 writes a line of LINES for
each step, with the time at its end.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from trainer.contract.shapes import SHAPES
from trainer.model import Decoder


def build(strategy: str, preset: str) -> nn.Module:
    torch.manual_seed(0)
    model = Decoder(SHAPES[preset], vocab_size=256, dropout=0.0)
    if strategy == "fsdp":
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    return DistributedDataParallel(model, gradient_as_bucket_view=True) if strategy == "ddp" else model


def read_tokens() -> Tensor:
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return torch.from_numpy(np.frombuffer(b"".join(file.read_bytes() for file in files), dtype=np.uint8).copy())


def main() -> None:
    strategy, lines, preset, batch, seq_len = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
    world_size = int(os.environ["WORLD_SIZE"])
    if strategy != "plain":
        dist.init_process_group("gloo")
    tokens_N = read_tokens()
    model = build(strategy, preset)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    with Path(lines).open("w", buffering=1) if os.environ["RANK"] == "0" else open(os.devnull, "w") as told:  # noqa: PTH123
        while True:
            starts_B = torch.randint(len(tokens_N) - seq_len - 1, (batch // world_size,))
            tokens_BT = torch.stack([tokens_N[start : start + seq_len + 1] for start in starts_B]).long()
            logits_BTV = model(tokens_BT[:, :-1])
            loss = F.cross_entropy(logits_BTV.flatten(0, 1), tokens_BT[:, 1:].flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            print(f"{time.time():.6f} {loss.item():.4f}", file=told)


if __name__ == "__main__":
    main()
