"""Other formats: a .safetensors file, a .pt file, and a folder in Hugging Face's layout.

Reading one runs no code that it contains.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from trainer.contract.manifest import Manifest
from trainer.contract.shapes import SHAPES
from trainer.errors import SnapshotError

_REST = "trainer_state"  # the values of a full state that are not tensors


def weights_of(flat: Mapping[str, Any]) -> dict[str, Tensor]:
    """The model's tensors of a full state, by the model's own names."""
    return {name.removeprefix("model."): value for name, value in flat.items() if name.startswith("model.")}


def write_safetensors(state: Mapping[str, Any], path: Path) -> None:
    """Values that are not tensors go into the file's metadata, as JSON."""
    tensors = {name: value.contiguous() for name, value in state.items() if isinstance(value, Tensor)}
    rest = {name: value for name, value in state.items() if not isinstance(value, Tensor)}
    save_file(tensors, path, metadata={"format": "pt", **({_REST: json.dumps(rest)} if rest else {})})


def write_folder(weights: dict[str, Tensor], manifest: Manifest, target: Path, max_shard_bytes: int) -> str:
    """Write config.json and model.safetensors, or shards and their index."""
    temporary = target.with_name(f".{target.name}.tmp")
    temporary.mkdir(parents=True)
    shards = cut(weights, max_shard_bytes)
    where: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        name = "model.safetensors" if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        write_safetensors(shard, temporary / name)
        where |= dict.fromkeys(shard, name)
    if len(shards) > 1:
        total = sum(tensor.nbytes for tensor in weights.values())
        index = {"metadata": {"total_size": total}, "weight_map": where}
        (temporary / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
    (temporary / "config.json").write_text(json.dumps(describe_model(manifest), indent=1))
    temporary.rename(target)
    return f"wrote weights of step {manifest.step} to {target}, {len(shards)} file(s)"


def cut(weights: Mapping[str, Tensor], max_bytes: int) -> list[dict[str, Tensor]]:
    """Group tensors, in order, into shards of at most `max_bytes`. A larger tensor gets its own shard."""
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in weights.items():
        if shards[-1] and size + tensor.nbytes > max_bytes:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += tensor.nbytes
    return shards


def describe_model(manifest: Manifest) -> dict[str, object]:
    """The bundled decoder's dimensions as a config.json of Llama."""
    config, data = manifest.details.get("config"), manifest.details.get("data")
    shape = SHAPES.get(str(config.get("preset"))) if isinstance(config, dict) else None
    known: dict[str, object] = {"model_type": "trainer-decoder", "torch_dtype": "float32", "step": manifest.step}
    if shape is None:
        return known
    return {
        **known,
        "architectures": ["Decoder"],
        "hidden_size": shape.width,
        "intermediate_size": shape.feed_forward,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "vocab_size": data.get("vocab_size") if isinstance(data, dict) else None,
        "tie_word_embeddings": False,
    }


def read_pt(source: Path) -> dict[str, Any]:
    """Read a torch.save file with weights_only. Raises SnapshotError."""
    try:
        state = torch.load(source, map_location="cpu", weights_only=True)
    except (UnpicklingError, EOFError, RuntimeError) as error:
        raise SnapshotError(f"{source} cannot be read: {str(error).splitlines()[0]}") from error
    if not isinstance(state, dict):
        raise SnapshotError(f"{source} holds a {type(state).__name__}, not a dictionary of tensors")
    return state


def read_safetensors(source: Path) -> dict[str, Any]:
    """Tensors by name, or the nested full state that `write_safetensors` wrote. Raises SnapshotError."""
    try:
        with safe_open(source, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no dictionary
            about = file.metadata() or {}
    except SafetensorError as error:
        raise SnapshotError(f"{source} cannot be read: {error}") from error
    return tensors if _REST not in about else _nest(tensors, json.loads(about[_REST]))


def _nest(tensors: dict[str, Any], rest: dict[str, Any]) -> dict[str, Any]:
    state: dict[str, Any] = {"model": weights_of(tensors), "optimizer": {}}
    for name, value in {**tensors, **rest}.items():
        kind, _, key = name.partition(".")
        parameter, _, moment = key.rpartition(".")
        if kind == "optimizer":
            state["optimizer"].setdefault(parameter, {})[moment] = value
        elif kind != "model":
            place = state if not key else state.setdefault(kind, {})
            place[key or kind] = value
    return state
