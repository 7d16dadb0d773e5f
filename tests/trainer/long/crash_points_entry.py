"""Kill a run of two ranks at each of its writes to the snapshots, and print what was left and restored, as JSON.

A point is a call that changes the folder of snapshots, or an fsync. Points are numbered in the order in which a rank
reaches them. The rank gets SIGKILL right before the call. torch is imported once, and every rank is forked.

The points are those of the second snapshot and of the deletion of the first. The repository must be on the path.
"""

import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.trainer.harness import TINY, free_port, read_lines
from trainer import __main__, snapshot
from trainer.contract import env, layout
from trainer.snapshot import lineage

CONFIG = {**TINY, "steps": 3, "snapshot_interval": 1, "snapshot_keep": 1}
WRITES = os.O_WRONLY | os.O_RDWR
CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir")
RANKS = 2


class Points:
    """Writes each point of this process to a file, and kills the process at one of them."""

    def __init__(self, folder: Path, reported: Path, crash_at: int | None) -> None:
        self.folder, self.reported, self.crash_at, self.count = str(folder), reported, crash_at, 0
        fsync = os.fsync

        def recorded_fsync(descriptor: int) -> None:
            self.pass_by("fsync", Path(f"/proc/self/fd/{descriptor}").readlink())
            fsync(descriptor)

        os.fsync = recorded_fsync
        sys.addaudithook(self.hear)

    def hear(self, event: str, arguments: tuple) -> None:
        if event in CHANGES or (event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITES):
            self.pass_by(event, arguments[0])

    def pass_by(self, event: str, path: object) -> None:
        text = os.fspath(path) if isinstance(path, (str, Path)) else str(path)
        inside = text.startswith(self.folder) or not text.startswith("/")
        if not inside or ".probe" in text:
            return
        with open(self.reported, "a") as file:  # noqa: PTH123  # outside the folder, so not a point
            file.write(f"{event} {text.removeprefix(self.folder)}\n")
        if self.count == self.crash_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1


def run(job_dir: Path, generation: int, crash_at: tuple[int, int] | None = None) -> list[int]:
    """Run one generation, and return the ranks' wait statuses."""
    replica_dir = layout.replica_dir(job_dir, 1, 0) / str(generation)
    replica_dir.mkdir(parents=True)
    port = free_port()
    children = [
        fork(lambda rank=rank: work(job_dir, replica_dir, generation, rank, port, crash_at)) for rank in range(RANKS)
    ]
    return [os.waitpid(child, 0)[1] for child in children]


def work(
    job_dir: Path, replica_dir: Path, generation: int, rank: int, port: int, crash_at: tuple[int, int] | None
) -> int:
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": RANKS, "LOCAL_WORLD_SIZE": RANKS, "MASTER_PORT": port}
    ours = {env.JOB_DIR: job_dir, env.GENERATION: generation, env.REPLICA_DIR: replica_dir, env.ATTEMPT: 1}
    os.environ.update({name: str(value) for name, value in {**place, **ours, "MASTER_ADDR": "127.0.0.1"}.items()})
    log = os.open(replica_dir / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    own_crash = crash_at[1] if crash_at is not None and crash_at[0] == rank else None
    Points(layout.snapshots_dir(job_dir), replica_dir / f"points-{rank}", own_crash)
    return __main__.main(["--config", json.dumps(CONFIG)])


def fork(action: Callable[[], int]) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = action()
        finally:
            os._exit(code)
    return child


def points_of(job_dir: Path, rank: int) -> list[str]:
    return (layout.replica_dir(job_dir, 1, 0) / f"1/points-{rank}").read_text().splitlines()


def journal(job_dir: Path, generation: int, kind: str) -> list[int]:
    events = read_lines(layout.replica_dir(job_dir, 1, 0) / f"{generation}/{layout.EVENTS}")
    return [event["evidence"]["step"] for event in events if event["kind"] == kind]


def play(job_dir: Path, rank: int, number: int) -> dict[str, object]:
    """Kill one rank at one point, begin the term of the next generation, and return the results."""
    job_dir.mkdir()
    snapshots = layout.snapshots_dir(job_dir)
    killed = run(job_dir, 1, (rank, number))
    committed = [name.step for name in snapshot.list_committed(snapshots)]
    place = env.parse_place({env.JOB_DIR: str(job_dir), env.GENERATION: "2"})
    beginning = lineage.begin_term(place, snapshots, lineage.fence_of(place), lambda *_: None)
    assert beginning.restore is not None
    return {
        "point": f"rank {rank}: {points_of(job_dir, rank)[-1]}",
        "killed": killed[rank] == signal.SIGKILL,
        "reported": journal(job_dir, 1, "snapshot.committed"),
        "committed": sorted(committed),
        "restored": beginning.restore.manifest.step,
        "left": len(list(snapshots.iterdir())),
    }


def main(folder: Path) -> None:
    CONFIG["data"] = str(folder / "corpus.txt")
    (folder / "corpus.txt").write_bytes(bytes(range(256)) * 64)
    (folder / "undisturbed").mkdir()
    assert run(folder / "undisturbed", 1) == [0] * RANKS, (
        folder / "undisturbed/attempts/1/replica-0/1/log"
    ).read_text()
    plays = []
    for rank in range(RANKS):
        points = points_of(folder / "undisturbed", rank)
        second = next(number for number, point in enumerate(points) if "step-00000002" in point)
        third = next(number for number, point in enumerate(points) if "step-00000003" in point)
        plays += [play(folder / f"{rank}-{number}", rank, number) for number in range(second, third + 1)]
    print(json.dumps(plays))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(Path(scratch).resolve())
