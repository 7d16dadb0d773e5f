"""What ranks use: measured on real processes, stored within a limit, and summed up for a failure."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.elastic.harness import Job, wait_for
from tests.elastic.test_devices import Driver, NVMLError
from trainer.contract.clock import parse_time, render_time
from trainer.contract.failure import FailureKind
from trainer.contract.resource_sample import RankSample, Sample, parse_sample, summarize
from trainer.elastic.health.devices import Devices
from trainer.elastic.health.oom import read_memory_limit
from trainer.elastic.health.rank_meter import RankMeter
from trainer.elastic.records.resource_journal import NEWEST, ResourceJournal, thin

MB = 1_000_000
NO_GPU = Devices(None)
# Allocates 60 MB here and in a child, prints the child's pid, and uses the CPU until the end.
HUNGRY = """
import os, sys
held = bytearray(os.urandom(1) * 60_000_000)
child = os.fork()
if child == 0:
    held = bytearray(os.urandom(1) * 60_000_000)
    os.write(1, b"ready\\n")
    sys.stdin.read()
else:
    while True:
        pass
"""
START = datetime(2026, 1, 31, tzinfo=timezone.utc)


@contextmanager
def started(program: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program in a process group of its own, once it has printed a line."""
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_a_rank_uses_what_its_process_and_its_descendants_use() -> None:
    meter = RankMeter(NO_GPU, None)
    with started(HUNGRY) as process:
        (first,) = meter.measure({3: process.pid}, time.monotonic())
        assert first.rank == 3
        assert first.memory_bytes is not None
        assert 120 * MB <= first.memory_bytes < 400 * MB
        assert first.cpu_cores is None, "there is nothing to compare with"
        wait_for(lambda: (meter.measure({3: process.pid}, time.monotonic())[0].cpu_cores or 0) > 0, "use of the CPU")
        assert (first.gpu_memory_bytes, first.gpu_utilization) == (None, None)


def test_a_rank_that_has_vanished_is_omitted() -> None:
    meter = RankMeter(NO_GPU, None)
    with started(HUNGRY) as process, started(HUNGRY) as zombie:
        gone = subprocess.Popen([sys.executable, "-c", ""])
        gone.wait()
        zombie.kill()
        os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
        pids = {0: gone.pid, 1: process.pid, 2: zombie.pid}
        assert [each.rank for each in meter.measure(pids, time.monotonic())] == [1]


