"""Runs a suite of tests in an environment, and counts from what pytest reports.

A test that fails gets a second try, alone: this machine may be busy. The page names those that needed it.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from deploy.dev.matrix.table import Suite
from deploy.dev.matrix.venvs import Venv

_LIMIT_S = 3000
_OPTIONS = ("-q", "--ignore-glob=*/live/*", "--ignore-glob=*/long/*")  # of folders: a file that is named is run


@dataclass(frozen=True)
class Outcome:
    """What became of a suite. `again` failed at first and passed alone."""

    suite: str
    passed: int = 0
    skipped: int = 0
    failed: tuple[str, ...] = ()
    again: tuple[str, ...] = ()
    problem: str | None = None  # why there is no report

    @property
    def is_good(self) -> bool:
        return self.problem is None and not self.failed and self.passed > 0


@dataclass(frozen=True)
class Report:
    passed: int
    skipped: int
    failed: tuple[str, ...]


def run_suite(suite: Suite, venv: Venv, root: Path, folder: Path) -> Outcome:
    """`folder` gets the reports, the cache and the tests' own folders."""
    folder.mkdir(parents=True)
    first = _pytest(suite, venv, root, folder, "first", "-n", "2", "--dist", "worksteal")
    if isinstance(first, str):
        return Outcome(suite.name, problem=first)
    if not first.failed:
        return Outcome(suite.name, first.passed, first.skipped)
    second = _pytest(suite, venv, root, folder, "second", "--last-failed", "--last-failed-no-failures=none")
    if isinstance(second, str):
        return Outcome(suite.name, first.passed, first.skipped, first.failed)
    mended = tuple(name for name in first.failed if name not in second.failed)
    return Outcome(suite.name, first.passed + len(mended), first.skipped, second.failed, mended)


def parse_report(text: str) -> Report:
    """Counts of a JUnit file. A test that fails and then errs in its teardown counts once."""
    passed = skipped = 0
    failed: dict[str, None] = {}
    for case in ElementTree.fromstring(text).iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}" if case.get("classname") else str(case.get("name"))
        if case.find("failure") is not None or case.find("error") is not None:
            failed[name] = None
        elif case.find("skipped") is not None:
            skipped += 1
        else:
            passed += 1
    return Report(passed, skipped, tuple(failed))


def skip_reasons(folders: Iterable[Path]) -> list[str]:
    """Why tests were skipped, each reason once."""
    reasons: dict[str, None] = {}
    for path in (path for folder in folders for path in sorted(folder.glob("first.xml"))):
        for skipped in ElementTree.parse(path).iter("skipped"):
            reasons[str(skipped.get("message"))] = None
    return sorted(reasons)


def _pytest(suite: Suite, venv: Venv, root: Path, folder: Path, name: str, *options: str) -> Report | str:
    """The counts, or why there are none."""
    report, printed = folder / f"{name}.xml", folder / f"{name}.txt"
    environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    command: list[str | Path] = [
        venv.python,
        "-m",
        "pytest",
        *_OPTIONS,
        f"--junitxml={report}",
        f"--basetemp={folder.parents[1] / 't'}",  # short: the path of a socket has 107 bytes at most (unix(7))
        f"--override-ini=cache_dir={folder / 'cache'}",
        *options,
        *suite.paths,
    ]
    with printed.open("w") as output:
        process = subprocess.Popen(
            command, cwd=root, env=environ, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            process.wait(_LIMIT_S)
        except subprocess.TimeoutExpired:
            return f"not done after {_LIMIT_S} s"
        finally:
            _end_group(process)
    if not report.exists():
        return f"exit status {process.returncode}: {printed.read_text(errors='replace').strip()[-300:]}"
    return parse_report(report.read_text(errors="replace"))


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill pytest and what it has left in its process group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
