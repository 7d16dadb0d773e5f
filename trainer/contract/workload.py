"""What a training step consists of, in numbers: the model's shape, the batch, the precision and the strategy."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.contract.config import TrainerConfig, parse_checkpointing, parse_strategy
from trainer.contract.shapes import SHAPES

BYTES_VOCABULARY = 256  # of text that is read byte by byte
TOKENS_VOCABULARY = 65_536  # the most that two bytes hold, where a token file's header is out of reach


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """A decoder. `parameters` may be another model's own count; `decoder_shape` counts the bundled one's."""

    parameters: int
    width: int
    layers: int
    heads: int
    feed_forward: int
    vocab: int

    @property
    def root_parameters(self) -> int:
        """Embedding, head and the last norm: what FSDP keeps together outside of the blocks."""
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
    """The bundled decoder of that size."""
    return decoder_shape(**vars(SHAPES[preset]), vocab=vocab)


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Bytes of an element: as stored, as a gradient, in the arithmetic, as a moment, and as the optimizer's copy."""

    parameter: int
    gradient: int
    compute: int
    moment: int
    master: int = 0


PRECISIONS = {
    "fp64": Precision(parameter=8, gradient=8, compute=8, moment=8),
    "fp32": Precision(parameter=4, gradient=4, compute=4, moment=4),
    "bf16": Precision(parameter=4, gradient=4, compute=2, moment=4),
    "fp16": Precision(parameter=4, gradient=4, compute=2, moment=4),
    "pure-bf16": Precision(parameter=2, gradient=2, compute=2, moment=2),
    # As the ZeRO paper, DeepSpeed and Megatron keep it.
    "fp16-master": Precision(parameter=2, gradient=2, compute=2, moment=4, master=4),
}
MOMENTS = {"adamw": 2, "sgd-momentum": 1, "sgd": 0}


@dataclass(frozen=True, kw_only=True)
class Division:
    """Which model states a strategy divides among its shards, and whether a block is whole only while it computes."""

    parameters: bool
    gradients: bool
    optimizer: bool
    reshards: bool = False


# zero1 and zero2 are DeepSpeed's; the bundled trainer has the others.
DIVISIONS = {
    "ddp": Division(parameters=False, gradients=False, optimizer=False),
    "zero1": Division(parameters=False, gradients=False, optimizer=True),
    "zero2": Division(parameters=False, gradients=True, optimizer=True),
    "shard_grad_op": Division(parameters=True, gradients=True, optimizer=True),
    "fsdp": Division(parameters=True, gradients=True, optimizer=True, reshards=True),
    "hsdp": Division(parameters=True, gradients=True, optimizer=True, reshards=True),
}


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One training step. `micro_batch` counts sequences; `shard_size` is hsdp's, else all devices are shards."""

    shape: ModelShape
    seq_len: int
    micro_batch: int
    strategy: str = "ddp"
    precision: str = "fp32"
    optimizer: str = "adamw"
    devices: int = 1
    shard_size: int | None = None
    accumulates: bool = False  # several microbatches a step on one device
    recompute_every: int = 0  # activation checkpointing of every n-th block; 0: of none
    keeps_products: bool = False  # selective checkpointing: matrix products are kept
    holds_gradients: bool = False  # sharded strategies: gradients stay whole until the last microbatch
    offloads: bool = False  # model states lie in the host's memory

    @property
    def shards(self) -> int:
        """hsdp shards over all devices where they cannot be cut evenly (strategy.py)."""
        is_cut = self.strategy == "hsdp" and self.shard_size and self.devices % self.shard_size == 0
        return self.shard_size if is_cut and self.shard_size else self.devices

    @property
    def tokens(self) -> int:
        return self.micro_batch * self.seq_len

    @property
    def division(self) -> Division:
        return DIVISIONS[self.strategy]

    @property
    def bytes_of(self) -> Precision:
        return PRECISIONS[self.precision]

    @property
    def is_autocast(self) -> bool:
        """Whole parameters in fp32, cast for each operation; FSDP casts what it gathers."""
        return not self.division.parameters and self.precision in ("bf16", "fp16")


def build_workload(
    config: TrainerConfig, *, world_size: int, ranks_per_node: int | None = None, vocab: int = BYTES_VOCABULARY
) -> Workload:
    """The step of the bundled trainer. `auto` is taken for ddp: advice.choose_strategy says what it becomes."""
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
