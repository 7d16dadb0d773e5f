"""Advice about memory: the ladder of strategies, its first rung that fits, and the cheapest way out of a shortage.

Pure, like the formulas (memory.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from trainer.contract.memory import Estimate, estimate
from trainer.contract.workload import Workload

_GB = 1e9
_WORTH = 0.05  # of the need: a change that saves less is not advised
# Above this, `strategy: auto` shards if the device's memory is unknown, as on a CPU. Training states then take 16 GB.
UNKNOWN_DEVICE_PARAMETERS = 1_000_000_000

Change = Callable[[Workload], Workload]


@dataclass(frozen=True, kw_only=True)
class Rung:
    """A way to train. `change` applies it to a workload; `settings` are the trainer's settings for it."""

    name: str
    change: Change
    settings: str
    least_devices: int = 1
    most_devices: int | None = None

    def admits(self, devices: int) -> bool:
        return devices >= self.least_devices and (self.most_devices is None or devices <= self.most_devices)


def _as_ddp(load: Workload) -> Workload:
    return replace(load, strategy="ddp", shard_size=None, offloads=False)


def _as_fsdp(load: Workload) -> Workload:
    return replace(load, strategy="fsdp", shard_size=None, offloads=False)


def _lean(load: Workload) -> Workload:
    """Return the workload in 16 bits, with every block recomputed."""
    precision = load.precision if load.compute_bytes == 2 else "bf16"
    return replace(load, precision=precision, recompute_every=1, keeps_products=False)


_LEAN = "precision: bf16, activation_checkpointing: full"
# The order is the policy: each rung costs more time, or more trouble, than the one before.
LADDER: tuple[Rung, ...] = (
    Rung(name="one device", change=_as_ddp, settings="strategy: ddp", most_devices=1),
    Rung(name="DDP", change=_as_ddp, settings="strategy: ddp", least_devices=2),
    Rung(
        name="bf16 and activation checkpointing",
        change=lambda load: _lean(_as_ddp(load)),
        settings=f"strategy: ddp, {_LEAN}",
    ),
    Rung(name="FSDP", change=lambda load: _lean(_as_fsdp(load)), settings=f"strategy: fsdp, {_LEAN}", least_devices=2),
    Rung(
        name="FSDP with CPU offload",
        change=lambda load: replace(_lean(_as_fsdp(load)), offloads=True),
        settings=f"strategy: fsdp, {_LEAN}, cpu_offload: true",
    ),
)
BEYOND = "more devices, a smaller micro batch, or tensor parallelism, which this trainer does not have"


@dataclass(frozen=True, kw_only=True)
class Step:
    """A rung and its need for one workload. `fits` is None if the device's memory is unknown."""

    rung: Rung
    need: Estimate
    fits: bool | None


def climb(load: Workload, device_bytes: float | None, *, on_cpu: bool = False) -> list[Step]:
    """Every rung that the number of devices admits, in order."""
    needs = ((rung, estimate(rung.change(load), on_cpu=on_cpu)) for rung in LADDER if rung.admits(load.devices))
    return [Step(rung=rung, need=need, fits=_fits(need, device_bytes)) for rung, need in needs]


def first_fitting(steps: list[Step]) -> Step | None:
    return next((step for step in steps if step.fits), None)


def describe_need(load: Workload, device_bytes: float | None, *, on_cpu: bool = False) -> str:
    """One sentence: what the workload needs and, if that does not fit, what would."""
    need = estimate(load, on_cpu=on_cpu)
    devices = "the device" if load.devices == 1 else f"each of {load.devices} devices"
    text = f"about {format_gb(need.total)} on {devices} with {load.strategy} in {load.precision}"
    if need.host:
        text += f", and {format_gb(need.host)} of the host's memory for each"
    largest = format_gb(need.terms.by_name()[need.largest])
    text += f"; apart from the runtime the largest part is {need.largest} with {largest}"
    if device_bytes is None:
        return text
    if need.total <= device_bytes:
        return f"{text}: it fits into {format_gb(device_bytes)}"
    step = first_fitting(climb(load, device_bytes, on_cpu=on_cpu))
    way = f"no rung of the ladder fits: it needs {BEYOND}"
    if step is not None:
        way = f"the first that fits is {step.rung.name} with {format_gb(step.need.total)} ({step.rung.settings})"
    return f"{text}, more than the available {format_gb(device_bytes)}; {way}"


