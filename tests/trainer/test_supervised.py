"""A supervised script continues from the newest good snapshot and commits its own, on one rank or several."""

import errno
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, wait
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tests.trainer.harness import ROOT, read_lines, start_group
from trainer import snapshot
from trainer.contract import env, layout
from trainer.contract.env import parse_place
from trainer.contract.progress import parse_progress
from trainer.elastic.workers.reentry import Reentry
from trainer.elastic.workers.survivors import Survivors
from trainer.errors import SnapshotError, StaleTerm
from trainer.script import notes as script_notes
from trainer.script.survivor import Survivor
from trainer.snapshot.retention import Retention
from trainer.supervised import Supervised, reenter
from trainer.worker import retries
from trainer.worker.signals import StopFlag

PLAIN = str(ROOT / "tests/trainer/plain_script.py")


@pytest.fixture(autouse=True)
def sigterm_as_it_was():
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def attend(job_dir, generation=1, *, variables=None, **options):
    replica_dir = layout.replica_dir(job_dir, 1, 0) / str(generation)
    replica_dir.mkdir(parents=True, exist_ok=True)
    environ = {env.JOB_DIR: str(job_dir), env.REPLICA_DIR: str(replica_dir), env.GENERATION: str(generation)}
    return Supervised(environ={**environ, **(variables or {})}, **options)


def save(run, text):
    with run.slot() as folder:
        (folder / "part").mkdir()
        (folder / "part/model.bin").write_text(text)


def train(run, first, last):
    for step in range(first, last):
        run.step(step, loss=1.0)
        if run.should_save:
            save(run, f"state of {step + 1}")


def events(job_dir, kind, generation=1):
    lines = read_lines(layout.replica_dir(job_dir, 1, 0) / str(generation) / layout.EVENTS)
    return [line for line in lines if line["kind"] == kind]


def committed(job_dir):
    return sorted(str(name) for name in snapshot.list_committed(layout.snapshots_dir(job_dir)))


def test_outside_a_job_nothing_happens(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGTERM)
    run = Supervised(environ={}, steps=3)
    state = run.restore(model=object())
    for step in range(state.step, 3):
        run.step(step, loss=float("nan"))
        assert (run.should_save, run.should_stop) == (False, False)
    with run.evaluating():
        assert run.latest() is None
    assert signal.getsignal(signal.SIGTERM) is before
    assert list(tmp_path.iterdir()) == []
    with run.slot() as folder:
        assert folder == tmp_path / "snapshots/step-00000003"


@pytest.mark.parametrize("pipes", ["", "1:4,5;6,7"], ids=["outside-a-job", "alone"])
def test_without_peers_in_a_job_a_function_is_only_called(monkeypatch, pipes):
    monkeypatch.setenv(env.REENTRY, pipes)
    assert reenter(lambda: 3) == 3
    calls = []

    def fail():
        calls.append(1)
        raise RuntimeError("Connection closed by peer")

    with pytest.raises(RuntimeError, match="closed by peer"):
        reenter(fail)
    assert calls == [1]


def test_supervision_that_was_made_outside_of_the_function_is_refused(tmp_path):
    run = attend(tmp_path)
    lines = Survivors(1)
    place = parse_place(lines.environment)
    Survivor.current = Survivor(place, Reentry(place), StopFlag())
    try:
        with pytest.raises(RuntimeError, match=r"make it in the function that reenter calls"):
            run.restore()
        attend(tmp_path, 2).restore()
    finally:
        Survivor.current = None
        lines.close()


def test_a_loss_that_is_not_finite_is_reported(tmp_path):
    run = attend(tmp_path, steps=2)
    run.latest()
    for step, loss in enumerate((float("nan"), float("-inf"))):
        run.step(step, loss=loss)
    text = (layout.replica_dir(tmp_path, 1, 0) / "1" / layout.PROGRESS).read_text()
    lines = [parse_progress(json.loads(line, parse_constant=pytest.fail)) for line in text.splitlines()]
    losses = [str(line.metrics["loss"]) for line in lines if "loss" in line.metrics]
    assert losses == ["nan", "-inf"]


