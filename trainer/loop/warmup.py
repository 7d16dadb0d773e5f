"""The warm-up of a spare worker: do once, with a tiny model, all that a start does on one rank.

The first run of any code is slow, mostly because of page faults. The warm-up leaves no group, no thread, no used random
numbers, and no files.
"""

from __future__ import annotations

import os
import shutil
import warnings
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save

from trainer import snapshot
from trainer.contract import env
from trainer.contract.clock import render_time
from trainer.contract.config import TrainerConfig
from trainer.contract.env import parse_place
from trainer.contract.fence import Term
from trainer.contract.manifest import CONTIGUOUS, Manifest, SnapshotName
from trainer.contract.shapes import Shape
from trainer.model.decoder import Decoder, build_initial
from trainer.parallel.materialize import allocate, initialize, refuse_unwritten
from trainer.parallel.optim import ShardedAdamW, build_optimizer, clip_gradients, gather_gradients, measure_norm
from trainer.parallel.precision import LossScale
from trainer.snapshot.lineage import Restore, begin_term, fence_of, folder_of
from trainer.snapshot.run_state import RunState
from trainer.snapshot.state_reading import read_alone

_SHAPE = Shape(width=32, layers=4, heads=4, feed_forward=96)
_TOKENS, _VOCABULARY = 32, 256


def warm_up(folder: Path) -> None:
    """Make `folder`, start from scratch, save, restore, train for a step, and delete it. Raises OSError."""
    threads, environ = torch.get_num_threads(), dict(os.environ)
    torch.set_num_threads(1)  # threads that OpenMP starts now would stay
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _go_through(folder)
    finally:
        torch.set_num_threads(threads)
        for name in os.environ.keys() - environ.keys():
            del os.environ[name]  # torch sets a folder for compiled code; the worker needs its own
        shutil.rmtree(folder, ignore_errors=True)


def _go_through(folder: Path) -> None:
    config = TrainerConfig()
    state, model, optimizer = _build(config)
    optimizer.prepare(model.parameters())
    initialize(model, partial(build_initial, seed=config.seed, layers=_SHAPE.layers))
    refuse_unwritten(model)
    restore = _save(state, folder)
    state, model, optimizer = _build(config)
    read_alone(state, restore)
    tokens_BT = torch.arange(_TOKENS + 1).unsqueeze(0)
    logits_BTV = model(tokens_BT[:, :-1])
    loss = F.cross_entropy(logits_BTV.flatten(0, 1), tokens_BT[:, 1:].flatten(), reduction="sum")
    if torch.cuda.is_available():
        return  # a backward pass would start CUDA before the worker knows its devices
    loss.backward()  # type: ignore[no-untyped-call]  # torch's
    gradients = gather_gradients(model.parameters())
    clip_gradients(gradients, measure_norm(gradients), config.grad_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def _build(config: TrainerConfig) -> tuple[RunState, Decoder, ShardedAdamW]:
    with torch.device("meta"):
        model = Decoder(_SHAPE, vocab_size=_VOCABULARY, dropout=config.dropout)
    allocate(model, torch.device("cpu"), home=torch.device("cpu"))
    optimizer = build_optimizer(model, config)
    state = RunState(LossScale(config.precision))
    state.attach(model, optimizer)
    return state, model, optimizer


def _save(state: RunState, folder: Path) -> Restore:
    """Commit a snapshot, then choose and verify it as a generation does."""
    place = parse_place({env.JOB_DIR: str(folder)})
    snapshots = folder_of(place)
    path = snapshots / str(SnapshotName(0, Term(place.attempt, 0)))
    path.parent.mkdir(parents=True)
    snapshot.claim(path)
    writer = FileSystemWriter(path, per_thread_copy_ahead=0)  # copy-ahead would start CUDA on device 0
    save(state.contents(), storage_writer=writer, no_dist=True)
    manifest = Manifest(
        step=0,
        attempt=place.attempt,
        generation=0,
        parent=None,
        at=render_time(datetime.now(timezone.utc)),
        world_size=1,
        strategy="ddp",
        samples_seen=0,
        files=snapshot.checksum_files(path, snapshot.files_of_rank(path, 0)),
        details=dict(CONTIGUOUS),
    )
    snapshot.commit(path, manifest)
    restore = begin_term(place, snapshots, fence_of(place), lambda *_: None).restore
    assert restore is not None
    return restore
