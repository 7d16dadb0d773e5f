"""Convert snapshots to and from other formats: those of `formats`, and any DCP directory.

A single file holds the whole state, or the weights alone by their own names. A folder always holds weights alone, which
other programs can read. Optimizer state is imported unchanged if it is keyed by parameter name; only the same kind of
optimizer can continue from it. Without it, the optimizer starts afresh. A DCP directory's `.metadata` is a pickle:
import it only from a source that you trust.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer import snapshot
from trainer.contract.clock import render_time
from trainer.contract.manifest import FRESH_OPTIMIZER, IMPORTED, Manifest
from trainer.errors import SnapshotError
from trainer.parallel.precision import LossScale
from trainer.snapshot import Location
from trainer.snapshot.formats import read_pt, read_safetensors, weights_of, write_folder, write_safetensors
from trainer.snapshot.run_state import KEY
from trainer.snapshot.whole import nest, read_flat, read_metadata, write_whole

KINDS = ("model", "optimizer")
_WRAPPERS = frozenset({"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
_WEIGHTS = ("model", "model_state_dict", "state_dict")
_OPTIMIZERS = ("optimizer", "optim", "optimizer_state_dict")


def export(directory: Location, target: Path, weights: bool, max_shard_bytes: int) -> str:
    """Write a snapshot to `target`, which must not exist, and return a summary. Raises SnapshotError, OSError."""
    manifest = snapshot.verify(directory)
    if target.exists():
        raise SnapshotError(f"{target} exists: choose another target")
    metadata = read_metadata(directory)
    flat = {name.removeprefix(f"{KEY}."): value for name, value in read_flat(directory, metadata).items()}
    if target.suffix not in (".pt", ".safetensors"):
        return write_folder(weights_of(flat), manifest, target, max_shard_bytes)
    temporary = target.with_name(f".{target.name}.tmp")
    if target.suffix == ".pt":
        whole = nest({f"{KEY}.{name}": value for name, value in flat.items()}, metadata)[KEY]
        torch.save(weights_of(flat) if weights else whole, temporary)
    else:
        write_safetensors(weights_of(flat) if weights else flat, temporary)
    temporary.rename(target)
    return f"wrote {'weights' if weights else 'state'} of step {manifest.step} to {target}"


def import_from(source: Path, directory: Path, step: int | None, weights_only: bool = False) -> str:
    """Make a snapshot in `directory`, which must not exist, and return a summary. Raises SnapshotError, OSError."""
    weights, states, rest = split(_read(source))
    optimizer = {} if weights_only else complete(weights, states)
    step = rest.get("step", 0) if step is None else step
    directory.mkdir(parents=True)
    samples_seen = rest.get("samples_seen", 0)
    counts = {"step": step, "samples_seen": samples_seen}
    rest = {"loss_scale": LossScale("fp32").state_dict(), **rest}
    write_whole({KEY: {**rest, "model": weights, "optimizer": optimizer, **counts}}, directory)
    files = snapshot.checksum_files(directory, sorted(path.name for path in directory.iterdir()))
    manifest = Manifest(
        step=step,
        attempt=0,
        generation=0,
        parent=None,
        at=render_time(datetime.now(timezone.utc)),
        world_size=1,
        strategy=IMPORTED,
        samples_seen=samples_seen,
        files=files,
        versions={"torch": torch.__version__},
        details={"imported_from": str(source.absolute()), **({} if optimizer else FRESH_OPTIMIZER)},
    )
    snapshot.commit(directory, manifest)
    return f"imported {len(weights)} tensors at step {step} into {directory}; {_describe_optimizer(optimizer)}"


def complete(weights: Mapping[str, Tensor], optimizer: dict[str, dict[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
    """Add zeros for weights without state, if all state is elementwise: an optimizer starts with zeros, too."""
    kinds = sorted({kind for state in optimizer.values() for kind in state})
    shapes = {(name, tensor.shape) for name, state in optimizer.items() for tensor in state.values()}
    if any(shape != weights[name].shape for name, shape in shapes):
        return optimizer
    states = {name: optimizer.get(name, {}) for name in weights}
    return {
        name: {kind: states[name].get(kind, torch.zeros_like(weight)) for kind in kinds}
        for name, weight in weights.items()
        if kinds
    }


def _describe_optimizer(optimizer: Mapping[str, Mapping[str, Any]]) -> str:
    if not optimizer:
        return "without optimizer state by parameter name: the run's optimizer starts afresh"
    kinds = ", ".join(sorted({kind for state in optimizer.values() for kind in state}))
    return f"with optimizer state ({kinds}): only an optimizer that keeps these can continue from it"


def split(state: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, dict[str, Tensor]], dict[str, Any]]:
    """Split a foreign state into weights by name, moments by parameter name, and the rest.

    The rest of a foreign state is its step alone. Raises SnapshotError.
    """
    while len(state) == 1 and isinstance(inner := next(iter(state.values())), Mapping):
        state = inner
    found = next((state[key] for key in _WEIGHTS if isinstance(state.get(key), Mapping)), state)
    weights = {clean_name(name): value for name, value in found.items() if isinstance(value, Tensor)}
    if not weights:
        raise SnapshotError(
            f"no weights found: neither tensors nor one of {', '.join(_WEIGHTS)} among {list(state)[:8]}"
        )
    optimizer: Mapping[str, Any] = next((state[key] for key in _OPTIMIZERS if isinstance(state.get(key), Mapping)), {})
    optimizer = optimizer.get("state", optimizer)
    states = {clean_name(name): _tensors(value) for name, value in optimizer.items() if isinstance(name, str)}
    ours = "samples_seen" in state
    rest = {name: value for name, value in state.items() if (ours and name not in KINDS) or name == "step"}
    return weights, {name: value for name, value in states.items() if value and name in weights}, rest


def _tensors(state: object) -> dict[str, Tensor]:
    """The optimizer's state of a parameter, without its step count: the snapshot's step replaces it."""
    items = state.items() if isinstance(state, Mapping) else ()
    return {name: value for name, value in items if isinstance(value, Tensor) and name != "step"}


def clean_name(name: str) -> str:
    """Strip what DDP, FSDP, torch.compile and activation checkpointing add to a parameter's name."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def _read(source: Path) -> dict[str, Any]:
    """Read a state with the nesting that it was saved with. Raises SnapshotError."""
    if (source / ".metadata").exists():
        metadata = read_metadata(source)
        return nest(read_flat(source, metadata), metadata)
    if source.is_dir():
        files = sorted(source.glob("*.safetensors"))
        return {name: tensor for file in files for name, tensor in read_safetensors(file).items()}
    return read_safetensors(source) if source.suffix == ".safetensors" else read_pt(source)