def test_importing_it_imports_no_torch_and_little_else():
    code = "import sys, trainer.supervised; print(*(n for n in sys.modules if n.startswith(('torch', 'trainer'))))"
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, timeout=300)
    assert found.stdout.split() == ["trainer", "trainer.supervised"]


def test_a_scripts_own_files_become_a_snapshot_that_the_service_knows(tmp_path):
    run = attend(tmp_path, interval="2")
    assert run.latest() is None
    train(run, 0, 5)
    assert committed(tmp_path) == ["step-00000002-a1-g1", "step-00000004-a1-g1"]
    manifest = snapshot.verify(layout.snapshots_dir(tmp_path) / "step-00000004-a1-g1")
    assert manifest.files.keys() == {"part/model.bin"}
    assert [event["evidence"]["step"] for event in events(tmp_path, "snapshot.committed")] == [2, 4]
    again = attend(tmp_path, 2)
    assert (again.latest() / "part/model.bin").read_text() == "state of 4"
    assert again.restore().step == 4
    with pytest.raises(SnapshotError, match="files that the script wrote: read them from the folder"):
        attend(tmp_path, 3).restore(model=object())
    assert events(tmp_path, "restored", 2)[0]["evidence"]["step"] == 4


def test_a_loss_that_requires_a_gradient_is_reported_without_a_warning(tmp_path):
    """torch warns only once in a process, and warnings are errors here."""
    torch.set_warn_always(True)
    try:
        run = attend(tmp_path)
        run.latest()
        run.step(0, loss=torch.tensor(2.5, requires_grad=True))
    finally:
        torch.set_warn_always(False)
    lines = read_lines(layout.replica_dir(tmp_path, 1, 0) / "1" / layout.PROGRESS)
    assert lines[-1]["metrics"]["loss"] == 2.5


def test_every_step_is_reported(tmp_path):
    run = attend(tmp_path, steps=9)
    run.latest()
    run.step(0, loss=2.5, accuracy=0.5, perplexity=float("inf"))
    with run.evaluating():
        pass
    lines = read_lines(layout.replica_dir(tmp_path, 1, 0) / "1" / layout.PROGRESS)
    assert [line["phase"] for line in lines] == ["start", "restore", "step", "evaluation", "step"]
    step = lines[2]
    assert (step["step"], step["total_steps"]) == (1, 9)
    assert step["metrics"].keys() == {"loss", "accuracy", "perplexity", "step_s"}


def test_a_damaged_snapshot_is_quarantined_and_the_previous_one_is_restored(tmp_path):
    run = attend(tmp_path, interval="1")
    run.latest()
    train(run, 0, 2)
    (layout.snapshots_dir(tmp_path) / "step-00000002-a1-g1/part/model.bin").write_text("state of 3")
    assert attend(tmp_path, 2).latest().name == "step-00000001-a1-g1"
    assert len(events(tmp_path, "snapshot.quarantined", 2)) == 1


def test_a_script_whose_snapshot_folder_is_gone_does_not_start_afresh(tmp_path):
    run = attend(tmp_path, interval="1")
    run.latest()
    train(run, 0, 1)
    mounted = layout.snapshots_dir(tmp_path)
    away = mounted.rename(tmp_path / "away")
    with pytest.raises(SnapshotError, match=r"not starting again from step 0\. Mount"):
        attend(tmp_path, 2).latest()
    assert not mounted.exists()
    away.rename(mounted)
    assert attend(tmp_path, 3).latest().name == "step-00000001-a1-g1"


def test_a_replaced_generation_commits_nothing(tmp_path):
    run = attend(tmp_path, interval="1")
    run.latest()
    attend(tmp_path, 2).latest()
    with pytest.raises(StaleTerm, match="attempt 1 generation 2 has begun"):
        train(run, 0, 1)
    assert committed(tmp_path) == []


