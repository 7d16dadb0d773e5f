"""An agent without torch. Claim, journal, requests and exit record are the real ones.

It takes the arguments of `python -m trainer.elastic.elasticrun FLAGS --no-python -- COMMAND` and saves the two seconds
of CPU that importing torch takes. It forms no group and restarts nothing in place.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from trainer.contract import env
from trainer.contract.exit_record import EventKind, ExitRecord, Outcome
from trainer.contract.failure import Failure, FailureKind
from trainer.elastic.elasticrun import run_recorded
from trainer.elastic.records.record import Record, now
from trainer.elastic.stop import Stopped, StopRequest

CHILD = Path(sys.modules["trainer.elastic.elasticrun"].__file__ or "").with_name("child.py")
_STOP_S = 5


def run(argv: list[str], record: Record | None, stop: StopRequest) -> tuple[ExitRecord, str]:
    assert record is not None
    flags = dict(flag.removeprefix("--").split("=", 1) for flag in argv if flag.startswith("--") and "=" in flag)
    command = argv[argv.index("--") + 1 :]
    size = int(flags["nproc-per-node"])
    os.environ |= {env.GENERATION: "1", env.REPLICA_DIR: str(record.incarnation_dir), "WORLD_SIZE": str(size)}
    workers: list[subprocess.Popen[bytes]] = []
    try:
        stop.arm()
        for rank in range(size):
            ranks = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            child = [sys.executable, "-I", "-S", str(CHILD), "--parent", str(os.getpid()), "--local-rank", str(rank)]
            workers.append(subprocess.Popen([*child, *command], env={**os.environ, **ranks}))
        record.journal(EventKind.GENERATION_STARTED, "generation 1 started", 1, world_size=size, number=1)
        codes = [worker.wait() for worker in workers]
        stop.disarm()
    except Stopped:
        _end(workers)
        return ExitRecord(outcome=stop.outcome(record), at=now(), generation=1, restarts=0, failure=None), ""
    if any(codes):
        failure = Failure(kind=FailureKind.APPLICATION, message=f"workers exited with {codes}")
        return ExitRecord(outcome=Outcome.FAILED, at=now(), generation=1, restarts=0, failure=failure), ""
    return ExitRecord(outcome=Outcome.SUCCEEDED, at=now(), generation=1, restarts=0, failure=None), ""


def _end(workers: list[subprocess.Popen[bytes]]) -> None:
    for worker in workers:
        worker.terminate()
    for worker in workers:
        try:
            worker.wait(timeout=_STOP_S)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()


if __name__ == "__main__":
    sys.exit(run_recorded(run, sys.argv[sys.argv.index("trainer.elastic.elasticrun") + 1 :]))
