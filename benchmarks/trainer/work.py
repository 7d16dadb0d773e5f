"""The workload of both sides and its timing. CPUs train a small model, GPUs a realistic one."""

from __future__ import annotations

from dataclasses import dataclass

STRATEGIES = ("plain", "ddp", "fsdp")


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """`global_batch` sequences per step, in one microbatch per rank."""

    strategy: str = "plain"  # one of STRATEGIES
    device: str  # cpu or cuda
    preset: str
    global_batch: int
    seq_len: int
    precision: str  # fp32 or bf16
    is_compiled: bool  # block by block
    ranks: int  # of ddp and fsdp
    window: int  # steps that are timed together
    rounds: int
    turn_s: float
    limit: float  # of the median ratio
    peak_tflops: float | None = None  # of a device that the trainer's table lacks; None: by its name

    @property
    def world_size(self) -> int:
        return 1 if self.strategy == "plain" else self.ranks

    @property
    def tokens(self) -> int:
        """Tokens per step."""
        return self.global_batch * self.seq_len


# The defaults of a device. A GPU holds both models with gradients, AdamW's moments and activations, about 30 GB each.
# Its window is long compared with the wait for the device that ends it.
USUAL = {
    "cpu": Work(
        device="cpu", preset="nano", global_batch=8, seq_len=128, precision="fp32", is_compiled=False, ranks=2,
        window=1, rounds=20, turn_s=2.0, limit=0.97,
    ),
    "cuda": Work(
        device="cuda", preset="1b", global_batch=4, seq_len=2048, precision="bf16", is_compiled=True, ranks=1,
        window=10, rounds=8, turn_s=6.0, limit=0.99,
    ),
}  # fmt: skip
