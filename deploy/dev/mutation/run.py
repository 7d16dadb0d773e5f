"""Runs tests against mutants: a warm process imports what is slow, then forks for each mutant and each stage.

What is imported before the fork is never the product: each child imports that anew, its mutant in the module's place.
"""

from __future__ import annotations

import gc
import importlib
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import Phase, settings

from deploy.dev.mutation.hook import install
from deploy.dev.mutation.mutants import Mutant
from deploy.dev.mutation.targets import Stage

# Slow to import and wanted by most tests. A module that is not installed is left to the tests that need it.
WARM = (
    "alembic.command",
    "fastapi",
    "httpx",
    "hypothesis.stateful",
    "prometheus_client",
    "psycopg",
    "pydantic_settings",
    "pytest_timeout",
    "sqlalchemy.dialects.postgresql",
    "sqlalchemy.orm",
    "starlette.testclient",
    "structlog",
    "torchx.specs",
    "uvicorn",
    "yaml",
)

# Neither a cache nor a plug-in that happens to be installed.
PYTEST = ("-x", "-q", "-p", "pytest_timeout", "-p", "no:cacheprovider", "--assert=plain", "--no-header")
# A stage that takes this much longer than without a mutant hangs, which the owner of a red test run would notice.
_PATIENCE, _PATIENCE_S = 6, 15.0
_FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the tests of one stage say."""

    red: str | None  # the first test that failed, or what else went wrong
    test: str | None = None  # the test of `red`
    seconds: float
    output: str  # its last lines


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What became of a mutant: `killed_by` a test of `stage`, or None when none noticed."""

    mutant: Mutant
    stage: str
    killed_by: str | None
    seconds: float


class Red(Exception):
    """The tests fail without any mutant; the text says which and how."""


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Where mutants are tried: a repository, and processes that have imported what is slow."""

    root: Path
    pool: ProcessPoolExecutor

    def baseline(self, stages: Sequence[Stage]) -> dict[Stage, float]:
        """The seconds after which a stage counts as hanging. Raises Red when one fails as it is."""
        limits = {}
        for stage, answer in zip(stages, self.pool.map(partial(ask, self.root, None), stages), strict=True):
            if answer.red is not None:
                raise Red(f"{answer.red} fails without a mutant, in stage {stage.name}:\n{answer.output}")
            limits[stage] = _PATIENCE_S + _PATIENCE * answer.seconds
        return limits

    def judge(
        self, trials: Sequence[tuple[Mutant, Sequence[Stage]]], limits: Mapping[Stage, float]
    ) -> Iterator[Verdict]:
        """Try each mutant on its stages, in the given order."""
        return self.pool.map(partial(_judge, self.root, dict(limits)), trials)


@contextmanager
def open_bench(root: Path, jobs: int) -> Iterator[Bench]:
    with warnings.catch_warnings(action="ignore"):
        for name in WARM:
            with suppress(ImportError):
                importlib.import_module(name)
    gc.freeze()  # a collection would touch, and so copy, all of it in each child: half of the time of the short stages
    with ProcessPoolExecutor(jobs, mp_context=_FORK) as pool:
        try:
            yield Bench(root=root, pool=pool)
        finally:
            pool.shutdown(cancel_futures=True)


def _judge(root: Path, limits: Mapping[Stage, float], trial: tuple[Mutant, Sequence[Stage]]) -> Verdict:
    mutant, stages = trial
    seconds = 0.0
    for stage in stages:
        answer = _ask_surely(root, mutant, stage, limits[stage])
        seconds += answer.seconds
        if answer.red is not None:
            return Verdict(mutant=mutant, stage=stage.name, killed_by=answer.red, seconds=seconds)
    return Verdict(mutant=mutant, stage=stages[-1].name, killed_by=None, seconds=seconds)


def _ask_surely(root: Path, mutant: Mutant, stage: Stage, limit_s: float) -> Answer:
    """As `ask`, but a test that races counts only if it fails twice; else the stage is asked without it."""
    answer = ask(root, mutant, stage, limit_s)
    if answer.test is None or not stage.timing:
        return answer
    if ask(root, mutant, replace(stage, arguments=(answer.test,)), limit_s).red is not None:
        return answer
    again = replace(stage, arguments=(*stage.arguments, f"--deselect={answer.test}"))
    return _ask_surely(root, mutant, again, limit_s)


def ask(root: Path, mutant: Mutant | None, stage: Stage, limit_s: float | None = None) -> Answer:
    """Run one stage in a process of its own, with the mutant or without any."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutate-", ignore_cleanup_errors=True) as folder:
        child = _FORK.Process(target=_run_tests, args=(root, mutant, stage, Path(folder)))
        child.start()
        try:
            child.join(limit_s)
        finally:  # also when somebody interrupts us
            hung = child.is_alive()
            if hung:
                _end(child.pid, child)
        seconds = time.monotonic() - started
        output = (Path(folder) / "output").read_text(errors="replace")[-4000:]
        if hung:
            return Answer(red=f"the time-out of {limit_s:.0f} s", seconds=seconds, output=output)
        told = Path(folder) / "told.json"
        if not told.exists():
            return Answer(red="the end of the tests' process", seconds=seconds, output=output)
        return Answer(**json.loads(told.read_text()), seconds=seconds, output=output)


def _end(pid: int | None, child: multiprocessing.process.BaseProcess) -> None:
    """Let fixtures clean up first: a child that hangs may hold a database server."""
    if pid is None:
        return
    os.kill(pid, signal.SIGINT)
    child.join(5)
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    child.join()


def _run_tests(root: Path, mutant: Mutant | None, stage: Stage, folder: Path) -> None:
    os.setsid()
    with (folder / "output").open("wb") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.chdir(root)
    sys.path.insert(0, str(root))
    os.environ.update({"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "HYPOTHESIS_STORAGE_DIRECTORY": str(folder)})
    os.environ.update(stage.environment)
    # One failing example is enough: it is neither shrunk nor kept.
    settings.register_profile("mutate", database=None, phases=[Phase.explicit, Phase.generate])
    settings.load_profile("mutate")
    if mutant is not None:
        install(mutant, root)
    first = _FirstRed()
    code = int(pytest.main([*stage.arguments, *PYTEST, f"--basetemp={folder / 'tmp'}"], plugins=[first]))
    red = None if code == 0 else first.red or f"pytest's exit code {code}"
    (folder / "told.json").write_text(json.dumps({"red": red, "test": first.test}))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # threads that a mutant has left hanging are not waited for


class _FirstRed:
    """A pytest plug-in that remembers the first test that failed."""

    def __init__(self) -> None:
        self.red: str | None = None
        self.test: str | None = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self.red is None:
            self.red = self.test = report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and self.red is None:
            self.red = f"the import of {report.nodeid}"
