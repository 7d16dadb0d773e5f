"""One rank: real steps of a real model, and between them one snapshot of each kind in turn.

The stall of a snapshot is the excess time from its begin until the last rank may make the next update, compared with
the same part of a step without a snapshot. For a snapshot in the background, that update waits until the state is
staged. Then writing begins, which slows the same step if no core is idle. `ours, staged` delays the writing until the
update, and so shows the cost of staging alone.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from benchmarks.snapshot.setting import ASYNC, STAGED, SYNC, Setting
from trainer import snapshot
from trainer.contract.config import TrainerConfig
from trainer.contract.env import parse_place
from trainer.contract.fence import Term
from trainer.contract.shapes import SHAPES
from trainer.model.decoder import Decoder, build_initial
from trainer.parallel.materialize import initialize
from trainer.parallel.precision import LossScale
from trainer.parallel.trainee import Trainee, build_trainee
from trainer.snapshot.lineage import Beginning
from trainer.snapshot.run_state import RunState
from trainer.snapshot.saver import Saver, SnapshotInFlight
from trainer.snapshot.writing import Values
from trainer.worker.group import process_group
from trainer.worker.heartbeat import Heartbeat
from trainer.worker.run import Run
from trainer.worker.waits import Waits

_VOCABULARY = 256
_WARM_UP = 2  # steps


@dataclass
class Times:
    """Seconds on rank 0. Each list has one value per snapshot."""

    until_update: list[float] = field(default_factory=list)  # from the snapshot's begin
    whole_step: list[float] = field(default_factory=list)  # from the snapshot's begin to the end of the next step
    in_all: list[float] = field(default_factory=list)  # until the snapshot is on disk, or committed
    trained: list[float] = field(default_factory=list)  # all steps from the snapshot's begin until it is done
    steps: list[int] = field(default_factory=list)  # the number of those steps


class StagingSaver(Saver):
    """Stages during training as usual, but writes only once `may_write` is set."""

    may_write = threading.Event()

    def _finish(self, flight: SnapshotInFlight, staged: Values | Exception) -> None:
        self.may_write.wait()
        self.may_write.clear()
        super()._finish(flight, staged)


class Bench:
    def __init__(
        self, setting: Setting, trainee: Trainee, state: RunState, savers: dict[str, Saver], folder: Path
    ) -> None:
        self.setting, self.trainee, self.state, self.savers, self.folder = setting, trainee, state, savers, folder
        self.quiet = Times()
        self.updated_at = 0.0  # when this rank began its newest update
        self.times: dict[str, Times] = {}
        self.verified_s: list[float] = []
        for saver in savers.values():
            trainee.optimizer.register_step_pre_hook(saver.before_update)
        trainee.optimizer.register_step_pre_hook(self.note_update)  # after the waits of the savers

    def note_update(self, *_: object) -> None:
        finish(self.trainee.device)
        self.updated_at = time.perf_counter()
        StagingSaver.may_write.set()

    def step(self) -> float:
        started = time.perf_counter()
        generator = torch.Generator().manual_seed(self.state.step)
        size = self.setting.batch, self.setting.seq_len + 1
        tokens_BT = torch.randint(_VOCABULARY, size, generator=generator).to(self.trainee.device)
        with self.trainee.autocast():
            logits_BTV = self.trainee.forward(tokens_BT[:, :-1])
            loss = F.cross_entropy(logits_BTV.flatten(0, 1).float(), tokens_BT[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        self.trainee.optimizer.step()
        self.trainee.optimizer.zero_grad(set_to_none=True)
        self.state.step += 1
        barrier(self.trainee.device)
        return time.perf_counter() - started

    def measure(self, name: str, begin: Callable[[Path], None]) -> None:
        """Time a quiet step, then a snapshot with the step after it, then the steps until it is on disk."""
        times, path = self.times.setdefault(name, Times()), self.folder / "one"
        self.time_step(self.quiet, lambda: None)
        StagingSaver.may_write.clear()
        started = time.perf_counter()
        self.time_step(times, lambda: begin(path))
        saver, later_s = self.savers.get(name), list[float]()
        while saver is not None and self._broadcast(saver.is_busy):
            later_s.append(self.step())
        times.trained.append(times.whole_step[-1] + sum(later_s))
        times.steps.append(1 + len(later_s))
        if saver is not None:
            saver.settle()
        times.in_all.append(time.perf_counter() - started if saver is None else saver.cost.duration_s)
        self._clear(path)

    def time_step(self, times: Times, begin: Callable[[], None]) -> None:
        barrier(self.trainee.device)
        started = time.perf_counter()
        begin()
        self.step()
        times.whole_step.append(time.perf_counter() - started)
        until_update = torch.tensor(self.updated_at - started, dtype=torch.float64)
        dist.all_reduce(until_update, op=dist.ReduceOp.MAX)
        times.until_update.append(until_update.item())

    def _broadcast(self, is_so: bool) -> bool:
        flag = torch.tensor(float(is_so))
        dist.broadcast(flag, src=0)
        return bool(flag.item())

    def _clear(self, path: Path) -> None:
        """Remove the snapshot, and sync: the next one must not pay for it."""
        if dist.get_rank() == 0:
            for name in snapshot.list_committed(self.folder):
                started = time.perf_counter()
                snapshot.verify(self.folder / str(name))
                self.verified_s.append(time.perf_counter() - started)
                snapshot.remove(self.folder / str(name))
            shutil.rmtree(path, ignore_errors=True)
            os.sync()
        barrier(self.trainee.device)


def finish(device: torch.device) -> None:
    """Wait until the device has done its queued work, so that the work is timed and not the queueing."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def barrier(device: torch.device) -> None:
    """Wait for all ranks and their devices."""
    finish(device)
    dist.all_reduce(torch.zeros(()))


