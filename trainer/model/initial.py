"""Build a user's model without memory if that is safe, and its initial values, equal at every world size.

It is built on the meta device if every parameter and buffer gets its value only from `reset_parameters` of the module
that owns it. Then each module is initialized again by itself, seeded by its name, and no rank ever holds more than one
module's full values. Any other model (initialized in `__init__`, with a computed buffer, with tied weights or weights
from a file) is built on the CPU of every rank from one seed, and copied from there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from types import FrameType

import torch
import xxhash
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode

from trainer.data.seeds import seed_all, seed_of
from trainer.errors import TaskError

Build = Callable[[], nn.Module]
Digests = dict[str, str]  # digests of full values by parameter or buffer name
Write = Callable[[nn.Module, Collection[str]], Digests]
_WRAPPERS = (nn.DataParallel, DistributedDataParallel, FullyShardedDataParallel, FSDPModule)
_RESET = "reset_parameters"
_NO_WRITES = ("requires_grad_", "share_memory_", "retain_grad_")


@dataclass(frozen=True)
class Draft:
    """A model on the meta device. `write` fills the named parameters and buffers once they have memory.

    It returns a digest of each, so that ranks can check that all have written the same.
    """

    model: nn.Module
    write: Write


def draft_model(build: Build, seed: int) -> Draft:
    """Raises TaskError if `build` returns no module. Exceptions of `build` propagate."""
    model = _build_on_meta(build)
    if model is not None:
        return Draft(model, _from_resets(build, seed))
    seed_all(seed_of("init", seed))
    model = _checked(build())
    values = {name: tensor.detach() for name, tensor in named_tensors(model).items()}
    _empty_onto_meta(model)
    return Draft(model, _from_values(values))


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers, also non-persistent ones. A shared one has its first name."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


@torch.no_grad()
def put(target: Tensor, full: Tensor) -> None:
    """Copy a full value into a parameter or buffer. Every rank has the value, so nothing is sent."""
    full = full.to(target.device)
    if isinstance(target, DTensor):
        full = distribute_tensor(full, target.device_mesh, target.placements, src_data_rank=None)
    target.copy_(full)


def digest(tensor: Tensor) -> str:
    """A digest of the bits of a CPU tensor."""
    content_N = tensor.detach().contiguous().flatten().view(torch.uint8).numpy()
    return str(xxhash.xxh3_64(content_N.data).hexdigest())


class Ties:
    """Tied parameters. `to_empty` makes a separate parameter for each place; `restore` ties them again."""

    def __init__(self, model: nn.Module) -> None:
        places: dict[int, list[tuple[nn.Module, str]]] = {}
        for module in model.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    places.setdefault(id(parameter), []).append((module, name))
        self._groups = [group for group in places.values() if len(group) > 1]

    def __bool__(self) -> bool:
        return bool(self._groups)

    def restore(self) -> None:
        for (first, first_name), *others in self._groups:
            for module, name in others:
                module._parameters[name] = first._parameters[first_name]


class _Writes(TorchFunctionMode):
    """Records in-place writes while a model is built."""

    def __init__(self) -> None:
        super().__init__()
        self.by_owner: set[int] = set()  # ids of tensors written by reset_parameters of their module
        self.is_pure = True  # no other code wrote in place

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]  # torch's own
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if _writes(name):
            self._note(args[0] if args else kwargs.get("tensor"))
        return func(*args, **kwargs)

    def _note(self, target: object) -> None:
        owner = _resetting_module()
        own = [] if owner is None else [*owner._parameters.values(), *owner._buffers.values()]
        base = getattr(target, "_base", None)
        written = next((tensor for tensor in own if tensor is not None and (tensor is target or tensor is base)), None)
        if written is None:
            self.is_pure = False
        else:
            self.by_owner.add(id(written))


def _writes(name: str) -> bool:
    in_place = name.endswith("_") and not name.endswith("__") and name not in _NO_WRITES
    return in_place or name in ("__setitem__", "__set__") or (name.startswith("__i") and name.endswith("__"))


def _resetting_module() -> nn.Module | None:
    """The innermost module whose reset_parameters is running."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        subject = frame.f_locals.get("self") if frame.f_code.co_name == _RESET else None
        if isinstance(subject, nn.Module):
            return subject
        frame = frame.f_back
    return None


def _build_on_meta(build: Build) -> nn.Module | None:
    """The model, or None if values come from other code than reset_parameters."""
    writes = _Writes()
    try:
        with torch.device("meta"), writes:
            model = build()
    except Exception:  # noqa: BLE001  # a real error occurs again on the CPU
        return None
    tensors = named_tensors(_checked(model)).values()
    if not writes.is_pure or Ties(model):
        return None
    return model if all(tensor.is_meta and id(tensor) in writes.by_owner for tensor in tensors) else None


def _checked(model: object) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise TaskError(f"model: returned a {type(model).__name__}, must return a torch.nn.Module")
    if isinstance(model, _WRAPPERS):
        raise TaskError(f"model: returned a {type(model).__name__}; return the model itself, the strategy wraps it")
    return model


def _from_resets(build: Build, seed: int) -> Write:
    def write(model: nn.Module, names: Collection[str]) -> Digests:
        targets, digests = named_tensors(model), {}
        with torch.device("meta"):
            twin = build()
        for path, module in twin.named_modules():
            own = [name for name in (*module._parameters, *module._buffers) if _join(path, name) in names]
            if not own:
                continue
            module.to_empty(device="cpu", recurse=False)
            seed_all(seed_of("init", seed, path))
            getattr(module, _RESET)()
            for name in own:
                digests[_join(path, name)] = digest(getattr(module, name))
                put(targets[_join(path, name)], getattr(module, name))
            module.to_empty(device="meta", recurse=False)
        return digests

    return write


def _from_values(values: dict[str, Tensor]) -> Write:
    def write(model: nn.Module, names: Collection[str]) -> Digests:
        targets = named_tensors(model)
        for name in names:
            put(targets[name], values[name])
        return {name: digest(values[name]) for name in names}

    return write


def _empty_onto_meta(model: nn.Module) -> None:
    ties = Ties(model)
    model.to_empty(device="meta")
    ties.restore()


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