def choose_strategy(load: Workload, device_bytes: float | None) -> str:
    """What `auto` means: "ddp" if a whole replica fits into a device, else "fsdp". A single device cannot shard."""
    if load.offloads:
        return "fsdp"
    if load.devices == 1:
        return "ddp"
    if device_bytes is None:
        return "fsdp" if load.shape.parameters > UNKNOWN_DEVICE_PARAMETERS else "ddp"
    return "ddp" if estimate(_as_ddp(load)).total <= device_bytes else "fsdp"


@dataclass(frozen=True, kw_only=True)
class Relief:
    """A way out of a shortage. `change` returns the changed workload, or None if it does not apply."""

    change: Callable[[Workload], Workload | None]
    settings: Callable[[Workload], str]  # of the changed workload


def _cut_micro_batch(load: Workload) -> Workload | None:
    smaller = max((size for size in range(1, load.micro_batch) if load.micro_batch % size == 0), default=None)
    return None if smaller is None else replace(load, micro_batch=smaller, accumulates=True)


def _recompute(load: Workload) -> Workload | None:
    if load.recompute_every == 1 and not load.keeps_products:
        return None
    return replace(load, recompute_every=1, keeps_products=False)


def _shard(load: Workload) -> Workload | None:
    return None if load.devices == 1 or load.strategy == "fsdp" else _as_fsdp(load)


def _exchange_sooner(load: Workload) -> Workload | None:
    return replace(load, holds_gradients=False) if load.holds_gradients and load.is_sharded else None


def _offload(load: Workload) -> Workload | None:
    return None if load.offloads else replace(_as_fsdp(load), offloads=True)


# The order is the policy: the change that costs the least time comes first.
RELIEFS: tuple[Relief, ...] = (
    Relief(change=_cut_micro_batch, settings=lambda load: f"micro_batch: {load.micro_batch}, at the same global batch"),
    Relief(change=_recompute, settings=lambda load: "activation_checkpointing: full"),
    Relief(change=_shard, settings=lambda load: "strategy: fsdp"),
    Relief(change=_exchange_sooner, settings=lambda load: "gradient_sync: microbatch"),
    Relief(change=_offload, settings=lambda load: "strategy: fsdp, cpu_offload: true"),
)


def find_relief(load: Workload) -> tuple[str, float] | None:
    """The settings of the cheapest change that saves enough, and the bytes that it saves on each device."""
    need = estimate(load).terms.total
    for relief, changed in _reliefs_of(load):
        saved = need - estimate(changed).terms.total
        if saved > _WORTH * need:
            return relief.settings(changed), saved
    return None


def describe_shortage(load: Workload) -> str:
    """What takes most of the memory, and the cheapest way to need less. One line, for the message of a failure."""
    need = estimate(load)
    size = need.terms.by_name()[need.largest]
    text = f"by estimate the largest part is {need.largest}, {format_gb(size)} of {format_gb(need.terms.total)}"
    relief = find_relief(load)
    if relief is None:
        return f"{text}; it needs {BEYOND}"
    return f"{text}; try {relief[0]} (saves {format_gb(relief[1])})"


def _reliefs_of(load: Workload) -> Iterator[tuple[Relief, Workload]]:
    for relief in RELIEFS:
        changed = relief.change(load)
        if changed is not None:
            yield relief, changed


def _fits(need: Estimate, device_bytes: float | None) -> bool | None:
    return None if device_bytes is None else need.total <= device_bytes


def format_gb(size: float) -> str:
    return f"{size / _GB:.3g} GB" if size < 1000 * _GB else f"{size / _GB:.0f} GB"
