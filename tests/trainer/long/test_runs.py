"""Whole runs: stops, retention, full disks, fences, wrong starts."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainer.harness import ROOT, start_group, wait_for
from trainer.contract import env


@pytest.mark.smoke
def test_a_stop_leaves_a_snapshot_and_is_not_a_success(tmp_path):
    with start_group(tmp_path, 2, steps=100_000, snapshot_interval="auto") as group:
        group.wait_for_step(5)
        group.processes[1].send_signal(signal.SIGTERM)  # one rank gets the signal, all stop at the same step
        assert group.wait() == [143, 143], group.outputs()
        assert group.committed() == [max(group.losses())]


def test_a_notice_too_short_for_a_snapshot_stops_without_one_and_reports_it(tmp_path):
    variables = {env.NOTICE_S: "0.000001"}
    with start_group(tmp_path, 2, steps=100_000, snapshot_interval=1, variables=variables) as group:
        group.wait_for_step(5)
        group.processes[1].send_signal(signal.SIGTERM)
        assert group.wait() == [143, 143], group.outputs()
        stopped_at = max(group.losses())
        (skipped,) = group.events("snapshot.skipped")
        assert skipped["evidence"]["step"] == stopped_at
        assert max(group.committed()) == stopped_at - 1, "although one was due by the interval"


def test_old_snapshots_are_deleted_and_a_finished_run_does_nothing_more(tmp_path):
    with start_group(tmp_path, 1, steps=7, snapshot_interval=2, snapshot_keep=2) as group:
        assert group.wait() == [0], group.outputs()
    assert group.committed() == [6, 7]
    assert [event["evidence"]["step"] for event in group.events("snapshot.committed")] == [2, 4, 6, 7]
    with start_group(tmp_path, 1, generation=2, steps=7) as again:
        assert again.wait() == [0], again.outputs()
    assert again.losses() == {}
    assert again.events("restored")[0]["evidence"]["step"] == 7


def test_a_stale_term_commits_nothing_and_ends(tmp_path):
    with start_group(tmp_path, 2, steps=100_000, snapshot_interval="1s") as group:
        group.wait_for_step(2)
        (tmp_path / "fence/a00002-g00000.json").write_text("{}")
        before = group.committed()
        assert group.wait() == [1, 1]
        assert len(group.committed()) <= len(before) + 1, "at most the one whose commit was in progress"
        assert "StaleTerm: attempt 1 generation 1 may not commit" in group.outputs()
    assert not [path for path in (tmp_path / "snapshots").iterdir() if not (path / "MANIFEST.json").exists()]


def test_the_last_snapshot_waits_until_a_full_disk_has_space_again(tmp_path, small_disk):
    variables = {env.SNAPSHOT_DIR: str(small_disk)}
    with start_group(tmp_path, 2, steps=8, snapshot_interval=2, snapshot_keep=1, variables=variables) as group:
        wait_for(lambda: len(group.events("snapshot.failed")) == 3, "the last snapshot to fail")
        first = small_disk / "step-00000002-a1-g1"
        wait_for(lambda: list(small_disk.iterdir()) == [first], "half a snapshot to be removed")
        subprocess.run(["mount", "-o", "remount,size=100m", small_disk], check=True, timeout=60)
        assert group.wait() == [0, 0], group.outputs()
    assert max(group.losses()) == 8
    failed = group.events("snapshot.failed")
    assert [event["evidence"]["step"] for event in failed] == [4, 6, 8], "the tries of the last one are one event"
    assert all("No space left on device" in event["sentence"] for event in failed)
    assert [path.name for path in small_disk.iterdir()] == ["step-00000008-a1-g1"]


def test_an_unwritable_snapshot_folder_is_refused_at_once(tmp_path):
    (tmp_path / "file").touch()
    with start_group(tmp_path, 1, variables={env.SNAPSHOT_DIR: str(tmp_path / "file/snapshots")}) as group:
        assert group.wait() == [1]
        output = group.outputs()
    assert f"SnapshotError: snapshots cannot be written to {tmp_path}/file/snapshots: Not a directory" in output
    assert group.losses() == {}


def test_ranks_that_were_started_differently_do_not_train(tmp_path):
    with start_group(tmp_path, 2, entry=(str(Path(__file__).parents[1] / "unlike_entry.py"),), steps=4) as group:
        assert group.wait() == [1, 1]
        message = "StrategyError: rank 1 differs from rank 0: learning_rate was 0.001 and is 0.002; start all ranks"
        assert group.outputs().count(message) == 2
    assert group.losses() == {}


def test_missing_data_give_one_line_and_no_traceback(tmp_path):
    with start_group(tmp_path, 1, data="/nowhere/corpus.txt") as group:
        assert group.wait() == [1]
        [line] = group.outputs().splitlines()
    assert line.startswith("trainer: DataError: data '/nowhere/corpus.txt' cannot be read")


def test_changed_data_are_refused_at_the_restore(tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_bytes(bytes(range(256)) * 8)
    with start_group(tmp_path, 1, steps=1, data=str(corpus)) as group:
        assert group.wait() == [0], group.outputs()
    corpus.write_bytes(bytes(range(256)) * 9)
    with start_group(tmp_path, 1, generation=2, steps=2, data=str(corpus)) as group:
        assert group.wait() == [1]
        assert "changed since step-00000001-a1-g1: tokens was 2048 and is 2304" in group.outputs()


def test_a_loss_that_is_not_finite_ends_the_run_on_all_ranks(tmp_path):
    options = {"learning_rate": 1e38, "warmup_steps": 0, "grad_clip": 0}
    with start_group(tmp_path, 2, **options) as group:
        assert group.wait() == [1, 1]
        reported = [line for line in group.outputs().splitlines() if "NonFiniteLoss: loss is nan" in line]
    assert [" rank 0" in line for line in reported].count(True) == 1, "only one of two equal failures is the cause"


@pytest.mark.parametrize("text", ['{"preset": "huge"}', "{", "[]", "@/nowhere/config.json", '{"colour": 1}'])
def test_a_wrong_configuration_gives_one_line_and_exit_code_2(text, monkeypatch, capsys):
    from trainer.__main__ import main

    monkeypatch.setattr("trainer.worker.signals.StopFlag.install", lambda self: None)
    assert main(["--config", text, "--local-rank", "0"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_plain_script_runs_and_resumes_under_torchrun(tmp_path):
    def torchrun(steps):
        script = [str(ROOT / "docs/examples/user_ddp.py"), f"--steps={steps}", f"--snapshot={tmp_path}/snapshot.pt"]
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *script]
        return subprocess.run(
            command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=90, check=True
        ).stdout

    assert "start at step 0" in torchrun(60)
    assert "start at step 60" in torchrun(80)
