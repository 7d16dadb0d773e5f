"""What of a workspace travels, and where to."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from orchestrator.torchx_scheduler import workspace
from orchestrator.torchx_scheduler.workspace import (
    NoWorkspace,
    TooMuch,
    copy_code,
    files_of,
    parse_workspace,
    plan_journey,
    travel,
    weigh,
)


def make(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return folder


def names_of(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in files_of(folder)]


def test_caches_and_version_control_stay_behind(tmp_path: Path) -> None:
    make(tmp_path, "a.py", ".git/config", "pkg/__pycache__/a.pyc", "pkg/b.py", ".venv/bin/python")
    assert names_of(tmp_path) == ["a.py", "pkg/b.py"]


def test_the_last_pattern_that_matches_decides(tmp_path: Path) -> None:
    make(tmp_path, "a.bin", "keep.bin", "data/x.txt", "b.py")
    (tmp_path / ".torchxignore").write_text("# what is large\n*.bin\n!keep.bin\ndata/  # a folder\n\n")
    assert names_of(tmp_path) == [".torchxignore", "b.py", "keep.bin"]


def test_links_travel_as_links_and_a_circle_ends(tmp_path: Path) -> None:
    source = make(tmp_path / "source", "a.py")
    (source / "round").symlink_to(source)
    os.mkfifo(source / "pipe")
    journey = plan_journey(partial(copy_code, source), tmp_path / "copies", name="train", key=None)
    travel(journey)
    assert (journey.target / "round").is_symlink()
    assert not (journey.target / "pipe").exists()


def test_a_run_directory_within_the_workspace_stays_behind(tmp_path: Path) -> None:
    make(tmp_path, "a.py", "runs/orchestrator.db", "runs/.workspaces/old/a.py", "other/runs/b.py")
    fill = partial(copy_code, tmp_path, without=[tmp_path / "runs"])
    journey = plan_journey(fill, tmp_path / "runs" / ".workspaces", name="train", key=None)
    travel(journey)
    assert names_of(journey.target) == ["a.py", "other/runs/b.py"]


def test_a_copy_keeps_what_is_executable_and_is_made_once(tmp_path: Path) -> None:
    source = make(tmp_path / "source", "run.sh")
    (source / "run.sh").chmod(0o755)
    journey = plan_journey(partial(copy_code, source), tmp_path / "copies", name="train", key="k1")
    travel(journey)
    (source / "run.sh").write_text("edited")
    travel(journey)
    assert (journey.target / "run.sh").read_text() == "run.sh"
    assert os.access(journey.target / "run.sh", os.X_OK)
    assert [path.name for path in (tmp_path / "copies").iterdir()] == [journey.target.name]


def test_each_submission_has_its_own_place_and_one_key_one_place(tmp_path: Path) -> None:
    keys = (None, None, "k1", "k1", "k2")
    places = [plan_journey(lambda _: None, tmp_path, name="train", key=key).target for key in keys]
    assert len(set(places)) == 4
    assert places[2] == places[3]


def test_more_than_code_does_not_travel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "a", "b", "c")
    weigh(tmp_path)
    monkeypatch.setattr(workspace, "MOST_FILES", 2)
    with pytest.raises(TooMuch, match=r"more than 256 MB or 2 files: name what is no code in \.torchxignore"):
        weigh(tmp_path)


def test_a_workspace_is_a_folder_of_this_machine(tmp_path: Path) -> None:
    folder = make(tmp_path / "with space", "a").absolute()
    assert parse_workspace(f"file://{folder}") == folder
    assert parse_workspace(f"file://{str(folder).replace(' ', '%20')}") == folder
    assert parse_workspace(str(folder)) == folder
    for text in ("s3://bucket/code", f"file://{tmp_path}/none", "file://host/code"):
        with pytest.raises(NoWorkspace, match="--workspace is"):
            parse_workspace(text)
