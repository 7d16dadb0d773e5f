"""What is tried: on which ranks a training is killed, and on which it goes on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Leg:
    """A stretch of a training on one group of ranks. All but the last end by SIGKILL."""

    world_size: int
    strategy: str = "ddp"


@dataclass(frozen=True)
class Trial:
    """How it is computed, for how many steps, and how far from the undisturbed curve it may come."""

    name: str
    precision: str
    steps: int
    limit: float  # relative to the loss


FP32 = Trial("fp32", "fp32", 60, 1e-5)  # killed after step 10: 50 steps are compared
FP64 = Trial("fp64", "fp64", 300, 1e-12)
EXACT = Trial("exact", "fp32", 300, 0.0)
BY_ROUNDING = (FP32, FP64)


@dataclass(frozen=True)
class Case:
    name: str
    legs: tuple[Leg, ...]
    optimizer_impl: str = "fused"
    trials: tuple[Trial, ...] = BY_ROUNDING
    reference: Leg = Leg(2)
    is_naive: bool = False  # a batch for each rank, however many there are: has to be found out


CASES = (
    Case("2→2 ddp", (Leg(2), Leg(2)), trials=(EXACT,)),
    Case("2→2 fsdp", (Leg(2, "fsdp"), Leg(2, "fsdp")), trials=(EXACT,), reference=Leg(2, "fsdp")),
    Case(
        "2→2 shard_grad_op",
        (Leg(2, "shard_grad_op"), Leg(2, "shard_grad_op")),
        trials=(EXACT,),
        reference=Leg(2, "shard_grad_op"),
    ),
    Case("4→4 hsdp", (Leg(4, "hsdp"), Leg(4, "hsdp")), trials=(EXACT,), reference=Leg(4, "hsdp")),
    Case("2→2 foreach", (Leg(2), Leg(2)), optimizer_impl="foreach", trials=(EXACT,)),
    Case("2→2 plain", (Leg(2), Leg(2)), optimizer_impl="plain", trials=(EXACT,)),
    Case("3→3 ddp", (Leg(3), Leg(3)), trials=(EXACT,), reference=Leg(3)),
    Case("3→3 fsdp", (Leg(3, "fsdp"), Leg(3, "fsdp")), trials=(EXACT,), reference=Leg(3, "fsdp")),
    Case("2→1", (Leg(2), Leg(1))),
    Case("1→2", (Leg(1), Leg(2))),
    Case("2→3", (Leg(2), Leg(3))),
    Case("4→3→2", (Leg(4), Leg(3), Leg(2))),
    Case("ddp→fsdp", (Leg(2), Leg(2, "fsdp"))),
    Case("fsdp→ddp", (Leg(2, "fsdp"), Leg(2))),
    Case("fsdp 2→1", (Leg(2, "fsdp"), Leg(1, "fsdp"))),
    Case("fsdp 4→3→2", (Leg(4, "fsdp"), Leg(3, "fsdp"), Leg(2, "fsdp"))),
    Case("shard_grad_op 2→3", (Leg(2, "shard_grad_op"), Leg(3, "shard_grad_op"))),
    Case("hsdp 4→2", (Leg(4, "hsdp"), Leg(2, "hsdp"))),
    Case("foreach 2→1", (Leg(2), Leg(1)), optimizer_impl="foreach"),
    Case("plain fsdp 2→1", (Leg(2, "fsdp"), Leg(1, "fsdp")), optimizer_impl="plain"),
    Case("naive 2→1", (Leg(2), Leg(1)), trials=(FP32,), is_naive=True),
)
