"""The state of a script's optimizer by parameter name: only what the optimizer has made so far, and all of that.

torch's own functions make a step to create the state that is missing. After it, a parameter that never had a gradient
has state, and counts one update too many. The layout of a snapshot is theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from trainer.snapshot.own_optimizer import create_state

State = dict[str, Any]  # `state` by parameter name, and `param_groups` with the names of their parameters


def read_optimizer(optimizer: Optimizer, model: nn.Module) -> State:
    """The live tensors and the options. Raises ValueError for a parameter that is not the model's."""
    names, packed, parameters = name_parameters(model), optimizer.state_dict(), _flatten(optimizer.param_groups)
    if any(parameter not in names for parameter in parameters):
        raise ValueError("the optimizer has a parameter that the model does not have: give one model that has them all")
    own = dict(zip(_flatten(packed["param_groups"]), map(names.__getitem__, parameters), strict=True))
    groups = [{**group, "params": [own[key] for key in group["params"]]} for group in packed["param_groups"]]
    return {"state": {own[key]: value for key, value in packed["state"].items()}, "param_groups": groups}


def find_targets(name: str, optimizer: Optimizer, model: nn.Module, metadata: Metadata) -> dict[str, Any]:
    """Memory for what a snapshot holds of the optimizer of this name, by the flat names of the snapshot.

    What the optimizer needs and the snapshot lacks is there, too, and cannot be read: it was another optimizer.
    """
    held = {flat: path[1:] for flat, path in _paths(metadata) if path[0] == name}
    parameters = {known: parameter for parameter, known in name_parameters(model).items()}
    with_state = {path[1] for path in held.values() if path[0] == "state"}
    own = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    create_state(optimizer, [each for known, each in parameters.items() if known in with_state and each in own])
    targets: dict[str, Any] = {}
    for known, parameter in parameters.items():
        if known in with_state:
            targets |= {f"{name}.state.{known}.{key}": None for key in optimizer.state.get(parameter, {})}
    count = 1 + max((path[1] for path in held.values() if path[0] == "param_groups"), default=-1)
    for number, group in enumerate(optimizer.param_groups[:count]):
        targets |= {f"{name}.param_groups.{number}.{key}": None for key in group}
    for flat, path in held.items():
        entry, owner = metadata.state_dict_metadata[flat], parameters.get(path[1])
        made = None if owner is None else optimizer.state.get(owner, {}).get(path[2])
        targets[flat] = _zeros_for(entry, owner, made) if isinstance(entry, TensorStorageMetadata) else None
    return targets


def nest(name: str, flat: Mapping[str, Any], metadata: Metadata) -> State:
    """What was read into `find_targets`, as `read_optimizer` returns it."""
    nested: dict[Any, Any] = {"state": {}, "param_groups": {}}
    for key, (owner, *parents, last) in _paths(metadata):
        if owner == name:
            place = nested
            for parent in parents:
                place = place.setdefault(parent, {})
            place[last] = flat[key]
    return {"state": _with_lists(nested["state"]), "param_groups": _with_lists(nested["param_groups"]) or []}


def write_optimizer(optimizer: Optimizer, model: nn.Module, found: State) -> None:
    """Give the optimizer this state. A parameter that joins it later gets its part then."""
    names = name_parameters(model)
    _load(optimizer, names, found)
    known = {names[parameter] for parameter in _flatten(optimizer.param_groups)}
    later = [group for group in found["param_groups"] if not known & set(group["params"])]
    if later:
        _load_later(optimizer, names, {"state": found["state"], "param_groups": later})


def name_parameters(model: nn.Module) -> dict[nn.Parameter, str]:
    """The names without the prefixes of wrappers such as DDP, from torch."""
    parameters = list(model.parameters())
    probe = torch.optim.SGD(parameters)
    probe.state[parameters[0]] = {}  # or torch makes a step
    found: dict[str, Any] = get_optimizer_state_dict(model, probe)
    (group,) = found["param_groups"]
    return dict(zip(parameters, group["params"], strict=True))


def _load(optimizer: Optimizer, names: Mapping[nn.Parameter, str], found: State) -> None:
    known = {name: group for group in found["param_groups"] for name in group["params"]}
    packed = optimizer.state_dict()
    state = dict[int, Any]()
    for key, parameter in zip(_flatten(packed["param_groups"]), _flatten(optimizer.param_groups), strict=True):
        own = found["state"].get(names[parameter]) if names[parameter] in known else packed["state"].get(key)
        if own is not None:
            state[key] = own
    groups = [
        {**packed_group, **known.get(names[group["params"][0]], {}), "params": packed_group["params"]}
        for packed_group, group in zip(packed["param_groups"], optimizer.param_groups, strict=True)
    ]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _load_later(optimizer: Optimizer, names: Mapping[nn.Parameter, str], found: State) -> None:
    add = optimizer.add_param_group

    def add_and_load(param_group: dict[str, Any]) -> None:
        add(param_group)
        added = {names[parameter] for parameter in optimizer.param_groups[-1]["params"]}
        own = [each for each in found["param_groups"] if added & set(each["params"])]
        _load(optimizer, names, {"state": found["state"], "param_groups": own})

    optimizer.add_param_group = add_and_load  # type: ignore[method-assign]


def _zeros_for(entry: TensorStorageMetadata, owner: Tensor | None, made: object) -> Tensor:
    """Memory for a tensor, if possible what the optimizer has made."""
    dtype = entry.properties.dtype
    if isinstance(made, Tensor) and made.shape == entry.size and made.dtype == dtype:
        return made
    if isinstance(owner, DTensor) and owner.shape == entry.size:
        return torch.zeros_like(owner, dtype=dtype)
    return torch.zeros(entry.size, dtype=dtype)


def _paths(metadata: Metadata) -> Iterator[tuple[str, tuple[Any, ...]]]:
    for flat, path in (metadata.planner_data or {}).items():
        if flat in metadata.state_dict_metadata:
            yield flat, path


def _with_lists(value: Any) -> Any:
    """DCP's paths have numbers for the places of a list."""
    if not isinstance(value, dict):
        return value
    inner = {key: _with_lists(each) for key, each in value.items()}
    is_list = inner and all(isinstance(key, int) for key in inner)
    return [inner[key] for key in sorted(inner)] if is_list else inner


def _flatten(groups: list[dict[str, Any]]) -> list[Any]:
    return list(chain.from_iterable(group["params"] for group in groups))
