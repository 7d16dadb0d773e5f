"""What a training step consists of, in numbers: the model's shape, the batch, the precision and the strategy."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.contract.config import TrainerConfig, parse_checkpointing, parse_strategy
from trainer.contract.shapes import SHAPES

BYTES_VOCABULARY = 256  # of text that is read byte by byte
TOKENS_VOCABULARY = 65_536  # the most that two bytes hold, if a token file's header cannot be read


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """A decoder. `parameters` may be the number of another model's; `decoder_shape` computes the bundled one's."""

    parameters: int
    width: int
    layers: int
    heads: int
    feed_forward: int
    vocab: int

    @property
    def root_parameters(self) -> int:
        """Embedding, head and the last norm, which FSDP shards as one unit."""
        return min(self.parameters, 2 * self.vocab * self.width + self.width)

    @property
    def block_parameters(self) -> float:
        return (self.parameters - self.root_parameters) / self.layers


def decoder_shape(*, width: int, layers: int, heads: int, feed_forward: int, vocab: int) -> ModelShape:
    """The bundled decoder: four attention and three feed-forward matrices and two norms a block, an untied head."""
    block = 4 * width * width + 3 * width * feed_forward + 2 * width
    parameters = layers * block + 2 * vocab * width + width
    return ModelShape(
        parameters=parameters, width=width, layers=layers, heads=heads, feed_forward=feed_forward, vocab=vocab
    )


def preset_shape(preset: str, vocab: int = BYTES_VOCABULARY) -> ModelShape:
    return decoder_shape(**vars(SHAPES[preset]), vocab=vocab)


_COMPUTE_BYTES = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One training step with AdamW. `micro_batch` is in sequences. `shard_size` applies to hsdp only."""

    shape: ModelShape
    seq_len: int
    micro_batch: int
    strategy: str = "ddp"
    precision: str = "fp32"
    devices: int = 1
    shard_size: int | None = None
    accumulates: bool = False  # several microbatches a step on one device
    recompute_every: int = 0  # activation checkpointing of every n-th block; 0: of none
    keeps_products: bool = False  # selective checkpointing: matrix products are kept
    holds_gradients: bool = False  # sharded strategies: gradients stay whole until the last microbatch
    offloads: bool = False  # model states lie in the host's memory

    @property
    def shards(self) -> int:
        """How many devices share the model states. hsdp uses all if they cannot be divided evenly (strategy.py)."""
        if not self.is_sharded:
            return 1
        is_even = self.strategy == "hsdp" and self.shard_size and self.devices % self.shard_size == 0
        return self.shard_size if is_even and self.shard_size else self.devices

    @property
    def tokens(self) -> int:
        return self.micro_batch * self.seq_len

    @property
    def is_sharded(self) -> bool:
        return self.strategy != "ddp"

    @property
    def frees_after_forward(self) -> bool:
        """Whether a block's parameters are gathered again for the backward pass."""
        return self.strategy in ("fsdp", "hsdp")

    @property
    def state_bytes(self) -> int:
        """Bytes of a parameter. Its gradient and each of AdamW's two moments have the same size."""
        return 8 if self.precision == "fp64" else 4

    @property
    def compute_bytes(self) -> int:
        """Bytes of an element in the arithmetic."""
        return _COMPUTE_BYTES[self.precision]

    @property
    def is_autocast(self) -> bool:
        """Unsharded parameters in fp32 are cast for each operation. FSDP casts what it gathers."""
        return not self.is_sharded and self.compute_bytes == 2


def build_workload(
    config: TrainerConfig, *, world_size: int, ranks_per_node: int | None = None, vocab: int = BYTES_VOCABULARY
) -> Workload:
    """The step of the bundled trainer. `auto` counts as ddp here; advice.choose_strategy resolves it."""
    strategy, checkpointing = parse_strategy(config.strategy), parse_checkpointing(config.activation_checkpointing)
    accumulates = config.global_batch > config.sequences_per_microbatch * world_size
    return Workload(
        shape=preset_shape(config.preset, vocab),
        seq_len=config.seq_len,
        micro_batch=config.sequences_per_microbatch,
        strategy="ddp" if strategy == "auto" else strategy,
        precision=config.precision,
        devices=world_size,
        shard_size=(config.shard_size or ranks_per_node) if strategy == "hsdp" else None,
        accumulates=accumulates,
        recompute_every=checkpointing.every if checkpointing else 0,
        keeps_products=checkpointing is not None and checkpointing.keeps_products,
        holds_gradients=accumulates and config.gradient_sync == "step",
        offloads=config.cpu_offload,
    )