class MemoryDriver(Driver):
    """A driver with two GPUs of 80 GB. `used` has, for each GPU, the memory of each process."""

    def __init__(self, *used: dict[int, int | None], shares: tuple[int, ...] = (90, 10)) -> None:
        super().__init__(*[0 for _ in used], shares=shares)
        self.used = used

    def nvmlDeviceGetComputeRunningProcesses(self, device: int) -> list[Any]:  # noqa: N802
        return [SimpleNamespace(pid=pid, usedGpuMemory=held) for pid, held in self.used[device].items()]

    def nvmlDeviceGetMemoryInfo(self, device: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(total=80_000 * MB, used=5_000 * MB + device * MB)

    def nvmlDeviceGetHandleByUUID(self, name: str) -> int:  # noqa: N802
        return int(name.removeprefix("GPU-"))


def test_a_rank_uses_the_gpus_on_which_its_processes_hold_memory() -> None:
    devices = Devices(MemoryDriver({7: 100 * MB, 8: 50 * MB}, {8: 20 * MB, 9: 7 * MB}))
    found = devices.measure({0: [7], 1: [8, 80], 2: [6]}, {})
    assert {rank: (use.memory_bytes, use.utilization) for rank, use in found.items()} == {
        0: (100 * MB, 0.9),
        1: (70 * MB, 0.5),
    }
    assert found[1].total_bytes == 160_000 * MB


def test_without_processes_in_the_drivers_list_a_rank_uses_its_own_gpu() -> None:
    found = Devices(MemoryDriver({}, {})).measure({0: [7], 1: [8]}, {0: "GPU-1", 1: "0"})
    assert {rank: use.memory_bytes for rank, use in found.items()} == {0: 5_001 * MB, 1: 5_000 * MB}


def test_a_driver_that_does_not_tell_a_processs_memory_tells_that_of_the_gpu() -> None:
    assert Devices(MemoryDriver({7: None})).measure({0: [7]}, {})[0].memory_bytes == 5_000 * MB


def test_a_driver_that_fails_costs_only_its_own_values() -> None:
    class Slice(MemoryDriver):
        def nvmlDeviceGetUtilizationRates(self, device: int) -> SimpleNamespace:  # noqa: N802
            raise NVMLError(3)  # NVML_ERROR_NOT_SUPPORTED

    use = Devices(Slice({7: MB})).measure({0: [7]}, {})[0]
    assert (use.memory_bytes, use.utilization) == (MB, None)


def samples(number: int, *, every_s: float = 2.0, ranks: int = 8) -> list[Sample]:
    measured = tuple(RankSample(rank=rank, memory_bytes=1 << 34, cpu_cores=1.02) for rank in range(ranks))
    times = (render_time(START + timedelta(seconds=every_s * index)) for index in range(number))
    return [Sample(at=at, generation=1, ranks=measured) for at in times]


def test_the_file_keeps_its_limit_its_newest_minute_and_its_whole_span(tmp_path: Path) -> None:
    path, limit = tmp_path / "resources.jsonl", 32 * 1024
    journal, written = ResourceJournal(path, limit_bytes=limit), samples(10_000, ranks=2)
    for sample in written:
        journal.append(sample)
        assert path.stat().st_size <= limit
    found = [parse_sample(json.loads(line)) for line in path.read_text().splitlines()]
    assert found[-NEWEST:] == written[-NEWEST:]
    assert found[0] == written[0]
    older = [parse_time(each.at) for each in found[:-NEWEST]]
    gaps = sorted((after - before).total_seconds() for before, after in pairwise(older))
    span_s = (older[-1] - older[0]).total_seconds()
    assert gaps[-1] < span_s / 8, "no part of the history is empty"
    assert [path.name for path in tmp_path.iterdir()] == ["resources.jsonl"]


def test_wide_lines_keep_the_limit_too() -> None:
    lines = [json.dumps({"at": sample.at, "filler": "x" * 2000}) for sample in samples(50)]
    assert len(thin(lines, 10_000)) == 4
    assert thin(lines, 100) == []


@pytest.mark.parametrize("planted", ["not JSON", '{"at": 7}', '{"at": "yesterday"}', "[]", "[" * 9999, "\x00"])
def test_what_a_worker_writes_into_the_file_is_dropped(planted: str) -> None:
    lines = [json.dumps({"at": START.isoformat()}), planted]
    assert thin(lines, 1000) == lines[:1]


def test_a_pipe_a_folder_or_a_link_in_place_of_the_file_is_not_written_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "elsewhere").write_text("mine")
    (tmp_path / "link").symlink_to("elsewhere")
    for name in ("pipe", ".", "link"):
        with pytest.raises(OSError, match=name):
            ResourceJournal(tmp_path / name).append(*samples(1))
    assert (tmp_path / "elsewhere").read_text() == "mine"


def test_a_clock_that_is_set_back_does_not_drop_what_follows() -> None:
    before, after = samples(600), samples(600)
    lines = [json.dumps({"at": sample.at, "filler": "x" * 100}) for sample in (*before, *after)]
    kept = thin(lines, 40_000)
    newer = [line for line in kept if line in lines[600:]]
    assert len(newer) > NEWEST + 40


def minute(*used: tuple[int | None, int | None], of_gpu: bool = False) -> list[tuple[float, Sample]]:
    """A sample every two seconds with the memory of ranks 0 and 1."""
    name = "gpu_memory_bytes" if of_gpu else "memory_bytes"
    return [
        (
            2.0 * index,
            Sample(at="", generation=1, ranks=tuple(RankSample(rank=r, **{name: u}) for r, u in enumerate(pair))),
        )
        for index, pair in enumerate(used)
    ]


def test_the_last_minute_has_the_first_and_the_highest_value_and_that_of_all_ranks() -> None:
    found = summarize(minute((5, 1), (5, 9), (5, 7)), 1, 5.5, of_gpu=False, limit_bytes=16)
    assert found is not None
    assert (found.first_bytes, found.highest_bytes, found.node_bytes, found.limit_bytes) == (1, 9, 14, 16)
    assert (found.seconds, found.age_s) == (4.0, 1.5)


