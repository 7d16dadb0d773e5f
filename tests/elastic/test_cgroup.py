"""The kernel's count of out-of-memory kills, and its use for the failure of a killed worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.elastic.test_postmortem import death
from trainer.contract.failure import FailureKind
from trainer.elastic.health.cgroup import find_counters, parse_oom_kills
from trainer.elastic.health.oom import read_free_memory, read_oom_kills
from trainer.elastic.health.postmortem import find_failure

EVENTS_V2 = "low 0\nhigh 12\nmax 340\noom 3\noom_kill 2\noom_group_kill 0\n"
OOM_CONTROL_V1 = "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n"
V2 = "31 23 0:27 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "40 23 0:33 / /sys/fs/cgroup/memory rw shared:17 - cgroup cgroup rw,memory\n"
CPU = "41 23 0:34 / /sys/fs/cgroup/cpu rw shared:18 - cgroup cgroup rw,cpu\n"


def test_both_versions_of_cgroups_use_one_name() -> None:
    assert parse_oom_kills(EVENTS_V2) == 2
    assert parse_oom_kills(OOM_CONTROL_V1) == 4


@pytest.mark.parametrize("text", ["", "oom 3\n", "oom_kill\n", "oom_kill x\n", "oom_kill -1\n", "oom_group_kill 3\n"])
def test_a_text_without_the_counter_is_unknown(text: str) -> None:
    assert parse_oom_kills(text) is None


def paths(cgroups: str, mounts: str) -> list[str]:
    return [str(path) for path in find_counters(cgroups, mounts)]


def test_version_2_is_found_below_its_mount() -> None:
    expected = "/sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/memory.events"
    assert paths("0::/system.slice/slurmstepd.scope/job_7\n", V2) == [expected]


def test_in_a_container_the_path_is_relative_to_the_mounted_part() -> None:
    mounts = V1.replace(" / /sys", " /docker/abc /sys")
    assert paths("4:memory:/docker/abc\n", mounts) == ["/sys/fs/cgroup/memory/memory.oom_control"]
    assert paths("4:memory:/docker/abc/inner\n", mounts) == ["/sys/fs/cgroup/memory/inner/memory.oom_control"]
    assert paths("4:memory:/elsewhere\n", mounts) == ["/sys/fs/cgroup/memory/memory.oom_control"]


def test_on_a_hybrid_machine_version_1_comes_first() -> None:
    found = paths("4:cpu,memory:/a\n1:name=systemd:/a\n0::/a\n", V2 + CPU + V1)
    assert found == ["/sys/fs/cgroup/memory/a/memory.oom_control", "/sys/fs/cgroup/a/memory.events"]


@pytest.mark.parametrize(("cgroups", "mounts"), [("", ""), ("0::/\n", ""), ("", V2), ("4:memory\n", "- - -\n1 2\n")])
def test_a_machine_without_cgroups_has_no_counter(cgroups: str, mounts: str) -> None:
    assert paths(cgroups, mounts) == []


def test_the_counter_is_read_from_the_file_that_proc_names(tmp_path: Path) -> None:
    proc, mount = tmp_path / "proc", tmp_path / "cgroup"
    (mount / "job").mkdir(parents=True)
    proc.mkdir()
    (proc / "cgroup").write_text("0::/job\n")
    (proc / "mountinfo").write_text(V2.replace("/sys/fs/cgroup", str(mount)))
    assert read_oom_kills(proc) is None
    (mount / "job" / "memory.events").write_text(EVENTS_V2)
    assert read_oom_kills(proc) == 2


def test_free_memory_is_the_least_of_the_machine_and_of_each_limited_cgroup(tmp_path: Path) -> None:
    proc, mount, meminfo = tmp_path / "proc", tmp_path / "cgroup", tmp_path / "meminfo"
    (mount / "job").mkdir(parents=True)
    proc.mkdir()
    (proc / "cgroup").write_text("0::/job\n")
    (proc / "mountinfo").write_text(V2.replace("/sys/fs/cgroup", str(mount)))
    assert read_free_memory(proc, meminfo) is None
    meminfo.write_text("MemTotal: 9000 kB\nMemAvailable: 5000 kB\n")
    assert read_free_memory(proc, meminfo) == 5000 * 1024
    (mount / "job" / "memory.max").write_text("1000000\n")
    (mount / "job" / "memory.current").write_text("900000\n")
    assert read_free_memory(proc, meminfo) == 100_000
    (mount / "job" / "memory.stat").write_text("anon 500000\ninactive_file 300000\n")
    assert read_free_memory(proc, meminfo) == 400_000, "the kernel drops cached files"
    (mount / "job" / "memory.max").write_text("max\n")
    assert read_free_memory(proc, meminfo) == 5000 * 1024


def test_a_worker_that_was_killed_while_the_counter_rose_ran_out_of_memory(tmp_path: Path) -> None:
    for exit_code in (-9, 137):
        failure = find_failure(death(tmp_path, exit_code=exit_code), {}, oom_kills=1).failure
        assert failure.kind is FailureKind.HOST_OOM
        assert "its cgroup ran out of memory" in failure.message


@pytest.mark.parametrize(("exit_code", "oom_kills"), [(-9, 0), (-15, 1), (-11, 1), (1, 1)])
def test_no_other_end_is_a_host_oom(tmp_path: Path, exit_code: int, oom_kills: int) -> None:
    failure = find_failure(death(tmp_path, exit_code=exit_code), {}, oom_kills=oom_kills).failure
    assert failure.kind is not FailureKind.HOST_OOM
