"""The launchers and programs that are compared. Each pair runs in its own folder."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.recovery.agents import find_agent
from benchmarks.recovery.split import Kill, Split, read_lines, split_all
from deploy.dev.service import outer_environment
from trainer.contract import env, layout
from trainer.contract.exit_record import EventKind, parse_journal_event
from trainer.contract.launch import LaunchPolicy, render_policy

DEVICES = ("cpu", "cuda")
SNAPSHOT_EVERY = 10  # steps; the scripts have the same
_LOOK_EVERY_S = 0.01
_NEVER = 1_000_000_000
_SCRIPT = str(Path(__file__).with_name("user_script.py"))
_SUPERVISED_SCRIPT = str(Path(__file__).with_name("supervised_script.py"))
_HOOK = str(Path(__file__).with_name("hook"))
_CONFIG = {"steps": _NEVER, "global_batch": 2, "micro_batch": 1, "seq_len": 32}

LAUNCHERS = ("ours", "torchrun-safe", "torchrun")
OWN_SCRIPT = "own-script"
_SUPERVISED = {"script-supervised": (), "script-reentered": ("reenter",)}  # and the arguments
PROGRAMS = ("trainer-ddp", "trainer-fsdp", "trainer-hsdp", "script", *_SUPERVISED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """The device, and of the bundled trainer the size of the model and how often it copies its state into memory."""

    device: str = "cpu"
    preset: str = "nano"
    memory: str = "auto"

    def workers_of(self, program: str) -> int:
        """NCCL refuses two ranks on one GPU, so the trainer has one there. The script's two ranks share it by gloo."""
        return 1 if self.device == "cuda" and program.startswith("trainer-") else 2


ON_CPU = Setting()


@dataclass
class Training:
    """A launcher with its program. `folder` is the run directory; workers write their steps to `lines`."""

    launcher: str
    program: str
    folder: Path
    script: tuple[str, ...] = ()  # the user's script with its arguments, if the program is OWN_SCRIPT
    setting: Setting = ON_CPU
    process: subprocess.Popen[bytes] | None = None

    @property
    def workers(self) -> int:
        return self.setting.workers_of(self.program)

    @property
    def incarnation(self) -> Path:
        return layout.replica_dir(self.folder, 1, 0) / "1"

    @property
    def lines(self) -> Path:
        """The file with the steps: a progress journal, the output of our plain script, or what the hook writes."""
        if self.program == OWN_SCRIPT:
            return self.folder / "steps"
        return self.folder / "printed" if self.program == "script" else self.incarnation / layout.PROGRESS

    def start(self) -> None:
        open_attempt(self.folder)
        if self.launcher != "ours":
            self.incarnation.mkdir(parents=True)  # for the trainer's lines, as an agent makes it
        with (self.folder / "printed").open("ab") as printed:
            self.process = subprocess.Popen(
                self._command(),
                env=self._environment(),
                cwd=self.folder,
                stdout=printed,
                stderr=printed,
                start_new_session=True,
            )

    def has_ended(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    def find_agent(self) -> int:
        """The pid of elasticrun's agent, once there is one."""
        assert self.process is not None
        while (pid := find_agent(self.process.pid)) is None:
            time.sleep(_LOOK_EVERY_S)
        return pid

    def end(self) -> None:
        """Send SIGKILL to the launcher and all processes that it started."""
        if self.process is None:
            return
        session = self.process.pid
        self.process.kill()
        self.process.wait()
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and _belongs(entry, self.folder, session):
                try:
                    os.kill(int(entry.name), signal.SIGKILL)
                except ProcessLookupError:
                    continue

    def split(self, kills: Sequence[Kill]) -> list[Split]:
        """The parts of each restart's time. Empty for scripts, which report only their steps."""
        if not self.program.startswith("trainer-"):
            return []
        return split_all(kills, self.lines, self.incarnation / layout.EVENTS)

    def sources(self) -> Counter[str]:
        """How often the trainer or a supervised script restored from a survivor, from memory, and from disk."""
        events = read_lines(self.incarnation / layout.EVENTS)
        restored = (parse_journal_event(line) for line in events if line.get("kind") == EventKind.RESTORED.value)
        return Counter(str(event.evidence.get("source")) for event in restored)

    def printed(self) -> str:
        return (self.folder / "printed").read_text(errors="replace")[-2000:]

    def _command(self) -> list[str]:
        module = "trainer.elastic.elasticrun" if self.launcher == "ours" else "torch.distributed.run"
        flags = ["--standalone", f"--nproc-per-node={self.workers}", f"--max-restarts={_NEVER}"]
        if self.launcher != "torchrun":
            flags.append("--monitor-interval=0.05")
        return [sys.executable, "-m", module, *flags, *self._program()]

    def _program(self) -> list[str]:
        if self.program == "script":
            return [_SCRIPT, str(_NEVER), str(self.folder / "snapshot.pt"), self.setting.device]
        if self.program in _SUPERVISED:
            return [_SUPERVISED_SCRIPT, str(_NEVER), self.setting.device, *_SUPERVISED[self.program]]
        if self.program == OWN_SCRIPT:
            return list(self.script)
        data = self.folder / "data.txt"
        data.write_bytes(Path(contextlib.__file__).read_bytes())  # some text
        strategy = self.program.rpartition("-")[2]
        config = {**_CONFIG, "preset": self.setting.preset, "data": str(data), "strategy": strategy}
        config |= {"snapshot_interval": SNAPSHOT_EVERY, "snapshot_memory": self.setting.memory}
        return ["-m", "trainer", "--config", json.dumps(config)]

    def _environment(self) -> dict[str, str]:
        marks = {"RECOVERY_BENCHMARK": str(self.folder)}
        if self.program == OWN_SCRIPT:
            path = os.pathsep.join(part for part in (_HOOK, os.environ.get("PYTHONPATH", "")) if part)
            marks |= {"RECOVERY_STEPS": str(self.lines), "PYTHONPATH": path}
        elif self.program != "script":
            marks |= {env.JOB_ID: "recovery", env.JOB_DIR: str(self.folder), env.ATTEMPT: "1", env.REPLICA: "0"}
            marks |= {env.CLAIM: "recovery"} if self.launcher == "ours" else {env.REPLICA_DIR: str(self.incarnation)}
        if self.setting.device == "cpu" and self.program != OWN_SCRIPT:
            marks["CUDA_VISIBLE_DEVICES"] = ""  # otherwise the trainer would use the GPU
        if self.launcher == "torchrun-safe":
            marks["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        return outer_environment() | marks


def _belongs(entry: Path, folder: Path, session: int) -> bool:
    try:
        marked = f"RECOVERY_BENCHMARK={folder}".encode() in (entry / "environ").read_bytes().split(b"\0")
        return marked or int((entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[3]) == session
    except OSError:
        return False


def open_attempt(job_dir: Path) -> None:
    """Write the files of a first attempt with unlimited restarts, as the service does."""
    attempt = layout.attempt_dir(job_dir, 1)
    attempt.mkdir(parents=True)
    policy = LaunchPolicy(max_restarts=10**9, stop_timeout_s=10.0, log_limit_bytes=64 << 20)
    (attempt / layout.LAUNCH).write_text(json.dumps(render_policy(policy)))
