"""The tests with the lowest, the pinned and the newest versions, into docs/compatibility.md.

    python -m deploy.dev.matrix [--only NAME ...] [--smoke] [--page]

Each environment is made in a temporary folder, by pip from the registry, and deleted after its suites. Some take
several GB. The lowest one stays until the last: it and the others train on from each other's snapshots. --smoke runs a
few tests in the lowest and the newest. The page is written when all environments were asked for.
Exit status 1: a suite, an installation or an exchange failed, or an interpreter is missing.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import tomllib

from deploy.dev.matrix.exchange import STRATEGIES, Exchange, Refused, read_snapshots, write_snapshots
from deploy.dev.matrix.page import Result, render_exchanges, render_page, render_table
from deploy.dev.matrix.suites import Outcome, run_suite, skip_reasons
from deploy.dev.matrix.table import ENVIRONMENTS, Environment, Level, lowest_versions, requirements_of
from deploy.dev.matrix.venvs import NotBuilt, Venv, build_venv, build_wheel, find_interpreter

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "compatibility.md"


@dataclass
class Bench:
    """Makes the environments one after the other in `folder`."""

    folder: Path
    is_smoke: bool
    wheel: Path
    pyproject: dict[str, Any]
    exchanges: list[Exchange] = field(default_factory=list)
    _first: tuple[Environment, Venv] | None = None  # the one that the others exchange snapshots with

    def run(self, environment: Environment) -> Result:
        """Build it, run its suites, exchange snapshots with the first one that does, and delete it."""
        place = self.folder / environment.name
        try:
            venv = self._build(environment, place / "venv")
        except NotBuilt as error:
            shutil.rmtree(place, ignore_errors=True)
            return Result(environment, {}, problem=str(error))
        suites = environment.smoke if self.is_smoke else environment.suites
        outcomes = tuple(self._test(venv, environment, place, suite.name) for suite in suites)
        if environment.exchanges:
            self._exchange(environment, venv)
        python, versions = venv.python_version(), venv.versions()
        reasons = tuple(skip_reasons(place / suite.name for suite in suites))
        if self._first is None or self._first[1] != venv:
            shutil.rmtree(place)
        return Result(environment, versions, python, outcomes, reasons)

    def _build(self, environment: Environment, folder: Path) -> Venv:
        interpreter = find_interpreter(environment.python)
        if interpreter is None:
            raise NotBuilt(f"there is no python{environment.python} on PATH")
        folder.parent.mkdir()
        began = time.monotonic()
        packages = (f"{self.wheel}[{','.join(environment.extras)}]", *environment.tools)
        venv = build_venv(interpreter, folder, packages, self._constraints(environment))
        _say(f"{environment.name}: installed in {time.monotonic() - began:.0f} s")
        return venv

    def _constraints(self, environment: Environment) -> str:
        match environment.level:
            case Level.LOWEST:
                return "\n".join(lowest_versions(requirements_of(self.pyproject, environment.extras)))
            case Level.PINNED:
                return (ROOT / "constraints.txt").read_text()
            case Level.NEWEST:
                return ""

    def _test(self, venv: Venv, environment: Environment, place: Path, name: str) -> Outcome:
        suite = next(each for each in (*environment.suites, *environment.smoke) if each.name == name)
        began = time.monotonic()
        outcome = run_suite(suite, venv, ROOT, place / name)
        told = outcome.problem or f"{outcome.passed} passed, {len(outcome.failed)} failed, {outcome.skipped} skipped"
        _say(f"{environment.name}: {name}: {told}, {time.monotonic() - began:.0f} s")
        for name in (*outcome.failed, *outcome.again):
            _say(f"  {'failed twice' if name in outcome.failed else 'passed alone'}: {name}")
        return outcome

    def _exchange(self, environment: Environment, venv: Venv) -> None:
        """Write snapshots, and train on from those of the first; it does so from these."""
        self._first = self._first or (environment, venv)
        for strategy in STRATEGIES:
            try:
                write_snapshots(venv, strategy, self._job(strategy, environment))
            except Refused as error:
                self._note(Exchange(strategy, environment.name, environment.name, f"not written: {error}"))
                continue
            self._read(strategy, self._first[0], environment, venv)
            if environment is not self._first[0]:
                self._read(strategy, environment, *self._first)

    def _read(self, strategy: str, writer: Environment, reader: Environment, venv: Venv) -> None:
        problem = None
        try:
            copy = self.folder / "exchange" / f"{strategy}-{writer.name}-{reader.name}"
            read_snapshots(venv, strategy, self._job(strategy, writer), copy)
        except (Refused, OSError) as error:
            problem = str(error)
        self._note(Exchange(strategy, writer.name, reader.name, problem))

    def _note(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)
        told = exchange.problem or "trained on"
        _say(f"{exchange.strategy} snapshot of {exchange.writer} in {exchange.reader}: {told}")

    def _job(self, strategy: str, writer: Environment) -> Path:
        return self.folder / "exchange" / f"{strategy}-{writer.name}"


def _say(text: str) -> None:
    print(text, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    names = [each.name for each in ENVIRONMENTS]
    parser = argparse.ArgumentParser(
        prog="python -m deploy.dev.matrix", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--smoke", action="store_true", help="a few tests, in the lowest and the newest")
    parser.add_argument("--page", action="store_true", help="write the page also after a part, which it names")
    options = parser.parse_args(argv)
    chosen = [
        each for each in ENVIRONMENTS if each.name in (options.only or names) and (each.smoke or not options.smoke)
    ]
    with tempfile.TemporaryDirectory(prefix="matrix-") as name:
        folder = Path(name)
        pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
        bench = Bench(folder, options.smoke, build_wheel(ROOT, folder / "wheel"), pyproject)
        results = [bench.run(environment) for environment in chosen]
    _say("\n".join(["", *render_table(results), "", *render_exchanges(bench.exchanges)]))
    if options.page or (not options.smoke and len(chosen) == len(ENVIRONMENTS)):
        rest = [Result(each, {}, problem="not asked for") for each in ENVIRONMENTS if each not in chosen]
        words = " ".join(sys.argv[1:] if argv is None else argv)
        command = f'make matrix ARGS="{words}"' if words else "make matrix"
        extras = sorted({extra for environment in ENVIRONMENTS for extra in environment.extras})
        declared = [requirement.name for requirement in requirements_of(pyproject, extras)]
        today = datetime.now(timezone.utc).date()
        PAGE.write_text(render_page([*results, *rest], bench.exchanges, declared, command, today))
    is_good = all(result.is_good for result in results) and not any(each.problem for each in bench.exchanges)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
