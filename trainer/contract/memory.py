"""Estimate the device memory of a training step from formulas: no torch, no device.

Service and trainer share them. Sources:

* model states (parameters, gradients, optimizer): Rajbhandari et al., ZeRO, 2020, section 3. With AdamW they take 16
  bytes for each parameter in fp32 and in mixed precision, divided by the number of shards.
* activations: what autograd keeps of a block, counted in our own decoder (`FP32_BLOCK` and below). Korthikanti et al.,
  Reducing Activation Recomputation, 2022, count GPT-2's block in the same way, at 34 bytes for each element of width,
  and with full recomputation its input alone. Attention is fused: its scores are never kept.
* logits: log-softmax in fp32 has its output, its gradient and its result in memory at the same time.
* gathers: what FSDP2 holds unsharded at the same time (torch/distributed/fsdp/_fully_shard), and autocast's casts.
* overhead: a rule of thumb; see docs/advice.md.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from trainer.contract.env import COPIES
from trainer.contract.workload import Workload

_CONTEXT_BYTES = 1.25 * (1 << 30)  # a CUDA context and NCCL's buffers
_PROCESS_BYTES = 0.3 * (1 << 30)  # Python with torch, where the device is the host itself
_ALLOCATOR_SLACK = 0.07  # what the caching allocator cannot use
_SOFTMAX_BYTES = 3 * 4
_LOGSUMEXP_BYTES = 4  # of fused attention, for each head
_ROOTS_BYTES = 8  # of two norms


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Bytes of one device at the peak of a step. What is not in memory at that moment is 0."""

    parameters: float = 0
    gradients: float = 0
    optimizer: float = 0
    activations: float = 0
    logits: float = 0
    gathers: float = 0

    @property
    def total(self) -> float:
        return sum(self.by_name().values())

    def by_name(self) -> dict[str, float]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Bytes: `terms` of the tensors, `overhead` of the runtime, `host` for what is offloaded to the host's memory."""

    terms: Terms
    overhead: float = 0
    host: float = 0

    @property
    def total(self) -> float:
        return self.terms.total + self.overhead

    @property
    def largest(self) -> str:
        terms = self.terms.by_name()
        return max(terms, key=lambda name: terms[name])


def estimate(load: Workload, *, on_cpu: bool = False) -> Estimate:
    """The memory of each device or, on CPUs, of each worker."""
    states = model_states(load)
    peak = max(_moments(load, Terms() if load.offloads else states), key=lambda terms: terms.total)
    return Estimate(
        terms=peak,
        overhead=_PROCESS_BYTES if on_cpu else _CONTEXT_BYTES + _ALLOCATOR_SLACK * peak.total,
        host=states.total if load.offloads else 0,
    )


def model_states(load: Workload) -> Terms:
    """Parameters, gradients and AdamW's two moments of one device."""
    size = load.shape.parameters * load.state_bytes / load.shards
    return Terms(parameters=size, gradients=size, optimizer=2 * size)


@dataclass(frozen=True, kw_only=True)
class BlockBytes:
    """Bytes of a token in a block: for each element of width, of feed-forward width, and of the block's input."""

    width: int
    feed_forward: int
    input: int


# Width: two norms (input, normalized and output of each), qkv, rotated q and k, attention's output; norms compute in
# fp32. Feed-forward: gate, up, SiLU and their product. Autocast casts the second norm's output twice.
FP64_BLOCK = BlockBytes(width=8 * 12, feed_forward=8 * 4, input=8)
FP32_BLOCK = BlockBytes(width=4 * 12, feed_forward=4 * 4, input=4)
AUTOCAST_BLOCK = BlockBytes(width=2 * 17, feed_forward=2 * 4, input=4)
CAST_BLOCK = BlockBytes(width=2 * 16, feed_forward=2 * 4, input=2)


