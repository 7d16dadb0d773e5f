"""Which files of a workspace are copied, and where to."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from orchestrator.torchx_scheduler.workspace import (
    NoWorkspace,
    copy_code,
    files_of,
    make_copy,
    parse_workspace,
    plan_copy,
)


def make(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return folder


def names_of(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in files_of(folder)]


def test_caches_and_version_control_are_not_copied(tmp_path: Path) -> None:
    make(tmp_path, "a.py", ".git/config", "pkg/__pycache__/a.pyc", "pkg/b.py", ".venv/bin/python")
    assert names_of(tmp_path) == ["a.py", "pkg/b.py"]


def test_the_last_matching_pattern_wins(tmp_path: Path) -> None:
    make(tmp_path, "a.bin", "keep.bin", "data/x.txt", "b.py")
    (tmp_path / ".torchxignore").write_text("# what is large\n*.bin\n!keep.bin\ndata/  # a folder\n\n")
    assert names_of(tmp_path) == [".torchxignore", "b.py", "keep.bin"]


def test_links_are_copied_as_links_and_pipes_are_skipped(tmp_path: Path) -> None:
    source = make(tmp_path / "source", "a.py")
    (source / "round").symlink_to(source)
    os.mkfifo(source / "pipe")
    copy = plan_copy(partial(copy_code, source), tmp_path / "copies", name="train", key=None)
    make_copy(copy)
    assert (copy.target / "round").is_symlink()
    assert not (copy.target / "pipe").exists()


def test_a_run_directory_within_the_workspace_is_not_copied(tmp_path: Path) -> None:
    make(tmp_path, "a.py", "runs/orchestrator.db", "runs/.workspaces/old/a.py", "other/runs/b.py")
    fill = partial(copy_code, tmp_path, without=[tmp_path / "runs"])
    copy = plan_copy(fill, tmp_path / "runs" / ".workspaces", name="train", key=None)
    make_copy(copy)
    assert names_of(copy.target) == ["a.py", "other/runs/b.py"]


def test_a_copy_keeps_file_modes_and_is_made_once(tmp_path: Path) -> None:
    source = make(tmp_path / "source", "run.sh")
    (source / "run.sh").chmod(0o755)
    copy = plan_copy(partial(copy_code, source), tmp_path / "copies", name="train", key="k1")
    make_copy(copy)
    (source / "run.sh").write_text("edited")
    make_copy(copy)
    assert (copy.target / "run.sh").read_text() == "run.sh"
    assert os.access(copy.target / "run.sh", os.X_OK)
    assert [path.name for path in (tmp_path / "copies").iterdir()] == [copy.target.name]


def test_each_submission_has_its_own_target_unless_keys_are_equal(tmp_path: Path) -> None:
    keys = (None, None, "k1", "k1", "k2")
    places = [plan_copy(lambda _: None, tmp_path, name="train", key=key).target for key in keys]
    assert len(set(places)) == 4
    assert places[2] == places[3]


def test_a_workspace_is_a_folder_on_this_machine(tmp_path: Path) -> None:
    folder = make(tmp_path / "with space", "a").absolute()
    assert parse_workspace(f"file://{folder}") == folder
    assert parse_workspace(f"file://{str(folder).replace(' ', '%20')}") == folder
    assert parse_workspace(str(folder)) == folder
    for text in ("s3://bucket/code", f"file://{tmp_path}/none", "file://host/code"):
        with pytest.raises(NoWorkspace, match="--workspace is"):
            parse_workspace(text)
