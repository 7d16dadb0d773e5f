"""The ranks of one leg, forked from this process, which has imported the trainer.

Each rank keeps a ledger of its model's input: a line for every forward pass, with a digest of each sequence.
"""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch
from torch import Tensor

from tests.trainer.harness import free_port, read_lines
from trainer import __main__ as program
from trainer import snapshot
from trainer.contract import env, layout
from trainer.loop import microbatches as shares
from trainer.model.decoder import Decoder

_PATIENCE_S = 600.0
_FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Leg:
    """A part of a training, on one group of ranks. All but the last leg end by SIGKILL."""

    world_size: int
    strategy: str = "ddp"


class LegFailed(Exception):
    """The ranks ended early or hang. The message has their output."""


@dataclass
class Ranks:
    """One generation of a job. Leaving the `with` block kills the ranks that still run."""

    job_dir: Path
    leg: Leg
    generation: int
    config: dict[str, object]
    is_naive: bool = False
    processes: list[BaseProcess] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return layout.replica_dir(self.job_dir, 1, 0) / str(self.generation)

    def __enter__(self) -> Ranks:
        self.folder.mkdir(parents=True)
        port = free_port()
        for rank in range(self.leg.world_size):
            process = _FORK.Process(target=_work, args=(self, rank, port))
            process.start()
            self.processes.append(process)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.join()

    def until_step(self, step: int) -> None:
        """Wait for a step. Raises LegFailed on timeout or if the ranks end first."""
        deadline = time.monotonic() + _PATIENCE_S
        while max(self.losses(), default=0) < step:
            if time.monotonic() > deadline or any(process.exitcode is not None for process in self.processes):
                raise LegFailed(self.printed())
            time.sleep(0.01)

    def until_end(self) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.exitcode != 0:
                raise LegFailed(self.printed())

    def committed(self) -> list[int]:
        return sorted(name.step for name in snapshot.list_committed(layout.snapshots_dir(self.job_dir)))

    def forget_after(self, step: int) -> None:
        """Remove newer snapshots, so that the next leg restores that of `step`."""
        for name in snapshot.list_named(layout.snapshots_dir(self.job_dir)):
            if name.step > step:
                snapshot.remove(layout.snapshots_dir(self.job_dir) / str(name))

    def losses(self) -> dict[int, float]:
        lines = read_lines(self.folder / layout.PROGRESS)
        return {line["step"]: line["metrics"]["loss"] for line in lines if "loss" in line.get("metrics", {})}

    def seen(self, first: int, last: int) -> list[str]:
        """Digests of the sequences of steps first .. last, without those that dummies repeated."""
        count = int(str(self.config["global_batch"])) // int(str(self.config["micro_batch"]))
        per_step = math.ceil(count / self.leg.world_size)
        digests: list[str] = []
        for rank in range(self.leg.world_size):
            passes = read_lines(self.folder / f"ledger-{rank}")[: (last - first + 1) * per_step]
            real = (line for place, line in enumerate(passes) if rank + place % per_step * self.leg.world_size < count)
            digests += [digest for line in real for digest in line]
        return digests

    def printed(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-3000:] for path in sorted(self.folder.glob("printed-*")))


def digest_of(sequence: bytes) -> str:
    return hashlib.blake2b(sequence, digest_size=8).hexdigest()


def assign_naively(rank: int, world_size: int, count: int) -> list[shares.Share]:
    """A common bug: the batch of each rank does not depend on the number of ranks."""
    per_rank = count // 2
    return [shares.Share(rank * per_rank + position, 2 / world_size) for position in range(per_rank)]


def _work(ranks: Ranks, rank: int, port: int) -> None:
    """Run a forked rank. Does not return."""
    with (ranks.folder / f"printed-{rank}").open("w") as printed:
        os.dup2(printed.fileno(), 1)
        os.dup2(printed.fileno(), 2)
    world_size = ranks.leg.world_size
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        env.JOB_DIR: str(ranks.job_dir),
        env.ATTEMPT: "1",
        env.GENERATION: str(ranks.generation),
        env.REPLICA_DIR: str(ranks.folder),
    }
    torch.set_num_threads(1)
    if ranks.is_naive:
        shares.assign_microbatches = assign_naively
    kept = _keep_ledger(Decoder.forward, ranks.folder / f"ledger-{rank}")
    Decoder.forward = kept  # type: ignore[assignment,method-assign]
    code = program.main(["--config", json.dumps({**ranks.config, "strategy": ranks.leg.strategy})])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _keep_ledger(forward: Callable[[Decoder, Tensor], Tensor], path: Path) -> Callable[[Decoder, Tensor], Tensor]:
    file = path.open("w", buffering=1)

    def run(model: Decoder, tokens_BT: Tensor) -> Tensor:
        rows = tokens_BT.to(torch.uint8).numpy()
        print(json.dumps([digest_of(row.tobytes()) for row in rows]), file=file)
        return forward(model, tokens_BT)

    return run