def _moments(load: Workload, states: Terms) -> tuple[Terms, ...]:
    """The moments that may be the peak: the end of the forward pass, the loss, begin and end of the backward pass."""
    shape, compute = load.shape, load.compute_bytes
    stored, block, gathers = _stored(load) + _last_norm(load), _block(load), _gathers(load)
    backward = 2 * load.tokens * (shape.width + shape.feed_forward) * compute
    recomputed = block if load.recompute_every else 0
    is_ddp = load.strategy == "ddp" and load.devices > 1  # its buckets hold the gradients all the time
    held = states.gradients if load.accumulates or is_ddp else 0
    # FSDP adds reduced shards to the accumulated ones, and frees them at the end of the backward pass.
    final = states.gradients * (2 if load.accumulates and load.is_sharded else 1)
    logits = load.tokens * shape.vocab

    def moment(gradients: float, activations: float, gathered: float, logits: float = 0) -> Terms:
        return Terms(
            parameters=states.parameters,
            gradients=gradients,
            optimizer=states.optimizer,
            activations=activations,
            logits=logits,
            gathers=gathered,
        )

    return (
        moment(held, stored, gathers.forward, logits * (compute + 4)),
        moment(held, stored, gathers.loss, logits * _SOFTMAX_BYTES),
        moment(held, _stored(load) + recomputed + backward, gathers.backward),
        moment(final, block + backward, gathers.end),
    )


def _block_bytes(load: Workload) -> BlockBytes:
    whole = {8: FP64_BLOCK, 4: FP32_BLOCK}.get(load.compute_bytes)
    return whole or (AUTOCAST_BLOCK if load.is_autocast else CAST_BLOCK)


def _block(load: Workload) -> float:
    """What the backward pass of one block needs."""
    each, shape = _block_bytes(load), load.shape
    of_token = shape.width * each.width + shape.feed_forward * each.feed_forward
    return load.tokens * (of_token + shape.heads * _LOGSUMEXP_BYTES + _ROOTS_BYTES)


def _stored(load: Workload) -> float:
    """What all blocks keep for the backward pass."""
    shape, every = load.shape, load.recompute_every
    recomputed = -(-shape.layers // every) if every else 0
    of_token = shape.width * _block_bytes(load).input
    if load.keeps_products:  # qkv, both outputs, gate and up
        of_token += (5 * shape.width + 2 * shape.feed_forward) * load.compute_bytes
    return (shape.layers - recomputed) * _block(load) + recomputed * load.tokens * of_token


def _last_norm(load: Workload) -> float:
    """Bytes of the last norm: its input and normalized input in at least fp32, its output in the head's type."""
    compute = load.compute_bytes
    return load.tokens * load.shape.width * (2 * max(4, compute) + compute)


@dataclass(frozen=True, kw_only=True)
class _Gathers:
    """Unsharded or cast copies of parameters and gradients at the four moments."""

    forward: float = 0
    loss: float = 0
    backward: float = 0
    end: float = 0


def _gathers(load: Workload) -> _Gathers:
    if load.is_autocast:
        return _cast_copies(load)
    return _unsharded(load) if load.is_sharded else _Gathers()


def _cast_copies(load: Workload) -> _Gathers:
    """Every matrix is cast once, and the graph keeps it. A recomputed block casts its matrices again."""
    compute, block = load.compute_bytes, load.shape.block_parameters * load.compute_bytes
    head = load.shape.vocab * load.shape.width * compute
    whole = load.shape.layers * block + head
    kept = head + block if load.recompute_every == 1 else whole
    return _Gathers(forward=whole, loss=kept, backward=kept, end=block)


def _unsharded(load: Workload) -> _Gathers:
    compute, gradient = load.compute_bytes, load.state_bytes
    root, block = load.shape.root_parameters * compute, load.shape.block_parameters * compute
    held = load.shape.parameters * gradient if load.holds_gradients else 0
    reduced = gradient / compute  # gradients are sent in a wider type than they are computed in
    moving = block * (2 + reduced)  # one block is computed, the next is on its way, the one before is being reduced
    end = max(root * (1 + reduced), root + moving + root / 2)  # half the root's gradients are the head's
    if load.frees_after_forward:
        # The root stays gathered: the backward pass begins with it.
        return _Gathers(forward=held + root + block, loss=held + root, backward=held + root + moving, end=held + end)
    whole = held + root + load.shape.layers * block
    return _Gathers(forward=whole, loss=whole, backward=whole + block, end=held + end)


def copies_bytes(load: Workload, nodes: int = 1) -> int:
    """The memory of each node for copies of the parameters and AdamW's two moments, however they are sharded.

    There are two copies of its share. With several nodes, each node mirrors those of another one.
    """
    whole = COPIES * 3 * load.state_bytes * load.shape.parameters
    return whole if nodes == 1 else -(-2 * whole // nodes)
