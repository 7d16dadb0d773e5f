"""Run the tests with the lowest, the pinned and the newest versions, and write docs/compatibility.md.

    python -m deploy.dev.matrix [--only NAME ...] [--smoke] [--page]

pip installs each environment from the registry into a temporary folder, which is deleted after its suites. Some take
several GB. The first trainer environment stays to the end, because it and the others continue from each other's
snapshots. --smoke runs a few tests in the lowest and the newest environment, and each continues from a sharded snapshot
of the other. The page is written after a run of all environments. Exit status 1: a suite, an installation or an
exchange failed, or an interpreter is missing.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, datetime, timezone
from enum import StrEnum
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import tomllib
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from trainer.contract import env, layout
from trainer.contract.manifest import parse_snapshot_name

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "compatibility.md"
_SUITE_S, _INSTALL_S, _TRAINING_S = 3000, 2400, 600


class Level(StrEnum):
    LOWEST = "lowest"  # every dependency at its declared bound
    PINNED = "pinned"  # constraints.txt, with which CI runs
    NEWEST = "newest"  # the newest versions in the registry today


@dataclass(frozen=True)
class Suite:
    name: str
    paths: tuple[str, ...]
    workers: int = 2  # processes that run tests. Each imports torch; 0: only pytest's own


@dataclass(frozen=True)
class Environment:
    name: str
    python: str
    level: Level
    extras: tuple[str, ...]  # of this project
    tools: tuple[str, ...]  # more packages for the tests, in the newest compatible versions
    suites: tuple[Suite, ...]
    smoke: tuple[Suite, ...] = ()  # suites for --smoke; without any, --smoke skips the environment
    exchanges: bool = False  # whether it exchanges snapshots with other environments


_TOOLS = ("hypothesis", "pytest", "pytest-timeout", "pytest-xdist")
_TRAINER, _SERVICE = ("torch", "s3", "tensorboard"), ("otel", "postgres")
_LONG = ("async_snapshots", "snapshot_exchange", "strategies")
_TRAINER_SUITES = (
    Suite("launcher", ("tests/elastic",)),
    Suite("snapshots", tuple(f"tests/trainer/long/test_{name}.py" for name in _LONG)),  # whole runs
    Suite("trainer", ("tests/trainer", *(f"tests/unit/test_contract_{name}.py" for name in ("documents", "failure")))),
)
_A_KILL = "tests/elastic/test_agent_end_to_end.py::test_every_killed_worker_recovers_and_the_generation_rises"
_SURVIVORS = "tests/elastic/long/test_surviving_workers.py"
_SMOKE = Suite(
    "smoke",
    (
        "tests/elastic/test_flags.py",
        _A_KILL,
        f"{_SURVIVORS}::test_under_ddp_no_step_is_repeated_and_the_curve_is_the_same[2]",
        "tests/elastic/test_mirrored_copies.py",
        "tests/trainer/test_completed_step.py",
        "tests/trainer/test_reading.py",
        "tests/trainer/test_sharding.py",
        "tests/trainer/test_warmup.py",
    ),
    workers=0,
)
_FOLDERS = (
    *("unit", "store", "api", "cli", "client", "contract", "dashboard", "identity", "kubernetes", "outbox", "property"),
    *("simulator", "slurm/test_render.py", "telemetry"),
)
_SERVICE_TESTS = Suite("service", tuple(f"tests/{folder}" for folder in _FOLDERS))


def _trainer(name: str, python: str, level: Level, *smoke: Suite) -> Environment:
    return Environment(name, python, level, _TRAINER, _TOOLS, _TRAINER_SUITES, smoke, exchanges=True)


def _service(name: str, python: str, level: Level) -> Environment:
    return Environment(name, python, level, _SERVICE, (*_TOOLS, "jsonschema", "kubernetes-validate"), (_SERVICE_TESTS,))


ENVIRONMENTS = (
    _service("service-lowest", "3.11", Level.LOWEST),
    _service("service-pinned", "3.12", Level.PINNED),
    _service("service-newest", "3.13", Level.NEWEST),
    _trainer("lowest", "3.10", Level.LOWEST, _SMOKE),
    _trainer("pinned", "3.11", Level.PINNED),
    _trainer("middle", "3.12", Level.PINNED),
    _trainer("newest", "3.13", Level.NEWEST, _SMOKE),
)


class Failed(Exception):
    """A command failed, an interpreter is missing, losses differ, or a bound is unclear. The message says which."""


def read_requirements(pyproject: Mapping[str, Any], extras: Iterable[str]) -> list[Requirement]:
    """Return the requirements of this project with these extras."""
    project = pyproject["project"]
    optional = project["optional-dependencies"]
    return [Requirement(text) for text in (*project["dependencies"], *(t for extra in extras for t in optional[extra]))]


def lowest_versions(requirements: Iterable[Requirement]) -> list[str]:
    """Return the lines of a constraints file with each requirement at its lower bound. Raises Failed."""
    return sorted({_lowest(requirement) for requirement in requirements})


def _lowest(requirement: Requirement) -> str:
    bounds = [each.version for each in requirement.specifier if each.operator in (">=", "==", "~=")]
    if len(bounds) != 1:
        raise Failed(f"{requirement} declares {len(bounds) or 'no'} lowest versions; declare one, for example >=1.2.3")
    marker = f"; {requirement.marker}" if requirement.marker else ""
    return f"{requirement.name}=={bounds[0]}{marker}"


@dataclass(frozen=True)
class Venv:
    """An environment on disk."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def build(self, interpreter: Path, packages: Sequence[str], constraints: str) -> None:
        """Install packages with this constraints file instead of the machine's. Raises Failed."""
        self.folder.mkdir(parents=True)
        limits = self.folder / "constraints.txt"
        limits.write_text(constraints)
        run([interpreter, "-m", "venv", "--without-pip", self.folder], self.folder)
        self.install(packages, limits)
        run([*self._pip, "check"], self.folder)

    def install(self, packages: Sequence[str], constraints: Path) -> None:
        """Install without compiling, because most modules of torch are never imported. Raises Failed."""
        command = [*self._pip, "install", "--quiet", "--no-compile", *packages]
        run(command, self.folder, PIP_CONSTRAINT=str(constraints))

    def versions(self) -> dict[str, str]:
        """Return the installed versions by canonical name, and that of `Python`."""
        code = "import json, platform, importlib.metadata as m; print(json.dumps([platform.python_version(), "
        code += "{d.name: d.version for d in m.distributions()}]))"
        python, packages = json.loads(run([self.python, "-c", code], self.folder))
        return {"Python": python, **{canonicalize_name(name): version for name, version in packages.items()}}

    @property
    def _pip(self) -> list[str | Path]:
        """Our pip, for this environment, which needs none of its own."""
        return [sys.executable, "-m", "pip", "--python", self.python]


