"""What `verify` accepts, and which snapshot a generation restores."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.trainer.harness import ROOT, make_snapshot
from trainer import snapshot
from trainer.contract import layout
from trainer.contract.config import TrainerConfig
from trainer.contract.env import parse_place
from trainer.contract.fence import Term
from trainer.contract.layout import MANIFEST
from trainer.contract.manifest import SnapshotName
from trainer.errors import DamagedSnapshot, SnapshotError, StaleTerm
from trainer.loop.beginning import find_beginning
from trainer.snapshot import files, lineage
from trainer.snapshot.retention import Retention


def name(step: int, attempt: int = 1, generation: int = 1) -> SnapshotName:
    return SnapshotName(step, Term(attempt, generation))


class Job:
    """The folder of a job, in which generations begin."""

    def __init__(self, root):
        self.root, self.snapshots = root, root / "snapshots"
        self.reported = []

    def begin(self, attempt=1, generation=1, restore_from=None, retry=0, verify=snapshot.verify):
        place = parse_place(
            {
                "ORCHESTRATOR_JOB_DIR": str(self.root),
                "ORCHESTRATOR_ATTEMPT": str(attempt),
                "ORCHESTRATOR_GENERATION": str(generation),
                "ORCHESTRATOR_RESTORE_FROM": restore_from or "",
                "ORCHESTRATOR_RETRY": str(retry),
            }
        )
        tell = lambda kind, sentence, evidence: self.reported.append((kind.value, sentence, evidence))  # noqa: E731
        return lineage.begin_term(place, self.snapshots, lineage.fence_of(place), tell, verify)

    def restored_step(self, **options):
        restore = self.begin(**options).restore
        return None if restore is None else restore.manifest.step

    def commit(self, *args):
        return make_snapshot(self.snapshots, name(*args))


@pytest.fixture
def job(tmp_path):
    return Job(tmp_path)


def flip_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1])


def delete(path):
    path.unlink()


@pytest.mark.parametrize("damage", [flip_bit, truncate, delete])
@pytest.mark.parametrize("file", ["__0_0.distcp", "__1_0.distcp", ".metadata"])
def test_verify_names_the_damaged_file(tmp_path, damage, file):
    directory = make_snapshot(tmp_path, name(10))
    assert snapshot.verify(directory).step == 10
    damage(directory / file)
    with pytest.raises(DamagedSnapshot, match=file):
        snapshot.verify(directory)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"step": 10}'])
def test_a_torn_manifest_is_no_commit(tmp_path, text):
    directory = make_snapshot(tmp_path, name(10))
    (directory / MANIFEST).write_text(text)
    with pytest.raises(DamagedSnapshot, match=MANIFEST):
        snapshot.verify(directory)


def test_a_snapshot_under_another_name_is_damaged(tmp_path):
    directory = make_snapshot(tmp_path, name(10))
    with pytest.raises(DamagedSnapshot, match="step-00000010"):
        snapshot.verify(directory.rename(tmp_path / str(name(20))))


@pytest.fixture
def broken_reads(monkeypatch):
    """Make the first `count` reads of each file fail, as on a broken disk."""
    whole, left = files.checksum_file, {}
    monkeypatch.setattr(files, "_PAUSE_S", 0.01)

    def break_(count):
        def read(path, *should_continue):
            left[path] = left.get(path, count) - 1
            if left[path] >= 0:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return whole(path, *should_continue)

        monkeypatch.setattr(files, "checksum_file", read)

    return break_


def test_a_read_error_that_does_not_repeat_is_no_damage(job, broken_reads):
    job.commit(10)
    broken_reads(1)
    assert job.restored_step(generation=2) == 10
    assert job.reported == []


def test_a_restore_sets_aside_a_snapshot_that_fails_to_read_twice(job, broken_reads):
    directory = job.commit(10)
    broken_reads(2)
    with pytest.raises(SnapshotError, match="not starting again from step 0"):
        job.begin(generation=2)
    assert not directory.exists()


def test_retention_keeps_an_unreadable_snapshot_and_deletes_none_for_it(job, broken_reads):
    kept = [job.commit(10), job.commit(20)]
    broken_reads(2)
    Retention(job.snapshots, lineage.Fence(None), lambda *reported: job.reported.append(reported), keep=1).delete_old()
    assert all(directory.is_dir() for directory in kept)
    assert job.reported == []


def test_hurried_retention_stops_reading_and_deletes_nothing(job, monkeypatch):
    kept = [job.commit(10), job.commit(20)]
    retention = Retention(job.snapshots, lineage.Fence(None), lambda *reported: job.reported.append(reported), keep=1)
    begun = []
    read = files.Checksum.add

    def hurry(checksum, content):
        begun.append(content)
        retention.stop_verifying()
        read(checksum, content)

    monkeypatch.setattr(files.Checksum, "add", hurry)
    retention.delete_old()
    assert begun
    assert all(directory.is_dir() for directory in kept)
    assert job.reported == []


def test_the_command_line_verifies_without_torch(tmp_path):
    directory = make_snapshot(tmp_path, name(10))

    def verify():
        code = (
            "import sys; from trainer.snapshot.__main__ import main; code = main(sys.argv[1:]); "
            "sys.exit(99 if 'torch' in sys.modules else code)"
        )
        command = [sys.executable, "-c", code, "verify", str(directory)]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)

    assert verify().returncode == 0
    flip_bit(directory / "__1_0.distcp")
    assert verify().returncode == 1
    assert "__1_0.distcp" in verify().stderr
    (directory / MANIFEST).unlink()
    assert "no committed snapshot" in verify().stderr


def test_the_newest_committed_snapshot_is_restored(job):
    job.commit(10)
    job.commit(20)
    make_snapshot(job.snapshots, name(30), is_committed=False)
    assert job.restored_step(generation=2) == 20
    assert not (job.snapshots / str(name(30))).exists(), "snapshots that an earlier term left uncommitted are swept"


def test_a_later_terms_unfinished_snapshot_is_not_swept(job):
    unfinished = make_snapshot(job.snapshots, name(30, 3), is_committed=False)
    job.begin(attempt=2)
    assert unfinished.exists()


@pytest.mark.parametrize("unseen", ["", f"{name(10)}/{MANIFEST}"])
def test_a_file_system_error_prevents_sweeping_and_a_new_term(job, monkeypatch, unseen):
    """With `exists` and `is_dir` of Python 3.14, which return False on an error."""
    directory, unseen_path, stat = job.commit(10), job.snapshots / unseen, os.stat

    def refuse(path, *args, **options):
        if not isinstance(path, int) and os.fspath(path) == str(unseen_path):
            raise OSError(errno.EIO, "Input/output error", str(path))
        return stat(path, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr("os.stat", refuse)
        patch.setattr(Path, "stat", refuse)  # Python 3.10 holds its own reference to os.stat
        patch.setattr(Path, "exists", lambda path: os.path.exists(path))  # noqa: PTH110
        patch.setattr(Path, "is_dir", lambda path: os.path.isdir(path))  # noqa: PTH112
        with pytest.raises(SnapshotError, match="Input/output error"):
            job.begin(generation=2)
    assert directory.is_dir()
    assert job.restored_step(generation=2) == 10


def test_a_damaged_snapshot_is_quarantined_and_the_previous_one_is_restored(job):
    job.commit(10)
    flip_bit(job.commit(20) / "__0_0.distcp")
    assert job.restored_step(generation=2) == 10
    [(kind, sentence, evidence)] = job.reported
    assert kind == "snapshot.quarantined"
    assert "__0_0.distcp" in sentence
    assert evidence["file"] == "__0_0.distcp"
    assert (job.snapshots / f"{name(20)}.quarantined").is_dir()
    assert job.restored_step(generation=3) == 10, "the damaged one is outside of the lineage now"


def test_a_job_with_only_damaged_snapshots_does_not_start_from_step_0(job):
    flip_bit(job.commit(10) / "__0_0.distcp")
    for generation in (2, 3):  # neither now nor after the next restart
        with pytest.raises(SnapshotError, match="not starting again from step 0"):
            job.begin(generation=generation)


def test_a_new_job_starts_from_step_0(job):
    assert job.restored_step() is None
    assert json.loads((job.root / "fence/a00001-g00001.json").read_text()) == {"base_step": 0, "retry": 0}


@pytest.mark.parametrize("elsewhere", [False, True])
def test_no_rank_recreates_a_lost_snapshot_folder(job, elsewhere):
    journal = job.root / "attempts/1/replica-0/1" / layout.EVENTS
    journal.parent.mkdir(parents=True)
    folder = job.root / "before" if elsewhere else job.snapshots
    reported = {"kind": "snapshot.committed", "evidence": {"folder": str(folder)}}
    journal.write_text(f'torn\n[]\n{{"kind": "restored"}}\n{json.dumps(reported)}\n')
    place = parse_place({"ORCHESTRATOR_JOB_DIR": str(job.root), "RANK": "1", "WORLD_SIZE": "2"})
    task = SimpleNamespace(source=SimpleNamespace(fingerprint={}))
    look = lambda: find_beginning(TrainerConfig(preset="nano"), place, task, lambda *_: None)  # noqa: E731
    if not elsewhere:
        with pytest.raises(SnapshotError, match="make an empty folder there to start afresh"):
            look()
        assert not job.snapshots.exists()
        job.snapshots.mkdir()
    look()
    assert job.snapshots.is_dir()


def test_a_late_commit_of_a_fenced_term_does_not_count(job):
    job.begin(attempt=1)
    job.commit(10)
    assert job.restored_step(attempt=2) == 10
    job.commit(20, 1)  # attempt 1 still ran
    assert job.restored_step(attempt=3) == 10
    job.commit(15, 3)
    assert job.restored_step(attempt=4) == 15


def test_a_term_older_than_the_newest_is_refused(job):
    job.begin(attempt=2)
    with pytest.raises(StaleTerm, match="attempt 2 generation 1 has begun"):
        job.begin(attempt=1, generation=7)


def test_a_term_begins_once(job):
    job.begin()
    with pytest.raises(StaleTerm, match="another group"):
        job.begin()


def test_the_supervisors_generation_0_fences_the_previous_attempt(job):
    job.begin(attempt=1)
    (job.root / "fence/a00002-g00000.json").write_text("{}")
    with pytest.raises(StaleTerm):
        lineage.Fence(job.root / "fence").check(Term(1, 1))
    assert job.restored_step(attempt=2) is None


def test_a_named_snapshot_of_the_job_is_restored_until_its_retry_has_its_own(job):
    job.begin()
    job.commit(10)
    job.commit(20)
    back = {"restore_from": str(name(10)), "retry": 1}
    assert job.restored_step(attempt=2, **back) == 10
    assert job.restored_step(attempt=3, **back) == 10, "attempt 2 was lost before its first snapshot"
    job.commit(14, 3)
    assert job.restored_step(attempt=3, generation=2, **back) == 14
    assert job.restored_step(attempt=4, **back) == 14
    assert job.restored_step(attempt=5, restore_from=str(name(10)), retry=2) == 10
    assert job.restored_step(attempt=6, retry=3) == 10, "later snapshots are no longer on the lineage"


def test_another_jobs_snapshot_is_restored_until_the_job_has_its_own(job, tmp_path):
    other = make_snapshot(tmp_path / "other", name(50))
    assert job.restored_step(restore_from=str(other)) == 50
    job.commit(60)
    assert job.restored_step(attempt=2, restore_from=str(other)) == 60


@pytest.mark.parametrize("is_missing", [True, False])
def test_a_named_snapshot_must_be_good(job, is_missing):
    job.commit(20)
    if not is_missing:
        flip_bit(job.commit(10) / ".metadata")
    with pytest.raises(SnapshotError, match="cannot restore from"):
        job.begin(attempt=2, restore_from=str(name(10)), retry=1)


def test_outside_a_job_each_run_has_its_own_generation(tmp_path):
    place = parse_place({})
    make_snapshot(tmp_path, name(10))
    beginning = lineage.begin_term(place, tmp_path, lineage.fence_of(place), lambda *_: None)
    assert (beginning.term, beginning.restore.manifest.step) == (Term(1, 2), 10)


def test_removal_deletes_the_manifest_first(tmp_path, monkeypatch):
    directory = make_snapshot(tmp_path, name(10))
    monkeypatch.setattr("shutil.rmtree", lambda *_, **__: None)  # killed here
    snapshot.remove(directory)
    assert snapshot.list_committed(tmp_path) == []
    assert list(directory.iterdir())


def test_a_term_stops_if_an_older_term_began_while_it_verified(job):
    job.commit(10)

    def overtaken(path):
        (job.root / "fence").mkdir(exist_ok=True)
        (job.root / "fence/a00001-g00002.json").write_text('{"base_step": 0}')
        return snapshot.verify(path)

    with pytest.raises(StaleTerm, match="chooses again"):
        job.begin(attempt=1, generation=3, verify=overtaken)
