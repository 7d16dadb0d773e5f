"""Removal deletes all files of a deleted job and no others, and resumes after an interruption."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest

from orchestrator.domain.errors import LeaseLost
from orchestrator.domain.job.deletion import Deletion
from orchestrator.jobfolder.removal import JobFolders, remove_folder
from orchestrator.supervisor.sweep import Sweeper
from tests.builders import NOW


def always() -> bool:
    return True


def a_job(root: Path, name: str = "job-1") -> Path:
    folder = root / name
    for below in ("snapshots/step-1/a", "attempts/1/replica-0/1/log", "fence/x"):
        (folder / below).parent.mkdir(parents=True)
        (folder / below).write_text(below)
    return folder


def test_a_folder_goes_with_all_that_is_in_it_and_its_neighbour_stays(tmp_path: Path) -> None:
    a_job(tmp_path)
    other = a_job(tmp_path, "job-10")
    assert remove_folder(tmp_path, "job-1", always)
    assert [path.name for path in tmp_path.iterdir()] == ["job-10"]
    assert (other / "snapshots/step-1/a").read_text() == "snapshots/step-1/a"
    assert remove_folder(tmp_path, "job-1", always), "once more changes nothing"
    assert remove_folder(tmp_path / "nowhere", "job-1", always)


def test_links_go_and_what_they_lead_to_stays(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "deep").mkdir(parents=True)
    (outside / "deep" / "precious").write_text("precious")
    root = tmp_path / "root"
    folder = a_job(root)
    (folder / "snapshots" / "step-2").symlink_to(outside)
    (folder / "snapshots" / "up").symlink_to("../../..")
    (folder / "file").symlink_to(outside / "deep" / "precious")
    (folder / "loop").symlink_to("loop")
    (folder / "hard").hardlink_to(outside / "deep" / "precious")
    assert remove_folder(root, "job-1", always)
    assert list(root.iterdir()) == []
    assert (outside / "deep" / "precious").read_text() == "precious"


def test_a_folder_that_is_a_link_goes_alone(tmp_path: Path) -> None:
    real = a_job(tmp_path / "elsewhere")
    root = tmp_path / "root"
    root.mkdir()
    (root / "job-1").symlink_to(real)
    assert remove_folder(root, "job-1", always)
    assert list(root.iterdir()) == []
    assert (real / "fence/x").exists()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc", "../job-1"])
def test_a_name_that_leads_elsewhere_removes_nothing(tmp_path: Path, name: str) -> None:
    folder = a_job(tmp_path / "root")
    a_job(tmp_path)
    with pytest.raises(OSError, match="is not a name of a file or folder"):
        remove_folder(tmp_path / "root", name, always)
    assert (folder / "fence/x").exists()
    assert (tmp_path / "job-1/fence/x").exists()


def test_whatever_step_it_is_cut_off_at_the_next_call_goes_on_and_nobody_finds_half(tmp_path: Path) -> None:
    for steps in range(20):
        a_job(tmp_path)
        left = count(steps, -1)
        done = remove_folder(tmp_path, "job-1", lambda left=left: next(left) > 0)  # type: ignore[misc]
        assert not (tmp_path / "job-1").exists(), "its name is gone at once"
        assert done == (list(tmp_path.iterdir()) == [])
        assert remove_folder(tmp_path, "job-1", always)
        assert list(tmp_path.iterdir()) == []
    assert done


def test_what_came_back_while_it_was_removed_goes_too(tmp_path: Path) -> None:
    a_job(tmp_path)
    assert not remove_folder(tmp_path, "job-1", lambda: False)
    a_job(tmp_path)
    assert remove_folder(tmp_path, "job-1", always)
    assert list(tmp_path.iterdir()) == []


def test_snapshots_beside_the_folder_go_too(tmp_path: Path) -> None:
    root, apart = tmp_path / "root", tmp_path / "apart"
    a_job(root)
    a_job(apart)
    other = a_job(apart, "job-2")
    folders = JobFolders(root)
    assert folders.remove("job-1", str(apart), always)
    assert (list(root.iterdir()), [path.name for path in apart.iterdir()]) == ([], ["job-2"])
    assert folders.remove("job-2", "s3://bucket/runs", always)
    assert other.exists()


# The supervisor's part


def due(job_id: str) -> Deletion:
    return Deletion(
        job_id=job_id,
        name="demo",
        project="default",
        cluster="local",
        owner=None,
        state="FAILED",
        created_at=NOW,
        deleted_at=NOW,
        deleted_by="alice",
        snapshot_dir=None,
        files_due=True,
    )


@dataclass
class Desk:
    """A store, folders and a clock. Each removal takes `takes_s`."""

    waiting: list[Deletion]
    takes_s: float = 0.1
    broken: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    now: float = 0.0

    def due(self, cluster: str) -> list[Deletion]:
        return [each for each in self.waiting if each.cluster == cluster]

    def files_deleted(self, job_id: str) -> None:
        self.waiting = [each for each in self.waiting if each.job_id != job_id]

    def delete(self, deletion: Deletion, *, seen: int) -> bool:
        raise AssertionError("the supervisor deletes no record")

    def deletion(self, job_id: str) -> Deletion | None:
        raise AssertionError("nobody asks")

    def remove(self, job_id: str, snapshot_dir: str | None, go_on: Callable[[], bool]) -> bool:
        self.asked.append(job_id)
        if job_id in self.broken:
            raise OSError("device or resource busy")
        self.now += self.takes_s
        return go_on()

    def sweeper(self, require_lease: Callable[[], None] = lambda: None) -> Sweeper:
        return Sweeper("local", self, self, require_lease=require_lease, monotonic=lambda: self.now)


def test_a_pass_removes_for_a_second_and_the_next_goes_on() -> None:
    desk = Desk([due(f"job-{number}") for number in range(5)], takes_s=0.4)
    sweeper = desk.sweeper()
    sweeper.sweep()
    assert desk.asked == ["job-0", "job-1", "job-2"]
    assert [each.job_id for each in desk.waiting] == ["job-2", "job-3", "job-4"], "the third was cut off"
    sweeper.sweep()
    assert [each.job_id for each in desk.waiting] == ["job-4"]


def test_what_cannot_be_removed_holds_up_nobody_and_is_tried_again_in_a_minute() -> None:
    desk = Desk([due("job-0"), due("job-1")], broken={"job-0"})
    sweeper = desk.sweeper()
    sweeper.sweep()
    sweeper.sweep()
    assert (desk.asked, [each.job_id for each in desk.waiting]) == (["job-0", "job-1"], ["job-0"])
    desk.now += 60
    desk.broken.clear()
    sweeper.sweep()
    assert desk.waiting == []


def test_who_lost_the_lease_removes_nothing() -> None:
    desk = Desk([due("job-0")])

    def lost() -> None:
        raise LeaseLost("over")

    with pytest.raises(LeaseLost):
        desk.sweeper(lost).sweep()
    assert desk.asked == []
