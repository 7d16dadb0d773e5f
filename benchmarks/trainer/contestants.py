"""Two trainings of the same model, of which only one runs at a time: the other is stopped by a signal."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from trainer.contract import env, layout
from trainer.contract.clock import parse_time

_NEVER = 10**9
_HANDWRITTEN = str(Path(__file__).with_name("handwritten.py"))
_ROOT = str(Path(__file__).parents[2])
_PATIENCE_S = 120.0


@dataclass(frozen=True)
class Work:
    """What both sides train, `global_batch` sequences a step."""

    strategy: str  # plain, ddp or fsdp
    preset: str
    global_batch: int
    seq_len: int

    @property
    def world_size(self) -> int:
        return 1 if self.strategy == "plain" else 2


class NoStep(Exception):
    """A contestant made no step in time; the text holds what it printed."""


@dataclass
class Contestant:
    """Ours is `python -m trainer` as anyone starts it. Leave it by `end`."""

    work: Work
    is_ours: bool
    folder: Path
    ranks: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def lines(self) -> Path:
        return self.folder / layout.PROGRESS

    def start(self) -> None:
        self.folder.mkdir()
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        with (self.folder / "printed").open("ab") as printed:
            for rank in range(self.work.world_size):
                variables = {
                    **os.environ,
                    "OMP_NUM_THREADS": "1",
                    "PYTHONPATH": _ROOT,
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": str(self.work.world_size),
                    "LOCAL_WORLD_SIZE": str(self.work.world_size),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                    env.JOB_DIR: str(self.folder),
                    env.REPLICA_DIR: str(self.folder),
                }
                self.ranks.append(subprocess.Popen(self._command(), env=variables, stdout=printed, stderr=printed))
        self._until_steps(3)
        self.pause()

    def pause(self) -> None:
        for rank in self.ranks:
            rank.send_signal(signal.SIGSTOP)

    def run_for(self, seconds: float) -> list[float]:
        """Go on for a while; the times between steps that began and ended in it."""
        began = time.time()
        for rank in self.ranks:
            rank.send_signal(signal.SIGCONT)
        time.sleep(seconds)
        self.pause()
        ends = [end for end in self._ends() if end > began]
        return [later - earlier for earlier, later in itertools.pairwise(ends)]

    def steps(self) -> int:
        return len(self._ends())

    def cpu_s(self) -> float:
        """Seconds of CPU that its ranks have used so far (proc(5), stat, utime and stime)."""
        fields = [Path(f"/proc/{rank.pid}/stat").read_text().rpartition(")")[2].split() for rank in self.ranks]
        return sum(int(field[11]) + int(field[12]) for field in fields) / os.sysconf("SC_CLK_TCK")

    def end(self) -> None:
        for rank in self.ranks:
            rank.kill()
            rank.wait()

    def _command(self) -> list[str]:
        work = self.work
        if not self.is_ours:
            sizes = [work.preset, str(work.global_batch), str(work.seq_len)]
            return [sys.executable, _HANDWRITTEN, work.strategy, str(self.lines), *sizes]
        config = {
            "strategy": "fsdp" if work.strategy == "fsdp" else "ddp",
            "preset": work.preset,
            "global_batch": work.global_batch,
            "micro_batch": work.global_batch // work.world_size,
            "seq_len": work.seq_len,
            "steps": _NEVER,
            "snapshot_interval": str(_NEVER),
        }
        return [sys.executable, "-m", "trainer", "--config", json.dumps(config)]

    def _until_steps(self, count: int) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while len(self._ends()) < count:
            if time.monotonic() > deadline or any(rank.poll() is not None for rank in self.ranks):
                raise NoStep((self.folder / "printed").read_text(errors="replace")[-3000:])
            time.sleep(0.05)

    def _ends(self) -> list[float]:
        """When rank 0 ended each step, in seconds of the wall clock."""
        if not self.lines.exists():
            return []
        whole = [line for line in self.lines.read_text().splitlines(keepends=True) if line.endswith("\n")]
        if not self.is_ours:
            return [float(line.split()[0]) for line in whole]
        steps = (json.loads(line) for line in whole if '"loss"' in line)
        return [parse_time(step["at"]).timestamp() for step in steps]
