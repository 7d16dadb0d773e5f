"""The version matrix, without what takes time: versions from pyproject, counts from reports, and the page."""

from __future__ import annotations

import sys
from datetime import date
from pathlib import Path

import pytest
import tomllib
from packaging.requirements import Requirement

from deploy.dev.matrix import (
    ENVIRONMENTS,
    ROOT,
    Bench,
    Environment,
    Exchange,
    Failed,
    Level,
    Outcome,
    Result,
    find_interpreter,
    lowest_versions,
    parse_report,
    read_requirements,
    render_page,
)

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SOME = Environment("lowest", "3.10", Level.LOWEST, ("torch",), (), ())


def test_the_lowest_version_is_the_declared_bound() -> None:
    declared = ["torch>=2.8", "psycopg[binary]>=3.2.1", "uvloop>=0.20; sys_platform != 'win32'"]
    pins = ["psycopg==3.2.1", "torch==2.8", 'uvloop==0.20; sys_platform != "win32"']
    assert lowest_versions(map(Requirement, declared)) == pins


@pytest.mark.parametrize("text", ["torch", "torch<3", "torch>=2.7,~=2.8"])
def test_a_requirement_without_one_bound_is_named(text: str) -> None:
    with pytest.raises(Failed, match="torch"):
        lowest_versions([Requirement(text)])


def test_every_dependency_of_users_is_in_the_matrix() -> None:
    tried = {extra for environment in ENVIRONMENTS for extra in environment.extras}
    assert tried == set(PYPROJECT["project"]["optional-dependencies"]) - {"dev", "all"}
    assert len(lowest_versions(read_requirements(PYPROJECT, sorted(tried)))) > 20


def test_every_python_and_both_ends_of_the_versions_are_in_the_matrix() -> None:
    trainers = {(each.python, each.level) for each in ENVIRONMENTS if each.exchanges}
    services = {(each.python, each.level) for each in ENVIRONMENTS if "torch" not in each.extras}
    assert {python for python, _ in trainers} == {"3.10", "3.11", "3.12", "3.13"}
    assert {python for python, _ in services} == {"3.11", "3.12", "3.13"}
    assert {level for _, level in trainers} == {level for _, level in services} == set(Level)


def test_a_suite_names_tests_that_exist() -> None:
    for environment in ENVIRONMENTS:
        for suite in (*environment.suites, *environment.smoke):
            for path in suite.paths:
                file, _, test = path.partition("[")[0].partition("::")
                assert (ROOT / file).exists(), path
                assert f"def {test}" in (ROOT / file).read_text() if test else True, path


def test_a_name_that_runs_nothing_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version = ".".join(map(str, sys.version_info[:2]))
    for folder, script in (("shim", "#!/bin/sh\nexit 127\n"), ("real", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"python{version}").write_text(script)
        (tmp_path / folder / f"python{version}").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'shim'}:{tmp_path / 'real'}")
    assert find_interpreter(version) == Path(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path / "shim"))
    with pytest.raises(Failed, match="on PATH"):
        find_interpreter(version)


def test_an_environment_without_its_interpreter_is_not_run_and_not_good(tmp_path: Path) -> None:
    missing = Environment("lowest", "3.99", Level.LOWEST, ("torch",), (), ())
    result = Bench(tmp_path, is_smoke=False, wheel=tmp_path, pyproject=PYPROJECT).run(missing)
    assert not result.is_good
    page = render_page([result], [], [], "make matrix", date(2026, 1, 1))
    assert "| lowest | 3.99 | none | not run: there is no python3.99 on PATH |" in page


def test_a_report_counts_each_test_once() -> None:
    report = parse_report(
        "launcher",
        "<testsuites><testsuite>"
        "<testcase classname='tests.test_a' name='good'/>"
        "<testcase classname='tests.test_a' name='bad'><failure/></testcase>"
        "<testcase classname='tests.test_a' name='bad'><error/></testcase>"
        "<testcase classname='tests.test_a' name='left'><skipped message='no GPU'/></testcase>"
        "</testsuite></testsuites>",
    )
    assert (report.passed, report.skipped, report.failed) == (1, 1, ("tests.test_a::bad",))


@pytest.mark.parametrize(
    ("outcome", "is_good"),
    [
        (Outcome("launcher", passed=3), True),
        (Outcome("launcher", passed=3, failed=("tests.test_a::bad",)), False),
        (Outcome("launcher", skipped=3), False),
        (Outcome("launcher", passed=3, problem="not finished after 1 s"), False),
    ],
)
def test_a_suite_is_good_when_something_passed_and_nothing_failed(outcome: Outcome, is_good: bool) -> None:
    assert Result(SOME, outcomes=(outcome,)).is_good is is_good


def test_the_page_tells_what_ran_what_failed_and_what_was_installed() -> None:
    outcome = Outcome("launcher", passed=3, skipped=1, failed=("tests.test_a::bad",))
    result = Result(SOME, {"Python": "3.10.13", "torch": "2.7.0"}, (outcome,))
    exchanges = [Exchange("fsdp", "lowest", "newest"), Exchange("ddp", "newest", "lowest", "damaged | file")]
    page = render_page([result], exchanges, ["torch", "Not_Installed"], "make matrix", date(2026, 1, 1))
    assert "Generated by `make matrix` on 2026-01-01. Do not edit." in page
    assert "| lowest | 3.10.13 | 2.7.0 | launcher | 3 | 1 | 1 |" in page
    assert "- lowest: `tests.test_a::bad` failed" in page
    assert "| fsdp | lowest | newest | continued |" in page
    assert "| ddp | newest | lowest | damaged / file |" in page
    assert "| Python | 3.10.13 |\n| torch | 2.7.0 |" in page
    assert "not-installed" not in page