def save_with_torch(state: RunState, path: Path) -> None:
    """Save as DDP tutorials do: rank 0 writes one file and the others wait. Unlike there, it calls fsync."""
    if dist.get_rank() == 0:
        path.mkdir()
        with (path / "state.pt").open("wb") as file:
            torch.save(state.state_dict(), file)
            file.flush()
            os.fsync(file.fileno())
    dist.all_reduce(torch.zeros(()))


def save_with_dcp(state: RunState, path: Path) -> None:
    dcp_save({"run": state.state_dict()}, storage_writer=FileSystemWriter(path, sync_files=True))


def run(setting: Setting, folder: Path) -> dict[str, object] | None:
    place = parse_place(os.environ)
    heartbeat = Heartbeat(place, total_steps=0)
    waits = Waits(heartbeat)
    with process_group(place, waits) as device:
        bench = build(setting, device, heartbeat, waits, folder)
        play(bench)
        parameters = sum(parameter.numel() for parameter in bench.trainee.model.parameters())
        result = {
            "strategy": setting.strategy,
            "device": setting.device,
            "parameters": parameters,
            "quiet": vars(bench.quiet),
            "times": {name: vars(times) for name, times in bench.times.items()},
            "verify_s": bench.verified_s,
        }
        del bench
        gc.collect()
    return result if place.rank == 0 else None


def play(bench: Bench) -> None:
    """Measure every kind once per round. An extra first round allocates buffers and plans."""
    state = bench.state
    kinds: dict[str, Callable[[Path], None]] = {
        "dcp.save": lambda path: save_with_dcp(state, path),
        "torch.save": lambda path: save_with_torch(state, path),
        **{name: partial(_begin, saver, state) for name, saver in bench.savers.items()},
    }
    for _ in range(_WARM_UP):
        bench.step()
    for _ in range(bench.setting.rounds + 1):
        for name in bench.setting.kinds:
            bench.measure(name, kinds[name])


def _begin(saver: Saver, state: RunState, _: Path) -> None:
    saver.begin(state)


def build(setting: Setting, device: torch.device, heartbeat: Heartbeat, waits: Waits, folder: Path) -> Bench:
    config = TrainerConfig(
        preset=setting.preset, strategy=setting.strategy, seq_len=setting.seq_len, precision=setting.precision
    )
    place, state, shape = parse_place(os.environ), RunState(LossScale(config.precision)), SHAPES[config.preset]
    with torch.device("meta"):
        model = Decoder(shape, vocab_size=_VOCABULARY, dropout=0.0)

    def write_values(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        state.attach(model, optimizer)
        initialize(model, partial(build_initial, seed=0, layers=shape.layers))

    own = Run(
        config=config,
        place=replace(place, job_dir=None, snapshot_dir=str(folder)),
        device=device,
        heartbeat=heartbeat,
        waits=waits,
    )
    trainee = build_trainee(own, model, write_values)
    savers = {}
    kinds = {STAGED: (StagingSaver, "async"), ASYNC: (Saver, "async"), SYNC: (Saver, "sync")}
    for number, name in enumerate((name for name in setting.kinds if name in kinds), start=1):
        kind, mode = kinds[name]
        saved = replace(own, config=TrainerConfig(preset=config.preset, snapshot_mode=mode, snapshot_keep=1000))
        beginning = Beginning(term=Term(1, number), restore=None)
        savers[name] = kind(saved, beginning, strategy=trainee.layout.strategy, data={})
    return Bench(setting, trainee, state, savers, folder)


if __name__ == "__main__":
    setting_text, folder, output = sys.argv[1:]
    result = run(Setting(**json.loads(setting_text)), Path(folder))
    if result is not None:
        Path(output).write_text(json.dumps(result))
    sys.stdout.flush()
    os._exit(0)
