"""Copies of workdirs and of the agent are stored once by content hash, and all attempts of a job use the same copy."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from orchestrator.backends import ship, tree
from orchestrator.domain.errors import LaunchRefused
from orchestrator.jobfolder.folder import JobFolder


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    (folder / "pkg").mkdir(parents=True)
    (folder / "train.py").write_text("print(1)\n")
    (folder / "pkg" / "run.sh").write_text("#!/bin/sh\n")
    (folder / "pkg" / "run.sh").chmod(0o755)
    (folder / "link").symlink_to("train.py")
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("secret\n")
    os.mkfifo(folder / "pipe")
    return folder


def pin_of(folder: Path, name: str) -> ship.Pin:
    return ship.Pin(JobFolder(folder, "job"), name)


def test_a_workdir_is_copied_once_per_content_without_caches_and_special_files(code: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    first = ship.ship_workdir(code, root, pin=pin_of(tmp_path, "one.json"))
    second = ship.ship_workdir(code, root, pin=pin_of(tmp_path, "two.json"))
    assert first == second
    assert sorted(str(path.relative_to(root / first)) for path in (root / first).rglob("*")) == [
        "link",
        "pkg",
        "pkg/run.sh",
        "train.py",
    ]
    assert os.access(root / first / "pkg" / "run.sh", os.X_OK)
    assert [path.name for path in (root / ship.WORKDIRS).iterdir()] == [first.name]


def test_later_attempts_use_the_first_copy_and_a_new_pin_copies_again(code: Path, tmp_path: Path) -> None:
    root, pin = tmp_path / "root", pin_of(tmp_path, "pin.json")
    first = ship.ship_workdir(code, root, pin=pin)
    (code / "train.py").write_text("print(2)\n")
    assert ship.ship_workdir(code, root, pin=pin) == first
    fresh = ship.ship_workdir(code, root, pin=pin_of(tmp_path, "retry.json"))
    assert fresh != first
    assert (root / first / "train.py").read_text() == "print(1)\n"
    assert (root / fresh / "train.py").read_text() == "print(2)\n"


@pytest.mark.parametrize("folder", ["/etc", "/etc/ssl", "/proc/self/fd", "/var", "/run", "elsewhere/../link"])
def test_system_folders_are_not_copied_for_a_job(tmp_path: Path, folder: str) -> None:
    """A pod's service account is in /run, the service's key and settings are in /etc. A job could print them."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to("/etc")
    with pytest.raises(LaunchRefused, match="is not copied to the nodes"):
        ship.ship_workdir(tmp_path / folder, tmp_path / "root", pin=pin_of(tmp_path, "pin.json"))
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize(
    "pinned",
    ['{"x": 1}', '{"folder": 7}', '{"folder": "../code"}', '{"folder": ".workdirs/../../code"}', "[]", "{", "[" * 9999],
)
def test_an_invalid_pin_is_written_again(code: Path, tmp_path: Path, pinned: str) -> None:
    """The pin is in the job's folder, where the job may write."""
    (tmp_path / "job").mkdir()
    (tmp_path / "job/pin.json").write_text(pinned)
    copy = ship.ship_workdir(code, tmp_path / "root", pin=pin_of(tmp_path, "pin.json"))
    assert json.loads((tmp_path / "job/pin.json").read_text()) == {"folder": str(copy)}


def test_copies_do_not_follow_links_in_the_run_directory(code: Path, tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    for name in (ship.WORKDIRS, ship.AGENTS):
        (root / name).symlink_to(outside)
    copy = ship.ship_workdir(code, root, pin=pin_of(tmp_path, "pin.json"))
    ship.ship_agent(ship.find_package(), root)
    assert (root / copy / "train.py").exists()
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("change", ["name", "mode", "content"])
def test_the_hash_covers_names_modes_and_contents(code: Path, tmp_path: Path, change: str) -> None:
    before = ship.ship_workdir(code, tmp_path / "root", pin=pin_of(tmp_path, "a.json"))
    if change == "name":
        (code / "train.py").rename(code / "main.py")
    elif change == "mode":
        (code / "train.py").chmod(0o755)
    else:
        (code / "train.py").write_text("print(3)\n")
    assert ship.ship_workdir(code, tmp_path / "root", pin=pin_of(tmp_path, "b.json")) != before


def test_a_folder_with_too_many_files_is_refused(code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "MOST_FILES", 2)
    with pytest.raises(LaunchRefused, match="shared_paths"):
        ship.ship_workdir(code, tmp_path / "root", pin=pin_of(tmp_path, "pin.json"))


def test_the_agent_s_package_is_copied_once(tmp_path: Path) -> None:
    package = ship.find_package()
    ship.ship_agent(package, tmp_path)
    ship.ship_agent(package, tmp_path)
    assert (tmp_path / ship.agent_folder(package) / "trainer" / "elastic" / "node.py").is_file()
    assert len(list((tmp_path / ship.AGENTS).iterdir())) == 1


def test_paths_below_a_shared_path_are_shared() -> None:
    shared = [Path("/home"), Path("/shared/runs")]
    assert ship.is_shared(Path("/home/u/code"), shared)
    assert ship.is_shared(Path("/home"), shared)
    assert not ship.is_shared(Path("/homestead"), shared)