def run(command: Sequence[str | Path], folder: Path, *, limit_s: float = _INSTALL_S, **variables: str) -> str:
    """Run a command and return its output. Raises Failed."""
    environ = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", **variables}
    environ.pop("PYTHONPATH", None)
    shown = " ".join(Path(word).name if isinstance(word, Path) else word for word in command)[:200]
    try:
        done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{shown}: not finished after {limit_s} s") from error
    if done.returncode != 0:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line and not line.startswith("WARNING")]
        raise Failed(f"{shown}: {' | '.join(lines[-4:]) or f'exit status {done.returncode}'}")
    return done.stdout


def find_interpreter(version: str) -> Path:
    """Return the interpreter that `pythonX.Y` on PATH runs. Raises Failed.

    Names that do not run are skipped. A pyenv shim runs a version only if PYENV_VERSION names it.
    """
    code = "import sys; print(sys.executable, '%d.%d' % sys.version_info[:2])"
    for folder in os.get_exec_path():
        with suppress(Failed, OSError):
            path, found = run([f"{folder}/python{version}", "-c", code], Path("/"), PYENV_VERSION=version).split()
            if found == version:
                return Path(path)
    raise Failed(f"there is no python{version} on PATH")


def build_wheel(folder: Path) -> Path:
    """Build this project's wheel from a copy of the tracked files, because a build writes beside its sources."""
    sources = folder / "sources"
    run(["git", "checkout-index", "--all", f"--prefix={sources}/"], ROOT)
    run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, sources], folder)
    return next(folder.glob("*.whl"))


