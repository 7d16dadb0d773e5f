"""`run.workdir` gives a job no access to files of the service or of other projects."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.backends import ship
from orchestrator.backends.ship import Pin, Workdirs
from orchestrator.client import Client
from orchestrator.domain.errors import LaunchRefused
from orchestrator.domain.specs.workdir import WorkdirPolicy
from orchestrator.jobfolder.folder import JobFolder
from orchestrator.wire.job_views import JobView
from tests.integration.team import ADMIN, shared_root, team_service
from tests.jobs import ended, until

KEY = "the service's own key"
PARTS = st.sampled_from(["srv", "home", "alice", "code", ".ssh", "runs", "etc"])
PATHS = st.lists(PARTS, max_size=5).map(lambda parts: PurePath("/", *parts))


@given(private=PATHS, workdir=PATHS, allowed=st.none() | st.lists(PATHS, max_size=2).map(tuple))
def test_no_folder_is_copied_that_contains_or_is_in_a_private_one(
    private: PurePath, workdir: PurePath, allowed: tuple[PurePath, ...] | None
) -> None:
    reason = WorkdirPolicy(allowed=allowed, private=(private,)).why_refused(workdir)
    assert reason is not None or not (workdir.is_relative_to(private) or private.is_relative_to(workdir))


@given(workdir=PATHS, allowed=st.lists(PATHS, max_size=2).map(tuple))
def test_only_folders_in_the_setting_are_copied(workdir: PurePath, allowed: tuple[PurePath, ...]) -> None:
    reason = WorkdirPolicy(allowed=allowed).why_refused(workdir)
    assert reason is not None or any(workdir.is_relative_to(folder) for folder in allowed)


@pytest.mark.parametrize("workdir", ["/home", "/home/alice", "/home/alice/.ssh", "/home/alice/.config/gcloud"])
def test_the_home_of_the_services_user_and_its_hidden_folders_are_not_copied(workdir: str) -> None:
    policy = WorkdirPolicy(home=PurePath("/home/alice"))
    assert policy.why_refused(PurePath(workdir)) is not None
    assert policy.why_refused(PurePath("/home/alice/code")) is None


@dataclass
class Place:
    """`code` may be a job's workdir. `runs` is the service's root, with its key."""

    folder: Path

    def __post_init__(self) -> None:
        self.runs, self.code = self.folder / "runs", self.folder / "code"
        self.runs.mkdir()
        self.code.mkdir()
        (self.runs / "secret.key").write_text(KEY)
        (self.code / "train.py").write_text("print('training')\n")

    def workdirs(self, policy: WorkdirPolicy | None = None) -> Workdirs:
        policy = policy or WorkdirPolicy(private=(self.runs,))
        return Workdirs(root=Path("/nodes/runs"), service_root=self.runs, policy=policy)

    def shipped(self, workdir: Path, policy: WorkdirPolicy | None = None) -> str:
        return self.workdirs(policy).provide(workdir, pin=Pin(JobFolder(self.folder, "job"), "pin.json"))

    def leaked(self) -> list[Path]:
        copies = [path for path in (self.runs / ship.WORKDIRS).rglob("*") if path.is_file() and not path.is_symlink()]
        return [path for path in copies if KEY in path.read_text()]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize("name", [".", "..", ".workdirs", "../code/link", "../code/../runs", "../link/runs"])
def test_the_services_root_is_never_copied(place: Place, name: str) -> None:
    (place.runs / ".workdirs").mkdir()
    (place.code / "link").symlink_to(place.runs)
    (place.folder / "link").symlink_to(place.folder)
    with pytest.raises(LaunchRefused, match="workdirs"):
        place.shipped(place.runs / name)
    assert place.leaked() == []


def test_a_link_in_the_workdir_is_copied_as_a_link(place: Place) -> None:
    (place.code / "key").symlink_to(place.runs / "secret.key")
    (place.code / "runs").symlink_to(place.runs)
    copy = place.runs / Path(place.shipped(place.code)).relative_to("/nodes/runs")
    assert (copy / "key").is_symlink()
    assert (copy / "runs").is_symlink()
    assert place.leaked() == []


def test_a_hard_link_to_a_private_file_is_not_copied(place: Place) -> None:
    (place.code / "deep").mkdir()
    os.link(place.runs / "secret.key", place.code / "deep" / "mine")
    policy = WorkdirPolicy(private=(place.runs, place.runs / "secret.key"))
    with pytest.raises(LaunchRefused, match="deep/mine"):
        place.shipped(place.code, policy)
    assert place.leaked() == []


def test_the_configuration_beside_the_code_is_not_copied(place: Place) -> None:
    (place.code / "orchestrator.toml").write_text(KEY)
    policy = WorkdirPolicy(private=(place.runs,), left_out=(place.code / "orchestrator.toml",))
    copy = place.runs / Path(place.shipped(place.code, policy)).relative_to("/nodes/runs")
    assert [path.name for path in copy.iterdir()] == ["train.py"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowPolicy(WorkdirPolicy):
    """Swaps a part of the path between its check and the copy."""

    swapped: Path
    target: Path

    def why_refused(self, workdir: PurePath) -> str | None:
        reason = WorkdirPolicy(private=self.private).why_refused(workdir)
        shutil.rmtree(self.swapped)
        self.swapped.symlink_to(self.target)
        return reason


@pytest.mark.parametrize("part", ["code/mine", "code/mine/runs"])
def test_a_part_that_becomes_a_link_after_the_check_is_not_followed(place: Place, part: str) -> None:
    workdir = place.code / "mine" / "runs"
    workdir.mkdir(parents=True)
    target = place.folder if part == "code/mine" else place.runs
    policy = SlowPolicy(private=(place.runs,), swapped=place.folder / part, target=target)
    with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
        place.shipped(workdir, policy)
    assert place.leaked() == []


def test_a_folder_that_is_repeatedly_swapped_for_a_link_leaks_nothing(place: Place) -> None:
    inner, link = place.code / "inner", place.code.parent / "spare"
    inner.mkdir()
    (inner / "secret.key").write_text("mine")
    link.symlink_to(place.runs)
    over = threading.Event()

    def swap() -> None:
        aside = place.folder / "aside"
        while not over.is_set():
            inner.rename(aside)
            link.rename(inner)
            inner.rename(link)
            aside.rename(inner)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for number in range(150):
            try:
                place.workdirs().provide(place.code, pin=Pin(JobFolder(place.folder, "job"), f"pin-{number}.json"))
            except (OSError, LaunchRefused):
                continue  # the swap was noticed
    finally:
        over.set()
        thread.join()
    assert place.leaked() == []


def test_a_folder_that_changes_while_it_is_copied_cannot_replace_another_copy(place: Place) -> None:
    """A copy is named by the hash of what was copied, so it cannot have the name of other code."""
    theirs = place.folder / "theirs"
    shutil.copytree(place.code, theirs)
    over = threading.Event()

    def change() -> None:
        while not over.is_set():
            (place.code / "train.py").write_text("print('planted')\n")
            (place.code / "train.py").write_text("print('training')\n")

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for number in range(100):
            place.workdirs().provide(place.code, pin=Pin(JobFolder(place.folder, "job"), f"pin-{number}.json"))
    finally:
        over.set()
        thread.join()
    copy = place.runs / Path(place.shipped(theirs)).relative_to("/nodes/runs")
    assert (copy / "train.py").read_text() == "print('training')\n"


@pytest.mark.parametrize(
    "name", ["", ".workdirs/0123", "other-abcdefgh/attempts", ".workspaces", "code/../other-abcdefgh"]
)
def test_the_run_directory_cannot_be_a_workdir_on_a_shared_service(place: Place, name: str) -> None:
    (place.runs / name).parent.mkdir(parents=True, exist_ok=True)
    reason = place.workdirs().why_refused(Path("/nodes/runs") / name)
    assert reason is not None
    assert "run directory" in reason
    assert place.workdirs().why_refused(Path("/nodes/runs/.workspaces/mine-0123")) is None


# With a real service of a team


def job_in(workdir: Path, **run: Any) -> dict[str, Any]:
    prints = "import pathlib; [print(p, p.read_bytes()[:80]) for p in pathlib.Path('.').iterdir() if p.is_file()]"
    command = {"command": [sys.executable, "-c", prints], "workdir": str(workdir), **run}
    return {"name": "spy", "cluster": "team", "run": command}


def ask(url: str, path: str, spec: dict[str, Any], token: str) -> httpx.Response:
    return httpx.post(f"{url}/api/v1/{path}", json=spec, headers={"Authorization": f"Bearer {token}"}, timeout=300)


def token_of_a_submitter(url: str) -> str:
    body = {"name": "mallory", "grants": {"default": "submitter"}}
    made = ask(url, "tokens", body, ADMIN)
    assert made.status_code == 201, made.text
    return str(made.json()["token"])


@pytest.mark.parametrize("cluster", ["slurm", pytest.param("kubernetes", marks=pytest.mark.long)])
def test_a_submitter_of_a_team_cannot_name_the_services_root_as_workdir(tmp_path: Path, cluster: str) -> None:
    with team_service(tmp_path, cluster) as service:
        mallory = token_of_a_submitter(service.url)
        for workdir in (service.root, service.root.parent, tmp_path / "elsewhere", Path("/etc")):
            for path in ("jobs", "plan"):
                answer = ask(service.url, path, job_in(workdir), mallory)
                assert answer.status_code == 422, (workdir, path, answer.text)
                (error,) = answer.json()["errors"]
                assert error["pointer"] == "/run/workdir"
                assert "workdirs" in error["detail"] or "run directory" in error["detail"]


@pytest.mark.parametrize("cluster", ["slurm", pytest.param("kubernetes", marks=pytest.mark.long)])
def test_an_allowed_workdir_that_became_a_link_is_refused_at_launch(tmp_path: Path, cluster: str) -> None:
    code = tmp_path / "code" / "mine"
    code.mkdir(parents=True)
    (code / "train.py").write_text("print('training')\n")
    packed = shared_root(tmp_path, cluster) / ".workdirs"
    with team_service(tmp_path, cluster, workdirs=tmp_path / "code") as service, Client(service.url, ADMIN) as client:
        first = until(client, client.submit(job_in(code)).id, ended)
        copies = list(packed.iterdir())
        assert [sorted(path.name for path in copy.iterdir()) for copy in copies] == [["train.py"]]
        shutil.rmtree(code)
        code.symlink_to(service.root)
        client.retry(first.id)
        second = until(client, first.id, lambda job: ended(job) and job.attempts == 2)
        assert "`workdirs`" in reason_of(second)
        assert list(packed.iterdir()) == copies


def reason_of(job: JobView) -> str:
    return f"{job.reason} {'' if job.failure is None else job.failure.message}"
