"""The warm-up of a spare worker: do once, with a tiny model, all that a restart does, in a group of one rank.

The first run of any code is slow, mostly because of page faults. The warm-up leaves no group, no thread, no used random
numbers, and no files.
"""

from __future__ import annotations

import gc
import os
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save
from torch.optim import Optimizer

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
from trainer.parallel.replication import wrap
from trainer.parallel.trainee import build_trainee
from trainer.snapshot.handover import Handover
from trainer.snapshot.lineage import Restore, begin_term, fence_of, folder_of
from trainer.snapshot.memory_reading import find_states
from trainer.snapshot.run_state import RunState
from trainer.snapshot.state_reading import read_alone, read_state
from trainer.worker.agreement import on_rank_zero
from trainer.worker.heartbeat import Heartbeat
from trainer.worker.malloc import keep_freed_memory
from trainer.worker.run import Run
from trainer.worker.torch_compat import keep_process_groups, release_process_groups
from trainer.worker.waits import Waits

_SHAPE = Shape(width=32, layers=4, heads=4, feed_forward=96)
_TOKENS, _VOCABULARY = 32, 256
_CPU = torch.device("cpu")
_KEPT_BYTES = 31 << 20  # more would not stay (malloc.py)


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
    state = _build(config)
    assert isinstance(state.optimizer, ShardedAdamW)
    state.optimizer.prepare(state.model.parameters())
    initialize(state.model, partial(build_initial, seed=config.seed, layers=_SHAPE.layers))
    refuse_unwritten(state.model)
    on_disk = _save(state, folder)
    if torch.cuda.is_available():  # training would start CUDA before the worker knows its devices
        read_alone(_build(config), on_disk)
        return
    with suppress(RuntimeError), _group_of_one():  # the worker will report what is wrong with the network
        with _handed_over(state, on_disk) as in_memory:
            _train(replace(config, strategy="ddp"), in_memory)
        _train(replace(config, strategy="fsdp"), on_disk)
    keep_freed_memory(os.environ)
    torch.empty(_KEPT_BYTES, dtype=torch.uint8).fill_(0)  # the worker allocates it again, without page faults


def _draft(config: TrainerConfig) -> Decoder:
    with torch.device("meta"):
        return Decoder(_SHAPE, vocab_size=_VOCABULARY, dropout=config.dropout)


def _build(config: TrainerConfig) -> RunState:
    model, state = _draft(config), RunState(LossScale(config.precision))
    allocate(model, _CPU, home=_CPU)
    state.attach(model, build_optimizer(model, config))
    return state


@contextmanager
def _group_of_one() -> Iterator[None]:
    """A group without other ranks, that leaves no thread."""
    keep_process_groups()
    excepthook = sys.excepthook  # the group replaces it by one that adds its rank
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        gc.collect()  # the group ends only when nothing refers to it
        dist.destroy_process_group()
        release_process_groups().join()
        sys.excepthook = excepthook


def _train(config: TrainerConfig, restore: Restore) -> None:
    """Restore a state and make a step of one rank, with all that several ranks do together."""
    place, state = parse_place({}), RunState(LossScale(config.precision))
    heartbeat = Heartbeat(place, total_steps=None)
    run = Run(config=config, place=place, device=_CPU, heartbeat=heartbeat, waits=Waits(heartbeat))

    def write_values(model: nn.Module, optimizer: Optimizer) -> None:
        state.attach(model, optimizer)
        read_state(state, restore, run.waits)

    on_rank_zero(lambda: restore, run.waits)
    trainee = build_trainee(run, _draft(config), write_values)
    forward = trainee.forward if trainee.layout.is_sharded else wrap(trainee.model, config, run.device)
    tokens_BT = torch.arange(_TOKENS + 1).unsqueeze(0)
    logits_BTV = forward(tokens_BT[:, :-1])
    loss = F.cross_entropy(logits_BTV.flatten(0, 1), tokens_BT[:, 1:].flatten(), reduction="sum")
    dist.all_reduce(torch.zeros(2, dtype=torch.float64))
    loss.backward()  # type: ignore[no-untyped-call]  # torch's
    gradients = gather_gradients(trainee.parameters.values())
    clip_gradients(gradients, measure_norm(gradients), config.grad_clip)
    trainee.optimizer.step()
    trainee.optimizer.zero_grad(set_to_none=True)


@contextmanager
def _handed_over(state: RunState, restore: Restore) -> Iterator[Restore]:
    """The state in memory, as a survivor leaves it."""
    file = os.memfd_create("warmup")
    try:
        memory = env.render_files(os.getpid(), [[file] * 3])
        place = parse_place({"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", env.MEMORY: memory})
        Handover(place, is_wanted=True).write(state, lambda: restore.manifest)
        (found,) = find_states([str(place.own_handover)]).values()
        found.verify()
        yield replace(restore, memory=found.files, source=found.source)
    finally:
        os.close(file)


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