@dataclass(frozen=True)
class Outcome:
    """The result of a suite."""

    suite: str
    passed: int = 0
    skipped: int = 0
    failed: tuple[str, ...] = ()
    problem: str | None = None  # why the suite has no report

    @property
    def is_good(self) -> bool:
        return self.problem is None and not self.failed and self.passed > 0


def run_suite(suite: Suite, venv: Venv, folder: Path) -> Outcome:
    """Run a suite. `folder` gets the report, the cache and the tests' temporary folders."""
    folder.mkdir(parents=True)
    report, printed = folder / "report.xml", folder / "printed"
    basetemp = folder.parents[1] / "t"  # short, because a socket's path has at most 107 bytes (unix(7))
    command: list[str | Path] = [
        venv.python,
        "-m",
        "pytest",
        "-q",
        "-n",
        str(suite.workers),
        "--dist",
        "worksteal",
        "--ignore-glob=*/live/*",
    ]
    command += ["--ignore-glob=*/long/*", f"--junitxml={report}", f"--basetemp={basetemp}", *suite.paths]
    command.append(f"--override-ini=cache_dir={folder / 'cache'}")
    with printed.open("w") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            process.wait(_SUITE_S)
        except subprocess.TimeoutExpired:
            return Outcome(suite.name, problem=f"not finished after {_SUITE_S} s")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # pytest and the rest of its process group
            process.wait()
    if not report.exists():
        words = printed.read_text(errors="replace").strip()[-300:]
        return Outcome(suite.name, problem=f"exit status {process.returncode}: {words}")
    return parse_report(suite.name, report.read_text(errors="replace"))


def parse_report(suite: str, text: str) -> Outcome:
    """Count the tests of a JUnit file. A test with a failure and an error in its teardown counts once."""
    passed = skipped = 0
    failed: dict[str, None] = {}
    for case in ElementTree.fromstring(text).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            failed[f"{case.get('classname') or ''}::{case.get('name')}"] = None
        elif case.find("skipped") is not None:
            skipped += 1
        else:
            passed += 1
    return Outcome(suite, passed, skipped, tuple(failed))


_SHARDED = "fsdp"
STRATEGIES = ("ddp", _SHARDED)
_STEPS, _RESTORED = 6, 4  # the reader repeats the last two steps
_TOLERANCE = 1e-4  # relative, of the loss: releases of torch may sum in a different order
_CONFIG = {
    "preset": "nano",
    "seq_len": 32,
    "data": str(ROOT / "CHANGELOG.md"),  # not the standard library, which differs between Python versions
    "global_batch": 8,
    "micro_batch": 2,
    "steps": _STEPS,
    "snapshot_interval": 2,
    "snapshot_keep": 10,
}


@dataclass(frozen=True)
class Exchange:
    """One environment writes a snapshot and another one continues from it, both with the installed wheel."""

    strategy: str
    writer: str
    reader: str
    problem: str | None = None


def train(venv: Venv, strategy: str, job_dir: Path, *, attempt: int) -> None:
    """Train on two ranks up to step 6, with a snapshot every two steps. Raises Failed."""
    job_dir.mkdir(parents=True, exist_ok=True)
    marks = {env.JOB_DIR: str(job_dir), env.ATTEMPT: str(attempt), env.CLAIM: "matrix", "OMP_NUM_THREADS": "1"}
    program = ["-m", "trainer", "--config", json.dumps({**_CONFIG, "strategy": strategy})]
    command: list[str | Path] = [venv.folder / "bin" / "elasticrun", "--standalone", "--nproc-per-node=2", *program]
    run(command, job_dir, limit_s=_TRAINING_S, **marks)


def train_on(venv: Venv, strategy: str, written: Path, job_dir: Path) -> None:
    """Copy the job, verify its snapshots up to step 4, and continue from there. Raises Failed."""
    shutil.copytree(written, job_dir)
    for path in sorted(layout.snapshots_dir(job_dir).iterdir()):
        name = parse_snapshot_name(path.name)
        if name is not None and name.step > _RESTORED:
            shutil.rmtree(path)
        elif name is not None:
            run([venv.python, "-m", "trainer.snapshot", "verify", path], job_dir)
    train(venv, strategy, job_dir, attempt=2)
    wanted, found = read_losses(job_dir, 1), read_losses(job_dir, 2)
    if sorted(found) != list(range(_RESTORED + 1, _STEPS + 1)):
        raise Failed(f"the second attempt completed steps {sorted(found)}")
    for step, loss in found.items():
        if not math.isclose(loss, wanted[step], rel_tol=_TOLERANCE):
            raise Failed(f"the loss of step {step} is {loss}, but was {wanted[step]} for the writer of the snapshot")