def test_without_a_sample_of_the_rank_nothing_is_known() -> None:
    assert summarize(minute((5, None)), 1, 9.0, of_gpu=False, limit_bytes=None) is None
    assert summarize(minute((5, 6)), 0, 9.0, of_gpu=True, limit_bytes=None) is None
    assert summarize([], 0, 9.0, of_gpu=False, limit_bytes=None) is None


def test_each_rank_has_gpus_of_its_own() -> None:
    found = summarize(minute((5, 7), of_gpu=True), 0, 9.0, of_gpu=True, limit_bytes=10)
    assert found is not None
    assert (found.highest_bytes, found.node_bytes, found.of_gpu) == (5, 5, True)


def test_the_limit_is_the_smallest_of_the_cgroup_those_above_it_and_the_machine(tmp_path: Path) -> None:
    proc, mount, meminfo = tmp_path / "proc", tmp_path / "cgroup", tmp_path / "meminfo"
    (mount / "pod" / "container").mkdir(parents=True)
    proc.mkdir()
    (proc / "cgroup").write_text("0::/pod/container\n")
    (proc / "mountinfo").write_text(f"31 23 0:27 / {mount} rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n")
    assert read_memory_limit(proc, meminfo) is None
    meminfo.write_text("MemTotal:       8000000 kB\n")
    (mount / "pod/container/memory.max").write_text("max\n")
    assert read_memory_limit(proc, meminfo) == 8_192_000_000
    (mount / "pod/memory.max").write_text("4096000\n")
    assert read_memory_limit(proc, meminfo) == 4_096_000
    (mount / "pod/container/memory.max").write_text("2048000\n")
    assert read_memory_limit(proc, meminfo) == 2_048_000


# Rank 1 allocates 150 MB. Once a sample shows that, rank 1 fails in generation 1, and all end in generation 2.
GREEDY = """
import json, os, pathlib, sys, time
rank, generation = int(os.environ["RANK"]), int(os.environ["ORCHESTRATOR_GENERATION"])
held = bytearray(os.urandom(1) * (150_000_000 if rank else 1))
path = pathlib.Path(os.environ["ORCHESTRATOR_REPLICA_DIR"], "resources.jsonl")
def is_sampled():
    newest = json.loads(path.read_text().splitlines()[-1]) if path.exists() else {"generation": 0}
    memory = newest.get("memory_bytes")
    return newest["generation"] == generation and len(memory) == 2 and memory[1] - memory[0] > 100_000_000
while not is_sampled():
    time.sleep(0.05)
sys.exit(rank if generation == 1 else 0)
"""


def test_an_agent_samples_its_ranks_in_each_generation(job: Job, tmp_path: Path) -> None:
    (tmp_path / "greedy.py").write_text(GREEDY)
    agent = job.policy(max_restarts=1).start("--nproc-per-node=2", str(tmp_path / "greedy.py"))
    assert agent.wait(280) == 0
    found = [parse_sample(json.loads(line)) for line in (agent.folder / "resources.jsonl").read_text().splitlines()]
    assert {each.generation for each in found} == {1, 2}
    pairs = [[one.memory_bytes or 0 for one in each.ranks] for each in found if each.generation == 2]
    assert any(memory[1] - memory[0] > 100 * MB for memory in pairs if len(memory) == 2)
    times = [parse_time(each.at) for each in found]
    assert times == sorted(times)


# Fails as Python does at a limit of setrlimit(2), once it has been sampled.
LIMITED = """
import os, pathlib, time
path = pathlib.Path(os.environ["ORCHESTRATOR_REPLICA_DIR"], "resources.jsonl")
while not path.exists():
    time.sleep(0.05)
raise MemoryError
"""


@pytest.mark.long
def test_a_memory_error_is_compared_with_no_limit(job: Job, tmp_path: Path) -> None:
    (tmp_path / "limited.py").write_text(LIMITED)
    agent = job.policy().start(str(tmp_path / "limited.py"))
    assert agent.wait(280) == 1
    failure = agent.exit_record().failure
    assert failure is not None
    assert failure.kind is FailureKind.HOST_OOM
    assert failure.last_minute is not None
    assert failure.last_minute.highest_bytes > MB
    assert failure.last_minute.limit_bytes is None
