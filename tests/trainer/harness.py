"""Groups of real trainer processes, and handmade snapshots."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from trainer import snapshot
from trainer.contract import env, layout
from trainer.contract.manifest import FileEntry, Manifest, SnapshotName

ROOT = Path(__file__).parents[2]
TINY = {
    "preset": "nano",
    "seq_len": 32,
    "global_batch": 8,
    "micro_batch": 2,
    "steps": 62,
    "snapshot_interval": 12,
    "snapshot_keep": 10,
}


@dataclass
class Group:
    """Worker processes of one generation. Leaving the `with` block kills those that still run."""

    job_dir: Path
    replica_dir: Path
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()

    def wait(self, timeout_s: float = 400) -> list[int]:
        deadline = time.monotonic() + timeout_s
        return [process.wait(max(0.1, deadline - time.monotonic())) for process in self.processes]

    def outputs(self) -> str:
        return "".join(process.communicate(timeout=300)[0] for process in self.processes)

    def wait_for_step(self, step: int) -> None:
        def is_there() -> bool:
            assert all(process.poll() is None for process in self.processes), self.outputs()
            return max(self.losses(), default=0) >= step

        wait_for(is_there, f"step {step}")

    def wait_for_commit(self, step: int) -> None:
        wait_for(
            lambda: step in [event["evidence"]["step"] for event in self.events("snapshot.committed")],
            f"a snapshot of step {step}",
        )

    def steps(self) -> list[dict]:
        """Rank 0's progress lines of whole steps."""
        return [line for line in read_lines(self.replica_dir / layout.PROGRESS) if "loss" in line.get("metrics", {})]

    def losses(self) -> dict[int, float]:
        return {line["step"]: line["metrics"]["loss"] for line in self.steps()}

    def events(self, kind: str) -> list[dict]:
        return [line for line in read_lines(self.replica_dir / layout.EVENTS) if line["kind"] == kind]

    def committed(self) -> list[int]:
        return sorted(name.step for name in snapshot.list_committed(layout.snapshots_dir(self.job_dir)))


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = 150) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s} s for {what}"
        time.sleep(0.01)


def start_group(
    job_dir: Path,
    world_size: int,
    *,
    generation: int = 1,
    attempt: int = 1,
    entry: tuple[str, ...] = ("-m", "trainer"),
    variables: dict[str, str] | None = None,
    **config: object,
) -> Group:
    """Start `world_size` workers of a job, as an agent would."""
    replica_dir = layout.replica_dir(job_dir, attempt, 0) / str(generation)
    replica_dir.mkdir(parents=True)
    group, port = Group(job_dir, replica_dir), free_port()
    for rank in range(world_size):
        variables_of_rank = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "LOCAL_WORLD_SIZE": str(world_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            env.JOB_DIR: str(job_dir),
            env.ATTEMPT: str(attempt),
            env.GENERATION: str(generation),
            env.REPLICA_DIR: str(replica_dir),
            **(variables or {}),
        }
        command = [sys.executable, *entry, "--config", json.dumps({**TINY, **config})]
        group.processes.append(
            subprocess.Popen(
                command,
                env=variables_of_rank,
                cwd=job_dir,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        )
    return group


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def read_lines(path: Path) -> list[dict]:
    """The complete lines of a journal, without one that is being written."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def make_snapshot(snapshots: Path, name: SnapshotName, *, is_committed: bool = True) -> Path:
    """A snapshot without a model: enough for code that does not unpickle."""
    directory = snapshots / str(name)
    directory.mkdir(parents=True)
    contents = {".metadata": b"metadata", "__0_0.distcp": bytes(range(256)) * 40, "__1_0.distcp": b"shard of rank 1"}
    for file, content in contents.items():
        (directory / file).write_bytes(content)
    if is_committed:
        snapshot.commit(directory, make_manifest(name, snapshot.checksum_files(directory, list(contents))))
    return directory


def make_manifest(name: SnapshotName, files: dict[str, FileEntry]) -> Manifest:
    return Manifest(
        step=name.step,
        attempt=name.term.attempt,
        generation=name.term.generation,
        parent=None,
        at="2026-01-01T00:00:00.000000Z",
        world_size=2,
        strategy="ddp",
        samples_seen=name.step * 8,
        files=files,
    )