def read_losses(job_dir: Path, attempt: int) -> dict[int, float]:
    journals = layout.replica_dir(job_dir, attempt, 0).glob(f"*/{layout.PROGRESS}")
    lines = [json.loads(line) for path in journals for line in path.read_text().splitlines()]
    return {line["step"]: line["metrics"]["loss"] for line in lines if "loss" in line.get("metrics", {})}


@dataclass(frozen=True)
class Result:
    """The results of one environment. With a `problem` no suite was run."""

    environment: Environment
    versions: Mapping[str, str] = field(default_factory=dict)
    outcomes: Sequence[Outcome] = ()
    problem: str | None = None

    @property
    def is_good(self) -> bool:
        return self.problem is None and all(outcome.is_good for outcome in self.outcomes)


@dataclass
class Bench:
    """Builds the environments one after the other in `folder`."""

    folder: Path
    is_smoke: bool
    wheel: Path
    pyproject: Mapping[str, Any]
    exchanges: list[Exchange] = field(default_factory=list)
    _first: tuple[Environment, Venv] | None = None  # the others exchange snapshots with this one

    def run(self, environment: Environment) -> Result:
        """Build an environment, run its suites, exchange snapshots with the first one, and delete it."""
        place = self.folder / environment.name
        venv = Venv(place / "venv")
        packages = (f"{self.wheel}[{','.join(environment.extras)}]", *environment.tools)
        try:
            venv.build(find_interpreter(environment.python), packages, self._constraints(environment))
        except Failed as error:
            shutil.rmtree(place, ignore_errors=True)
            return Result(environment, problem=str(error))
        outcomes = []
        for suite in environment.smoke if self.is_smoke else environment.suites:
            outcomes.append(run_suite(suite, venv, place / suite.name))
            print(f"{environment.name}: {outcomes[-1]}", flush=True)
        if environment.exchanges:
            self._exchange(environment, venv)
        result = Result(environment, venv.versions(), outcomes)
        if self._first is None or self._first[1] != venv:
            shutil.rmtree(place)
        return result

    def _constraints(self, environment: Environment) -> str:
        match environment.level:
            case Level.LOWEST:
                return "\n".join(lowest_versions(read_requirements(self.pyproject, environment.extras)))
            case Level.PINNED:
                return (ROOT / "constraints.txt").read_text()
            case Level.NEWEST:
                return ""

    def _exchange(self, environment: Environment, venv: Venv) -> None:
        """Let this environment and the first one continue from each other's snapshots."""
        self._first = self._first or (environment, venv)
        first, first_venv = self._first
        for strategy in (_SHARDED,) if self.is_smoke else STRATEGIES:
            if environment is not first or not self.is_smoke:
                self._try(strategy, first, environment, venv)
            if environment is not first:
                self._try(strategy, environment, first, first_venv)

    def _try(self, strategy: str, writer: Environment, reader: Environment, venv: Venv) -> None:
        written, problem = self.folder / "exchange" / f"{strategy}-{writer.name}", None
        try:
            if not written.exists():
                train(Venv(self.folder / writer.name / "venv"), strategy, written, attempt=1)
            train_on(venv, strategy, written, written.with_name(f"{written.name}-{reader.name}"))
        except (Failed, OSError) as error:
            problem = str(error)
        self.exchanges.append(Exchange(strategy, writer.name, reader.name, problem))
        print(self.exchanges[-1], flush=True)


