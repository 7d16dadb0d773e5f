"""Real agents in a temporary run directory. Every wait has a timeout, and only processes started here are killed."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.recovery.agents import find_agent
from trainer.contract import env
from trainer.contract.exit_record import ExitRecord, parse_exit_record
from trainer.contract.launch import LaunchPolicy, render_policy
from trainer.elastic.health.processes import is_gone
from trainer.elastic.records.record import Record, open_record

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).with_name("scripts")
STEADY, COLLECTIVE, BROKEN, STUCK, AGREEING = (
    str(SCRIPTS / f"{name}.py") for name in ("steady", "collective", "broken", "stuck", "agreeing")
)
ELASTICRUN = [sys.executable, "-m", "trainer.elastic.elasticrun", "--monitor-interval=0.05"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
GUARD = [sys.executable, "-m", "trainer.elastic.guard", "--"]
CHILD = str(ROOT / "trainer/elastic/child.py")
TWO = "--nproc-per-node=2"

Found = TypeVar("Found")


def wait_for(find: Callable[[], Found | None], what: str, timeout_s: float = 150.0) -> Found:
    """Return the first result that is true."""
    deadline = time.monotonic() + timeout_s
    while not (found := find()):
        assert time.monotonic() < deadline, f"no {what} within {timeout_s} s"
        time.sleep(0.01)
    return found


def alive(pid: int) -> bool:
    return not is_gone(pid)


def signal_another_thread(pid: int, number: int) -> None:
    """Signal a thread that does not wait, as the kernel may."""
    other = next(int(each.name) for each in Path(f"/proc/{pid}/task").iterdir() if int(each.name) != pid)
    assert ctypes.CDLL(None).tgkill(pid, other, number) == 0


def build_record(folder: Path, *, replica: int = 0) -> Record:
    record = open_record({env.JOB_DIR: str(folder), env.JOB_ID: "j", env.CLAIM: "mine", env.REPLICA: str(replica)})
    assert record is not None
    return record


def elasticrun(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run elasticrun outside a job, to its end."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("ORCHESTRATOR_")}
    environ["PYTHONPATH"] = str(ROOT)
    command = [*ELASTICRUN, *arguments]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=150, check=False)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a journal that is being written."""
    complete, _, _ = (path.read_text() if path.exists() else "").rpartition("\n")
    return [json.loads(line) for line in complete.splitlines() if line]


@contextlib.contextmanager
def short_tmpdir() -> Iterator[str]:
    """A TMPDIR whose path is short enough for sockets (unix(7)), unlike pytest's folders."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        yield folder


@dataclass
class Agent:
    process: subprocess.Popen[bytes]
    folder: Path  # of its incarnation
    worker_pids: set[int] = field(default_factory=set)

    def events(self, kind: str | None = None) -> list[dict[str, object]]:
        events = read_lines(self.folder / "events.jsonl")
        return [event for event in events if kind in (None, event["kind"])]

    def progress(self, generation: int) -> list[dict[str, object]]:
        return [entry for entry in read_lines(self.folder / "progress.jsonl") if entry["generation"] == generation]

    def await_steps(self, generation: int) -> None:
        """Wait until ranks 0 and 1 have reported a step in the generation."""

        def reported() -> bool:
            return {entry["rank"] for entry in self.progress(generation)} >= {0, 1}

        wait_for(reported, f"step of both ranks in generation {generation}")

    @property
    def agent_pid(self) -> int:
        """The process that `process` keeps, and that looks after the workers. Waits until there is one."""
        return wait_for(lambda: find_agent(self.process.pid), "agent")

    def pids(self, generation: int) -> dict[int, int]:
        """The workers of a generation by rank, once it has started."""

        def started() -> list[dict[str, object]]:
            return [e for e in self.events("generation.started") if e["generation"] == generation]

        wait_for(started, f"generation {generation}")
        pids = {int(rank): pid for rank, pid in started()[0]["evidence"]["pids"].items()}
        self.worker_pids |= set(pids.values())
        return pids

    def wait(self, timeout_s: float = 150.0) -> int:
        return self.process.wait(timeout_s)

    def exit_record(self) -> ExitRecord:
        return parse_exit_record(json.loads((self.folder / "exit.json").read_text()))

    def log(self, generation: int = 1, local_rank: int = 0) -> str:
        path = self.folder / f"g{generation}" / f"local-{local_rank}" / "log"
        return path.read_text() if path.exists() else ""

    def printed(self) -> str:
        return (self.folder.parent / "agent.log").read_text()


@dataclass
class Job:
    """A run directory and the agents started in it."""

    folder: Path
    agents: list[Agent] = field(default_factory=list)

    @property
    def attempt(self) -> Path:
        return self.folder / "attempts" / "1"

    def policy(
        self,
        max_restarts: int = 0,
        stop_timeout_s: float = 2.0,
        log_limit_bytes: int = 1 << 20,
        refund_after_s: float = 3600.0,
        heartbeat_timeout_s: float | None = None,
    ) -> Job:
        self.attempt.mkdir(parents=True, exist_ok=True)
        policy = LaunchPolicy(
            max_restarts=max_restarts,
            stop_timeout_s=stop_timeout_s,
            log_limit_bytes=log_limit_bytes,
            refund_after_s=refund_after_s,
            heartbeat_timeout_s=heartbeat_timeout_s,
        )
        (self.attempt / "launch.json").write_text(json.dumps(render_policy(policy)))
        return self

    def start(
        self, *arguments: str, program: list[str] = ELASTICRUN, replica: int = 0, claim: str = "mine", **extra: str
    ) -> Agent:
        replica_dir = self.attempt / f"replica-{replica}"
        replica_dir.mkdir(parents=True, exist_ok=True)
        incarnation = 1 + sum(path.name.isdecimal() for path in replica_dir.iterdir())
        # torch.compile in an earlier test of this process has set TORCHINDUCTOR_CACHE_DIR.
        mine = ("ORCHESTRATOR_", "TORCHINDUCTOR_", "TRITON_")
        environ = {name: value for name, value in os.environ.items() if not name.startswith(mine)}
        environ |= {
            env.JOB_ID: "job-1",
            env.JOB_DIR: str(self.folder),
            env.ATTEMPT: "1",
            env.REPLICA: str(replica),
            env.CLAIM: claim,
            "PYTHONPATH": str(ROOT),
            **extra,
        }
        with (replica_dir / "agent.log").open("ab") as log:
            process = subprocess.Popen([*program, *arguments], env=environ, stdout=log, stderr=log)
        agent = Agent(process, replica_dir / str(incarnation))
        self.agents.append(agent)
        return agent

    def end(self) -> None:
        for agent in self.agents:
            if agent.process.poll() is None:
                agent.process.send_signal(signal.SIGKILL)
            agent.process.wait(90)
        pids = {pid for agent in self.agents for pid in agent.worker_pids}
        wait_for(lambda: not any(map(alive, pids)), "end of the workers")


def c10d(port: int, host: bool | None, read_timeout_s: int = 30, last_call_s: int = 1) -> list[str]:
    """Without `host`, replica 0 serves the store."""
    conf = f"join_timeout=60,read_timeout={read_timeout_s},last_call_timeout={last_call_s}"
    conf += ",keep_alive_interval=1,keep_alive_max_attempt=5"
    if host is not None:
        conf = f"is_host={int(host)},{conf}"
    return [
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint=127.0.0.1:{port}",
        "--rdzv-id=job-1-a1",
        f"--rdzv-conf={conf}",
        "--local-addr=127.0.0.1",
    ]
