"""A spec cannot name a path in the folder of a job that its submitter may not see, or write to any job's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.domain.job.job import JobState
from tests.api.conftest import World, closed, empty_database

__all__ = ["closed", "empty_database"]


def problems(world: World, headers: dict[str, str], **fields: Any) -> list[tuple[str, str]]:
    answer = world.client.post("/api/v1/jobs", json=world.spec(**fields), headers=headers)
    assert answer.status_code in (201, 422), answer.text
    return [(each["pointer"], each["detail"]) for each in answer.json().get("errors", [])]


@pytest.fixture
def theirs(closed: World) -> Path:
    """The folder of a job of the project research, with a script, data and a snapshot."""
    submitted = closed.client.post(
        "/api/v1/jobs", json=closed.spec(project="research"), headers=closed.give("research=submitter", name="bob")
    )
    folder = closed.root / submitted.json()["id"]
    snapshot = folder / "snapshots" / "step-00000010-a1-g1"
    snapshot.mkdir(parents=True)
    (snapshot / "MANIFEST.json").write_text("{}")
    (folder / "train.py").write_text("print('theirs')\n")
    return folder


def fields_that_name(folder: Path) -> dict[str, dict[str, Any]]:
    return {
        "/run/workdir": {"run": {"command": ["true"], "workdir": str(folder)}},
        "/run/script": {"run": {"script": str(folder / "train.py"), "workdir": "/"}},
        "/run/trainer/data": {"run": {"trainer": {"data": f"../{folder}/train.py"}, "workdir": "/tmp"}},
        "/snapshot/from": {"snapshot": {"from": str(folder / "snapshots" / "step-00000010-a1-g1")}},
        "/snapshot/dir": {"snapshot": {"dir": str(folder / "snapshots")}},
    }


@pytest.mark.parametrize("pointer", ["/run/workdir", "/run/script", "/run/trainer/data", "/snapshot/from"])
@pytest.mark.parametrize("way", ["plain", "link"])
def test_a_caller_who_may_not_see_a_job_cannot_name_a_path_in_its_folder(
    closed: World, theirs: Path, tmp_path: Path, pointer: str, way: str
) -> None:
    named = theirs
    if way == "link":
        named = tmp_path / "link"
        named.symlink_to(theirs)
    fields = fields_that_name(named)[pointer]
    found = problems(closed, closed.give("default=submitter", name="mallory"), **fields)
    assert (pointer, f"there is no job {theirs.name}") in [(at, text.partition(": ")[2]) for at, text in found]
    assert problems(closed, closed.give("default=submitter", "research=viewer", name="carol"), **fields) == []


def test_the_folder_of_a_deleted_job_still_belongs_to_its_project(closed: World, theirs: Path) -> None:
    admin = closed.give("*=admin", name="root")
    closed.client.post(f"/api/v1/jobs/{theirs.name}/cancel", headers=admin)
    closed.advance(theirs.name, JobState.CANCELLED)
    assert closed.client.delete(f"/api/v1/jobs/{theirs.name}", headers=admin).status_code in (200, 202)
    fields = fields_that_name(theirs)["/snapshot/from"]
    assert problems(closed, closed.give("default=submitter", name="mallory"), **fields) != []
    assert problems(closed, closed.give("default=submitter", "research=viewer", name="carol"), **fields) == []


@pytest.mark.parametrize("place", ["{job}", "{job}/snapshots", "{root}", "{root}/.agents", "s3://bucket/{id}"])
def test_snapshot_dir_cannot_be_in_a_folder_of_a_job_or_of_the_service(closed: World, theirs: Path, place: str) -> None:
    named = place.format(job=theirs, root=theirs.parent, id=theirs.name)
    found = problems(closed, closed.give("*=admin", name="root"), snapshot={"dir": named})
    assert {pointer for pointer, _ in found} == {"/snapshot/dir"}
    assert list(closed.root.glob(f"{theirs.name}/snapshots/.orchestrator-*")) == []


def test_a_folder_named_like_a_job_that_never_was_can_be_used(closed: World, tmp_path: Path) -> None:
    (tmp_path / "lm-training").mkdir()
    run = {"command": ["true"], "workdir": str(tmp_path / "lm-training")}
    assert problems(closed, closed.give("default=submitter", name="alice"), run=run) == []