_WHY = """\
## Why these versions

The lowest version of a dependency is the lowest with which these suites pass. The suites treat warnings as errors, also
those of other packages. `pyproject.toml` declares the lowest versions. The newest are those in the registry on that
day. The service needs Python 3.11. The trainer and the launcher run in users' images and need 3.10.

torch 2.8 is the lowest because earlier releases cannot test all of sharded training without GPUs. In 2.6 FSDP2 does not
run on CPUs (their streams cannot record events), a distributed checkpoint cannot be saved outside of the group, and
DistributedDataParallel always synchronizes first. In 2.7 hybrid sharding does not run on CPUs, because FSDP2 asserts an
event that only devices have.

## Snapshots

Two ranks train. A second attempt with the other environment verifies a snapshot and continues from it. Its losses equal
those of the first attempt within one part in ten thousand.
"""


def render_page(
    results: Sequence[Result], exchanges: Sequence[Exchange], declared: Iterable[str], command: str, day: date
) -> str:
    """Render docs/compatibility.md. `declared` has the names of this project's dependencies."""
    failed = [
        f"- {result.environment.name}: `{name}` failed"
        for result in results
        for outcome in result.outcomes
        for name in outcome.failed
    ]
    built = [result for result in results if result.versions]
    names = ["Python", *sorted({canonicalize_name(name) for name in declared})]
    rows = [[name, *(result.versions.get(name, "") for result in built)] for name in names]
    lines = ["# Compatibility", "", f"Generated by `{command}` on {day.isoformat()}. Do not edit.", ""]
    lines += [*render_results(results), "", *failed, *([""] if failed else []), _WHY, *render_exchanges(exchanges), ""]
    lines += ["## Installed", "", _row(["", *(result.environment.name for result in built)])]
    return "\n".join([*lines, "|---" * (1 + len(built)) + "|", *(_row(row) for row in rows if any(row[1:]))]) + "\n"


def render_results(results: Sequence[Result]) -> list[str]:
    rows = ["| environment | Python | torch | suite | passed | failed | skipped |", "|---" * 7 + "|"]
    for result in results:
        python = result.versions.get("Python", result.environment.python)
        reported = [result.environment.name, python, result.versions.get("torch", "none")]
        rows += [
            _row([*reported, each.suite, each.passed, each.problem or len(each.failed), each.skipped])
            for each in result.outcomes
        ]
        if result.problem is not None:
            rows.append(_row([*reported, f"not run: {result.problem}", "", "", ""]))
    return rows


def render_exchanges(exchanges: Sequence[Exchange]) -> list[str]:
    rows = [_row([each.strategy, each.writer, each.reader, each.problem or "continued"]) for each in exchanges]
    return ["| strategy | written by | read by | |", "|---|---|---|---|", *rows]


def _row(cells: Sequence[object]) -> str:
    return "| " + " | ".join(" ".join(str(cell).replace("|", "/").split()) for cell in cells) + " |"


def main() -> int:
    names = [each.name for each in ENVIRONMENTS]
    parser = argparse.ArgumentParser(
        prog="python -m deploy.dev.matrix", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--smoke", action="store_true", help="run a few tests in the lowest and the newest environment")
    parser.add_argument("--page", action="store_true", help="write the page also after a run of some environments")
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # each process would compile torch
    chosen = [each for each in ENVIRONMENTS if each.name in options.only and (each.smoke or not options.smoke)]
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    with tempfile.TemporaryDirectory(prefix="matrix-") as name:
        folder = Path(name)
        bench = Bench(folder, options.smoke, build_wheel(folder), pyproject)
        results = [bench.run(environment) for environment in chosen]
    print("\n".join(["", *render_results(results), "", *render_exchanges(bench.exchanges)]))
    if options.page or (not options.smoke and len(chosen) == len(ENVIRONMENTS)):
        rest = [Result(each, problem="not requested") for each in ENVIRONMENTS if each not in chosen]
        command = f'make matrix ARGS="{" ".join(sys.argv[1:])}"' if sys.argv[1:] else "make matrix"
        extras = sorted({extra for environment in ENVIRONMENTS for extra in environment.extras})
        declared = [requirement.name for requirement in read_requirements(pyproject, extras)]
        today = datetime.now(timezone.utc).date()
        PAGE.write_text(render_page([*results, *rest], bench.exchanges, declared, command, today))
    return 0 if all(each.is_good for each in results) and not any(each.problem for each in bench.exchanges) else 1


if __name__ == "__main__":
    sys.exit(main())
