"""Two trainings of the same model, of which one runs at a time while the other is stopped by a signal.

A stopped one keeps its memory, also on a GPU, and queues no more work. This needs a single rank on a GPU: with several,
a stopped rank would leave the kernels of the others spinning.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.frame import start_ranks
from benchmarks.trainer.work import Work
from trainer.contract import env, layout
from trainer.contract.clock import parse_time
from trainer.contract.copy_record import RECORD_BYTES, parse_record
from trainer.elastic.memory_files import MemoryFiles

_NEVER = 10**9
_HANDWRITTEN = str(Path(__file__).with_name("handwritten.py"))
_ROOT = str(Path(__file__).parents[2])
_PATIENCE_S, _COMPILES_WITHIN_S = 120.0, 600.0
_SETTLE_S = {"cpu": 0.0, "cuda": 1.0}  # until a device has done the work that a stopped process had queued


@dataclass(frozen=True, slots=True)
class End:
    """The end of a step: seconds of the wall clock, and the number of the step."""

    at_s: float
    step: int


@dataclass
class Contestant:
    """Ours is `python -m trainer`, but with DDP's wrapper also for a single rank. Call `end` when done.

    With `has_copies` its ranks have files in memory, as under `elasticrun`, and so copy their state.
    """

    work: Work
    is_ours: bool
    folder: Path
    has_copies: bool = False
    ranks: list[subprocess.Popen[bytes]] = field(default_factory=list)
    files: MemoryFiles | None = None
    turns_with_copy: int = 0  # a new copy was complete at their end

    @property
    def lines(self) -> Path:
        return self.folder / layout.PROGRESS

    def start(self) -> None:
        self.folder.mkdir()
        marks = {"PYTHONPATH": _ROOT, env.JOB_DIR: str(self.folder), env.REPLICA_DIR: str(self.folder)}
        if self.has_copies:
            self.files = MemoryFiles(self.work.world_size)
            marks |= self.files.environment
        with (self.folder / "printed").open("ab") as printed:
            self.ranks = start_ranks(self._command(), self.work.world_size, self.work.device, printed, **marks)
        self._until_steps(3)
        self.pause()

    def pause(self) -> None:
        for rank in self.ranks:
            rank.send_signal(signal.SIGSTOP)
        time.sleep(_SETTLE_S[self.work.device])

    def run_for(self, seconds: float) -> list[float]:
        """Continue for a while. Returns the seconds per step of each window that began and ended in that time."""
        began, copied = time.time(), self._newest_copy()
        for rank in self.ranks:
            rank.send_signal(signal.SIGCONT)
        time.sleep(seconds)
        self.pause()
        self._refuse_ended()
        self.turns_with_copy += self._newest_copy() != copied
        return times_of_steps([end for end in self._ends() if end.at_s > began], self.work.window)

    def steps(self) -> int:
        return max((end.step for end in self._ends()), default=0)

    def cpu_s(self) -> float:
        """Seconds of CPU that its ranks have used so far (proc(5), stat, utime and stime)."""
        fields = [Path(f"/proc/{rank.pid}/stat").read_text().rpartition(")")[2].split() for rank in self.ranks]
        return sum(int(field[11]) + int(field[12]) for field in fields) / os.sysconf("SC_CLK_TCK")

    def ideal_step_s(self) -> float | None:
        """The ideal step time that our MFU uses. None if the trainer knows no peak of the device."""
        reported = (line["metrics"] for line in self._read_steps())
        return next((metrics["mfu"] * metrics["step_s"] for metrics in reported if "mfu" in metrics), None)

    def end(self) -> None:
        for rank in self.ranks:
            rank.kill()
            rank.wait()
        if self.files is not None:
            self.files.close()

    def _command(self) -> list[str]:
        work = self.work
        if not self.is_ours:
            return [sys.executable, _HANDWRITTEN, str(self.lines), json.dumps(asdict(work))]
        is_alone = work.strategy == "ddp" and work.world_size == 1
        module = "benchmarks.trainer.wrapped" if is_alone else "trainer"
        return [sys.executable, "-m", module, "--config", json.dumps(config_of(work))]

    def _until_steps(self, count: int) -> None:
        deadline = time.monotonic() + _PATIENCE_S + (_COMPILES_WITHIN_S if self.work.is_compiled else 0.0)
        while len(self._ends()) < count or not self._has_copied():
            self._refuse_ended(is_late=time.monotonic() > deadline)
            time.sleep(0.05)

    def _refuse_ended(self, *, is_late: bool = False) -> None:
        """Raise RuntimeError with what the ranks printed, if one has ended."""
        if is_late or any(rank.poll() is not None for rank in self.ranks):
            raise RuntimeError((self.folder / "printed").read_text(errors="replace")[-3000:])

    def _has_copied(self) -> bool:
        """Whether each rank has filled its files. The first copies take longer: they are planned, and get memory."""
        files = [] if self.files is None else [file for own in self.files.copies for file in own]
        return all(parse_record(os.pread(file, RECORD_BYTES, 0)) for file in files)

    def _newest_copy(self) -> list[bytes]:
        """What identifies the newest copy of each rank in memory."""
        files = () if self.files is None else self.files.served()
        return [os.pread(file, RECORD_BYTES, 0) for file in files]

    def _ends(self) -> list[End]:
        """When rank 0 ended the last step of each window."""
        if self.is_ours:
            ends = [End(parse_time(line["at"]).timestamp(), line["step"]) for line in self._read_steps()]
        else:
            ends = [End(float(at), int(step)) for at, step, _ in map(str.split, self._whole_lines())]
        return [end for end in ends if end.step % self.work.window == 0]

    def _read_steps(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._whole_lines() if '"loss"' in line]

    def _whole_lines(self) -> list[str]:
        if not self.lines.exists():
            return []
        return [line for line in self.lines.read_text().splitlines(keepends=True) if line.endswith("\n")]


def times_of_steps(ends: list[End], window: int) -> list[float]:
    """Seconds per step, between each window's end and the end `window` steps later."""
    return [
        (later.at_s - earlier.at_s) / window
        for earlier, later in itertools.pairwise(ends)
        if later.step - earlier.step == window
    ]


def config_of(work: Work) -> dict[str, object]:
    config: dict[str, object] = {
        "strategy": "fsdp" if work.strategy == "fsdp" else "ddp",
        "preset": work.preset,
        "global_batch": work.global_batch,
        "micro_batch": work.global_batch // work.world_size,
        "seq_len": work.seq_len,
        "precision": work.precision,
        "compile": work.is_compiled,
        "steps": _NEVER,
        "snapshot_interval": str(_NEVER),
    }
    return config if work.peak_tflops is None else {**config, "peak_tflops": work.peak_tflops}
