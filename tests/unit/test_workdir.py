"""Which folders a job may name: not those of the service, of the system, or of other jobs."""

from __future__ import annotations

from pathlib import PurePath

import pytest

from orchestrator.domain.specs.workdir import WorkdirPolicy, why_not_in_root

ROOT = PurePath("/srv/runs")
HOME = PurePath("/home/me")
POLICY = WorkdirPolicy(private=(ROOT,), home=HOME)


@pytest.mark.parametrize(
    "folder",
    ["/etc", "/proc/1", "/srv/runs/job", "/srv", "/", "/home/me", "/home", "/home/me/.ssh", "/home/me/.config/keys"],
)
def test_a_folder_of_the_service_or_the_system_is_not_copied(folder: str) -> None:
    reason = POLICY.why_refused(PurePath(folder))
    assert reason is not None
    assert "the setting `workdirs` cannot allow it" in reason


@pytest.mark.parametrize("folder", ["/home/me/code", "/home/me/code/.hidden", "/home/other/.ssh", "/srv/code"])
def test_another_folder_is_copied(folder: str) -> None:
    assert POLICY.why_refused(PurePath(folder)) is None


def test_without_a_home_no_folder_is_hidden() -> None:
    assert WorkdirPolicy().why_refused(HOME / ".ssh") is None


def test_a_setting_may_allow_only_some_folders() -> None:
    policy = WorkdirPolicy(allowed=(PurePath("/code"), PurePath("/more")))
    assert policy.why_refused(PurePath("/more/project")) is None
    assert "`workdirs` allows" in (policy.why_refused(PurePath("/codes")) or "")


@pytest.mark.parametrize(
    ("below", "is_allowed", "is_allowed_to_copy"),
    [
        ("", False, False),
        (".workspaces/code", False, True),
        (".workspaces", False, False),
        (".agents/code", False, False),
        ("train-abcdefgh/snapshots", False, False),
        ("datasets/train-abcdefgh", True, True),
    ],
)
def test_a_job_may_not_name_what_the_service_or_a_job_has_in_the_root(
    below: str, is_allowed: bool, is_allowed_to_copy: bool
) -> None:
    assert (why_not_in_root(ROOT / below, ROOT) is None) == is_allowed
    assert (why_not_in_root(ROOT / below, ROOT, allow_workspaces=True) is None) == is_allowed_to_copy