def test_a_failed_slot_is_removed_and_reported(tmp_path):
    run = attend(tmp_path, interval="1")
    run.latest()
    run.step(0)
    with pytest.raises(FileNotFoundError, match="half"), run.slot() as folder:
        (folder / "half/of/it").touch()
    assert list(layout.snapshots_dir(tmp_path).iterdir()) == []
    assert "snapshot of step 1 failed: [Errno 2] No such file" in events(tmp_path, "snapshot.failed")[0]["sentence"]


def refuse(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_costs_one_snapshot_and_the_next_interval_tries_again(tmp_path, monkeypatch):
    run = attend(tmp_path, interval="2")
    run.restore(model=nn.Linear(2, 2))
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", refuse)
        run.step(0)
        run.step(1)
    assert list(layout.snapshots_dir(tmp_path).iterdir()) == []
    [failed] = events(tmp_path, "snapshot.failed")
    assert failed["sentence"].startswith("snapshot of step 2 failed: rank 0: [Errno 28] No space left on device")
    assert "\n" not in failed["sentence"]
    run.step(2)
    run.step(3)
    assert committed(tmp_path) == ["step-00000004-a1-g1"]


def test_a_failed_snapshot_by_time_is_not_tried_again_at_the_next_step(tmp_path, monkeypatch):
    now_s = 0.0
    monkeypatch.setattr("trainer.script.session.time", SimpleNamespace(monotonic=lambda: now_s))
    run = attend(tmp_path, interval="60s")
    run.restore(model=nn.Linear(2, 2))
    monkeypatch.setattr("os.fsync", refuse)
    for step, at_s in enumerate([60.0, 61.0, 119.0]):
        now_s = at_s
        run.step(step)
    assert len(events(tmp_path, "snapshot.failed")) == 1


def test_a_run_whose_last_snapshot_fails_has_not_finished(tmp_path, monkeypatch):
    run = attend(tmp_path, interval="2", steps=1)
    run.restore(model=nn.Linear(2, 2))
    monkeypatch.setattr("os.fsync", refuse)
    monkeypatch.setattr(retries, "PATIENCE_S", 0.0)
    with pytest.raises(SnapshotError, match="its last snapshot could not be written"):
        run.step(0)


def test_the_last_snapshot_is_tried_until_the_disk_has_space(tmp_path, monkeypatch):
    run, tries = attend(tmp_path, interval="2", steps=1), []

    def refuse_three_times(file):
        tries.append(file)
        if len(tries) < 4:
            refuse()

    run.restore(model=nn.Linear(2, 2))
    monkeypatch.setattr("os.fsync", refuse_three_times)
    monkeypatch.setattr(retries, "_EVERY_S", 0.0)
    run.step(0)
    assert committed(tmp_path) == ["step-00000001-a1-g1"]
    assert len(events(tmp_path, "snapshot.failed")) == 1


def test_a_rank_without_space_for_its_note_keeps_no_rank_waiting(tmp_path, monkeypatch):
    monkeypatch.setattr(script_notes, "_PATIENCE_S", 1.0)
    first, second = [attend(tmp_path, variables={"RANK": rank, "WORLD_SIZE": "2"}) for rank in "01"]
    for run in (first, second):
        run.latest()
        run.step(0)
    with first.slot(), monkeypatch.context() as patch:
        patch.setattr(script_notes, "publish", refuse)
        with second.slot():
            pass
    [failed] = events(tmp_path, "snapshot.failed")
    assert failed["sentence"] == "snapshot of step 1 failed: rank 1: OSError: [Errno 28] No space left on device"


def test_rank_0_removes_no_slot_while_another_rank_writes(tmp_path):
    first, second = [attend(tmp_path, variables={"RANK": rank, "WORLD_SIZE": "2"}) for rank in "01"]
    for run in (first, second):
        run.latest()
        run.step(0)
    (layout.replica_dir(tmp_path, 1, 0) / "1" / f"{layout.FULL_DISK}0").touch()
    with ThreadPoolExecutor() as pool:
        with second.slot() as folder:
            left = pool.submit(save, first, "of rank 0")
            wait([left], timeout=0.3)
            (folder / "late").write_text("of rank 1")
        left.result(10)
    assert list(layout.snapshots_dir(tmp_path).iterdir()) == []
    assert second.saved_step is None
    [failed] = events(tmp_path, "snapshot.failed")
    assert failed["sentence"].startswith("snapshot of step 1 failed: [Errno 28] No space left on device")


def test_a_late_rank_does_not_recreate_a_removed_slot(tmp_path):
    with pytest.raises(FileNotFoundError):
        script_notes.leave_note(tmp_path / "gone", 1, [])


def test_a_failure_after_the_commit_keeps_the_snapshot(tmp_path, monkeypatch):
    run = attend(tmp_path, interval="1")
    run.latest()
    run.step(0)
    monkeypatch.setattr(Retention, "delete_old", refuse)
    save(run, "state of 1")
    assert committed(tmp_path) == ["step-00000001-a1-g1"]


def test_a_slot_needs_a_restore_first_and_a_step_has_one_snapshot(tmp_path):
    run = attend(tmp_path)
    with pytest.raises(RuntimeError, match=r"call latest\(\) or restore\(\) before slot\(\)"), run.slot():
        pass
    run.latest()
    run.step(0)
    save(run, "first")
    assert run.saved_step == 1
    with pytest.raises(RuntimeError, match="step 1 already has a snapshot"), run.slot():
        pass


def test_the_job_says_how_many_snapshots_are_kept(tmp_path):
    run = attend(tmp_path, variables={env.SNAPSHOT_INTERVAL: "1", env.SNAPSHOT_KEEP: "2"})
    run.latest()
    train(run, 0, 4)
    assert committed(tmp_path) == ["step-00000003-a1-g1", "step-00000004-a1-g1"]


def test_a_notice_leads_to_a_snapshot_and_a_stop(tmp_path):
    run = attend(tmp_path, interval="100")
    run.latest()
    run.step(0)
    assert (run.should_save, run.should_stop) == (False, False)
    os.kill(os.getpid(), signal.SIGTERM)
    run.step(1)
    assert (run.should_save, run.should_stop) == (True, True)


def test_a_notice_too_short_for_a_snapshot_leads_to_none_even_if_one_is_due(tmp_path):
    run = attend(tmp_path, variables={env.NOTICE_S: "0.000001"}, interval="2")
    run.latest()
    train(run, 0, 2)
    os.kill(os.getpid(), signal.SIGTERM)
    train(run, 2, 4)
    assert run.should_stop
    assert committed(tmp_path) == ["step-00000002-a1-g1"]


def test_the_service_can_request_a_snapshot(tmp_path):
    run = attend(tmp_path, interval="100")
    run.latest()
    desired = layout.attempt_dir(tmp_path, 1) / layout.DESIRED
    desired.write_text(json.dumps({"state": "run", "snapshot": 1, "number": 1}))
    run.step(0)
    assert run.should_save
    save(run, "as requested")
    run.step(1)
    assert not run.should_save


def test_ranks_without_torch_write_one_snapshot_and_other_ranks_restore_it(tmp_path):
    with start_group(tmp_path, 3, entry=(PLAIN, "7")) as group:
        assert group.wait() == [0, 0, 0], group.outputs()
        assert group.outputs().count("from 0 saved 6 False") == 3
    manifest = snapshot.verify(layout.snapshots_dir(tmp_path) / "step-00000006-a1-g1")
    assert manifest.files.keys() == {"rank-0.json", "rank-1.json", "rank-2.json"}
    with start_group(tmp_path, 2, generation=2, entry=(PLAIN, "9")) as group:
        assert group.wait() == [0, 0], group.outputs()
        assert group.outputs().count("from 6 saved 9 False") == 2


def test_a_snapshot_that_one_rank_cannot_write_is_not_committed(tmp_path):
    with start_group(tmp_path, 2, entry=(PLAIN, "3", "fail", "1")) as group:
        assert group.wait() == [0, 1], group.outputs()
    assert committed(tmp_path) == []
    assert "rank 1: RuntimeError: the disk is in the way" in group.events("snapshot.failed")[0]["sentence"]
