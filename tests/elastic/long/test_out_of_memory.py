"""A worker that the kernel kills because its cgroup is full. The limit and the kill are real."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.elastic.harness import ELASTICRUN, Job, wait_for
from trainer.contract.failure import FailureKind

LIMIT = 1_200_000_000
V2, V1 = Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/memory")

# Rank 1 allocates memory without end, after a sample has shown that it runs.
ENDLESS = """
import os, pathlib, time
path = pathlib.Path(os.environ["ORCHESTRATOR_REPLICA_DIR"], "resources.jsonl")
while not path.exists() or os.environ["RANK"] == "0":
    time.sleep(0.05)
held = []
while True:
    held.append(bytearray(os.urandom(1) * 5_000_000))
    time.sleep(0.05)
"""
# Enters the cgroup, then becomes the agent.
ENTER = """
import os, pathlib, sys
pathlib.Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
os.execv(sys.executable, sys.argv[2:])
"""


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A cgroup with a memory limit."""
    parent, name = (V1, "memory.limit_in_bytes") if V1.exists() else (V2, "memory.max")
    folder = parent / f"test-{uuid.uuid4().hex}"
    try:
        folder.mkdir()
        (folder / name).write_text(str(LIMIT))
    except OSError as error:
        if folder.exists():
            folder.rmdir()
        pytest.skip(f"no cgroup with a memory limit can be made here: {error}")
    yield folder
    wait_for(lambda: not (folder / "cgroup.procs").read_text(), "end of the processes in the cgroup")
    folder.rmdir()


def test_a_host_oom_tells_the_last_minute_and_the_limit(cgroup: Path, job: Job, tmp_path: Path) -> None:
    (tmp_path / "endless.py").write_text(ENDLESS)
    program = [sys.executable, "-c", ENTER, str(cgroup), *ELASTICRUN]
    agent = job.policy().start("--nproc-per-node=2", str(tmp_path / "endless.py"), program=program)
    assert agent.wait(280) == 1
    failure = agent.exit_record().failure
    assert failure is not None
    assert (failure.kind, failure.rank) == (FailureKind.HOST_OOM, 1)
    found = failure.last_minute
    assert found is not None
    page = os.sysconf("SC_PAGE_SIZE")
    assert found.limit_bytes == LIMIT // page * page
    assert found.first_bytes < found.highest_bytes <= found.node_bytes
    assert not found.of_gpu
