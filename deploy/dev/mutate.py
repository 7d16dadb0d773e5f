"""Mutation tests: remove each guard and each rule in turn. Some test must then fail.

    python -m deploy.dev.mutate [--only SUBSTRING] [--jobs N] [--list]          # or: make mutate ARGS="--only rules"

A module's tests are those that import it, or those that SUITES names. EQUIVALENT lists the mutants that no test can
notice, with reasons. The working tree is not changed: one process imports the slow modules and forks for each mutant,
and the fork imports the mutant instead of the module.

Exit status:

- 0: every mutant was killed or is listed as equivalent.
- 1: a mutant survived, or a listed one was killed.
- 2: no result. The tests fail without a mutant, or a table is out of date.
"""

from __future__ import annotations

import argparse
import ast
import gc
import importlib
import os
import re
import resource
import sys
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType

import pytest
from hypothesis import Phase, settings

ROOT = Path(__file__).parents[2]
FAST_TESTS = (
    *(f"tests/{folder}/test_*.py" for folder in ("identity", "unit")),
    *(f"tests/kubernetes/test_{name}.py" for name in ("replay", "sight", "states")),
)


@dataclass(frozen=True, kw_only=True)
class Suite:
    """Patterns of modules, each of which must match a file, and the tests that check them, fastest first.

    Without tests, each module is checked by those that import it (`choose_tests`).
    """

    modules: Sequence[str]
    tests: Sequence[str] = ()
    keyword: str = ""  # pytest's -k
    races: bool = False  # the tests use threads: a failure counts if it happens twice


def _domain(*names: str) -> list[str]:
    return [f"orchestrator/domain/**/{name}.py" for name in names]


def _on_sqlite(modules: Sequence[str], *tests: str, keyword: str = "sqlite") -> Suite:
    return Suite(modules=modules, tests=[f"tests/{test}.py" for test in tests], keyword=keyword, races=True)


# If a module matches two suites, the later one counts.
SUITES = (
    Suite(
        modules=[
            *_domain("*"),
            *(f"orchestrator/backends/kubernetes/{name}.py" for name in ("states", "sight")),
            *(f"orchestrator/commands/{name}.py" for name in ("checks", "job_commands", "plans")),
            "orchestrator/supervisor/*.py",
            *(f"trainer/contract/{name}.py" for name in ("chaos", "failure", "fence", "restart_policy", "silence")),
        ]
    ),
    Suite(
        modules=[
            *(f"orchestrator/supervisor/{name}.py" for name in ("lease_keeper", "loop")),
            "orchestrator/intake/reception.py",
        ],
        races=True,
    ),
    Suite(modules=["orchestrator/commands/plans.py"], tests=["tests/unit/test_plans.py"]),
    Suite(
        modules=_domain("why"),
        tests=[f"tests/unit/test_{name}.py" for name in ("why", "remedies", "quiet", "chronicle")],
    ),
    _on_sqlite(["orchestrator/store/lease_store.py"], "contract/test_leases", "contract/test_guard"),
    _on_sqlite(
        [f"orchestrator/store/{name}.py" for name in ("supervisor_store", "node_records", "overview")],
        "contract/test_supervisor_store",
        "store/test_supervision",
    ),
    _on_sqlite(["orchestrator/store/job_store.py"], "store/test_jobs", "contract/test_job_requests"),
    _on_sqlite(_domain("row_limits"), "store/test_bounds"),
    _on_sqlite(["orchestrator/store/cluster_reader.py"], "store/test_clusters"),
    _on_sqlite(
        [f"orchestrator/store/{name}.py" for name in ("journal_rows", "journal_store")],
        "store/test_journals",
        "store/test_journal_delivery",
        "store/test_bounds",
    ),
    _on_sqlite(["orchestrator/store/outbox_store.py"], "outbox/test_store"),
    _on_sqlite(["orchestrator/webhooks/outbox.py"], "outbox/test_delivery", keyword="sqlite and (signed or private)"),
)
# Of the modules above: those that validate user input, which the API's tests cover.
LEFT_OUT = _domain("spec", "unsupported", "validation")
EQUIVALENT = {
    "lease_store.py:_take: if row.holder != holder and row.expires_at > now": (
        "Nobody takes a lease after the first check on SQLite, which has one writer; test_postgres_leases has the race."
    ),
    "route_roles.py:needs_place: without rule.role is not None": (
        "Every rule about a job names a role; only the type allows None."
    ),
    "route_roles.py:_judge_in: without project is None": "A path with a project names one, and a job has one.",
    "last_samples.py:find_minute: without rank is None": "Without a rank no sample fits; only the type needs it.",
    "sharing.py:choose_successor: without requester is None": "It returns the requester, which is None then.",
    "waiting.py:_find_start: without slots is None": (
        "A job waits for slots only where the cluster has some; only the type needs it."
    ),
    "states.py:find_job_cause: without meaning.kind is None": (
        "Every row of JOB_REASONS has a kind; the type is shared with tables whose rows may have none."
    ),
}

# Slow imports that most tests need. Modules that are not installed are skipped.
_WARM = (
    *("alembic.command", "fastapi", "httpx", "hypothesis.stateful", "prometheus_client", "psycopg"),
    *("pydantic_settings", "pytest_timeout", "sqlalchemy.dialects.postgresql", "sqlalchemy.orm"),
    *("starlette.testclient", "structlog", "torchx.specs", "uvicorn", "yaml"),
)
# No cache and no installed plugins. A test that hangs has noticed the mutant.
_PYTEST = (
    "-x",
    "-q",
    "-p",
    "pytest_timeout",
    "-p",
    "no:cacheprovider",
    "--assert=plain",
    "--no-header",
    "-otimeout=100",
)
_FILES = 4
_CPU_LIMIT_S = 300  # of one mutant, for an endless loop outside a test
_FIRST_RED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


class StaleTable(Exception):
    """A table names something that does not exist. The message says what."""


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """Replace `source[start:end]` of a module, in bytes of UTF-8, by `replacement`."""

    path: str  # of the module, from the root of the repository
    name: str  # unique in its module, and stable while function and condition do not change
    start: int
    end: int
    replacement: str

    def applied_to(self, source: str) -> str:
        text = source.encode()
        return (text[: self.start] + self.replacement.encode() + text[self.end :]).decode()


def find_mutants(path: str, source: str) -> list[Mutant]:
    """Find every rule and every guard of a module in the order of its source. Raises SyntaxError.

    A policy is a tuple at module level whose name ends with POLICY. Each of its rules is removed in turn. A guard is an
    `if` whose body ends in return, raise or continue, or the condition of `return x if condition else y`. Its condition
    becomes False. In a condition or returned value with `and` or `or`, each part is removed too: it becomes True in an
    `and` and False in an `or`.
    """
    text, line_starts = source.encode(), [0]
    for line in text.split(b"\n"):
        line_starts.append(line_starts[-1] + len(line) + 1)
    seen: Counter[str] = Counter()
    mutants = []
    for place, what, node, replacement in _find(ast.parse(source), ()):
        start = line_starts[node.lineno - 1] + node.col_offset
        end = line_starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        name = f"{Path(path).name}:{'.'.join(place)}: {what} {' '.join(text[start:end].decode().split())}"
        seen[name] += 1
        unique = name if seen[name] == 1 else f"{name} ({seen[name]})"
        mutants.append(Mutant(path=path, name=unique, start=start, end=end, replacement=replacement))
    return mutants


_Found = tuple[tuple[str, ...], str, ast.expr, str]  # class and function, kind of change, node, replacement


def _find(node: ast.AST, place: tuple[str, ...]) -> Iterator[_Found]:
    for child in ast.iter_child_nodes(node):
        inner = place
        match child:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                inner = (*place, child.name)
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=ast.Tuple(elts=rules))
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.Tuple(elts=rules))
            ) if not place and name.endswith("POLICY"):
                yield from (((name,), "without", rule, "*()") for rule in rules)
            case ast.If(test=test, body=[*_, ast.Return() | ast.Raise() | ast.Continue()]):
                yield place, "if", test, "False"
                yield from _parts(test, place)
            case ast.Return(value=ast.IfExp(test=test)):
                yield place, "return if", test, "False"
                yield from _parts(test, place)
            case ast.Return(value=ast.BoolOp() | ast.UnaryOp() as value):
                yield from _parts(value, place)
        yield from _find(child, inner)


def _parts(condition: ast.expr, place: tuple[str, ...]) -> Iterator[_Found]:
    match condition:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield from _parts(operand, place)
        case ast.BoolOp(op=op, values=parts):
            for part in parts:
                yield place, "without", part, "True" if isinstance(op, ast.And) else "False"
                yield from _parts(part, place)


def modules_of(root: Path, suites: Iterable[Suite], left_out: Sequence[str] = ()) -> dict[str, Suite]:
    """Map each module, by its path from the root, to its suite. Raises StaleTable."""

    found = {path: suite for suite in suites for path in _match(root, suite.modules)}
    for path in _match(root, left_out):
        found.pop(path, None)
    return found


def _match(root: Path, patterns: Sequence[str]) -> list[str]:
    """Return the files, by their paths from the root. Raises StaleTable for a pattern without a file."""
    for pattern in patterns:
        if not _list(root, [pattern]):
            raise StaleTable(f"no file matches {pattern}")
    return _list(root, patterns)


def _list(root: Path, patterns: Iterable[str]) -> list[str]:
    return [path.relative_to(root).as_posix() for pattern in patterns for path in sorted(root.glob(pattern))]


def find_all(root: Path, suites: Iterable[Suite], left_out: Sequence[str]) -> list[tuple[Mutant, Suite]]:
    """Find the mutants of all suites. Raises StaleTable."""
    by_import = choose_tests(root)
    return [
        (each, suite if suite.tests else replace(suite, tests=by_import(path)))
        for path, suite in modules_of(root, suites, left_out).items()
        for each in find_mutants(path, (root / path).read_text())
    ]


def choose_tests(root: Path) -> Callable[[str], Sequence[str]]:
    """Return a function that names the tests of a module: the fast ones that import it, nearest first.

    A test is near if it imports the module, and less near if it imports a module that does. The nearest ones and those
    one step farther count. Raises StaleTable for a module without such tests.
    """
    modules = _list(root, ("orchestrator/**/*.py", "trainer/**/*.py"))
    names = {path.removesuffix(".py").replace("/", "."): path for path in modules}
    importers = defaultdict(list)
    for path in [*modules, *_list(root, FAST_TESTS)]:
        for name in _imported((root / path).read_text()) & names.keys():
            importers[names[name]].append(path)

    def levels(module: str) -> Iterator[list[str]]:
        """Yield the files that import the module, then those that import these, and so on."""
        seen, level = {module}, [module]
        while level:
            level = [
                each for each in dict.fromkeys(above for one in level for above in importers[one]) if each not in seen
            ]
            seen.update(level)
            yield level

    @cache
    def find(module: str) -> Sequence[str]:
        tests = [[each for each in level if each not in modules] for level in levels(module)]
        nearest = next((number for number, found in enumerate(tests) if found), None)
        if nearest is None:
            raise StaleTable(f"no test imports {module}")
        near, farther = tests[nearest : nearest + 2]
        return [*sorted(near, key=size), *sorted(farther, key=size)]

    def size(path: str) -> int:
        return (root / path).stat().st_size

    return find


def _imported(source: str) -> set[str]:
    """Return the names that may be modules."""
    found = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    return {name for node in found for each in node.names for name in (f"{node.module}", f"{node.module}.{each.name}")}


def find_red(
    root: Path, trials: Iterable[tuple[Mutant | None, Suite]], jobs: int
) -> Iterator[tuple[Mutant | None, str | None]]:
    """Yield each mutant (None: no mutant) with the first test that fails, or None if all pass."""
    with warnings.catch_warnings(action="ignore"):
        for name in _WARM:
            with suppress(ImportError):
                importlib.import_module(name)
    gc.freeze()  # a garbage collection would copy this memory in each child
    running: dict[int, tuple[Mutant | None, Suite, Path]] = {}
    again: set[str] = set()  # names of mutants that failed once and run again
    waiting = list(trials)[::-1]
    with tempfile.TemporaryDirectory(prefix="mutate-", ignore_cleanup_errors=True) as folder:
        while waiting or running:
            if waiting and len(running) < jobs:
                mutant, suite = waiting.pop()
                place = Path(tempfile.mkdtemp(dir=folder))
                sys.stdout.flush()
                pid = os.fork()
                if pid == 0:
                    _run_tests(root, mutant, suite, place)
                running[pid] = mutant, suite, place
                continue
            pid, status = os.wait()
            mutant, suite, place = running.pop(pid)
            printed = (place / "output").read_text(errors="replace")
            first = _FIRST_RED.search(printed)
            red = None if status == 0 else first[1] if first else f"status {status}: {printed[-1000:]}"
            if red is not None and suite.races and mutant is not None and mutant.name not in again:
                again.add(mutant.name)
                waiting.append((mutant, suite))
                continue
            yield mutant, red


def _run_tests(root: Path, mutant: Mutant | None, suite: Suite, folder: Path) -> None:
    """Run the tests in a fork. Does not return."""
    status = 3
    try:
        with (folder / "output").open("wb") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        resource.setrlimit(resource.RLIMIT_CPU, (_CPU_LIMIT_S, _CPU_LIMIT_S))
        os.chdir(root)
        sys.path.insert(0, str(root))
        os.environ |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "HYPOTHESIS_STORAGE_DIRECTORY": f"{folder}/hypothesis"}
        # One failing example is enough, so it is neither shrunk nor stored.
        settings.register_profile("mutate", database=None, phases=[Phase.explicit, Phase.generate])
        settings.load_profile("mutate")
        if mutant is not None:
            _install(mutant, root)
        more = ("-k", suite.keyword, *_PYTEST, f"--basetemp={folder / 'tmp'}")
        # A few files at a time: most mutants are killed by the first ones, and to import all takes long.
        for start in range(0, len(suite.tests), _FILES):
            status = int(pytest.main([*suite.tests[start : start + _FILES], *more]))
            if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
                break
            status = 0
        sys.stdout.flush()
    finally:
        os._exit(status)  # does not wait for threads that a mutant blocks


def _install(mutant: Mutant, root: Path) -> None:
    """Make this process import the mutant. Raises RuntimeError if the module is already imported."""
    name = mutant.path.removesuffix(".py").replace("/", ".")
    if name in sys.modules:
        raise RuntimeError(f"{name} is already imported, so its mutant cannot replace it")
    text, original = mutant.applied_to((root / mutant.path).read_text()), SourceFileLoader.get_code

    def get_code(self: SourceFileLoader, fullname: str) -> CodeType | None:
        return compile(text, self.path, "exec", dont_inherit=True) if fullname == name else original(self, fullname)

    SourceFileLoader.get_code = get_code  # type: ignore[assignment,method-assign]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m deploy.dev.mutate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", metavar="SUBSTRING", default="", help="mutants whose name or path contains SUBSTRING")
    parser.add_argument(
        "-j", "--jobs", type=int, default=os.cpu_count() or 1, help="mutants at one time (default: one per core)"
    )
    parser.add_argument("--list", action="store_true", help="print the mutants' names and run nothing")
    options = parser.parse_args()
    try:
        mutants = find_all(ROOT, SUITES, LEFT_OUT)
        if gone := EQUIVALENT.keys() - {mutant.name for mutant, _ in mutants}:
            raise StaleTable(f"EQUIVALENT lists mutants that do not exist: {', '.join(sorted(gone))}")
    except StaleTable as error:
        print(error, file=sys.stderr)
        return 2
    chosen = [(each, suite) for each, suite in mutants if options.only in f"{each.path}:{each.name}"]
    if options.list:
        print("\n".join(f"{Path(mutant.path).parent}/{mutant.name}" for mutant, _ in chosen))
        return 0
    return judge(ROOT, chosen, EQUIVALENT.keys(), options.jobs)


def judge(root: Path, mutants: Sequence[tuple[Mutant, Suite]], equivalent: Iterable[str], jobs: int) -> int:
    """Run all mutants and print the results. Returns the exit status."""
    began, listed = time.monotonic(), frozenset(equivalent)
    used = dict.fromkeys((name, suite.keyword) for _, suite in mutants for name in suite.tests)
    whole = [Suite(modules=(), tests=[name], keyword=keyword) for name, keyword in used]
    for _, red in find_red(root, [(None, suite) for suite in whole], jobs):
        if red is not None:
            print(f"{red} fails without a mutant", file=sys.stderr)
            return 2
    counts: Counter[str] = Counter()
    wrong = []
    for mutant, red in find_red(root, mutants, jobs):
        assert mutant is not None
        is_listed = mutant.name in listed
        word = (
            ("killed, though listed" if is_listed else "killed") if red else ("equivalent" if is_listed else "SURVIVED")
        )
        counts[word] += 1
        line = f"{word} {Path(mutant.path).parent}/{mutant.name}" + (f"  <- {red}" if red else "")
        print(line, flush=True)
        if (red is None) is not is_listed:
            wrong.append(line)
    reported = ", ".join(f"{count} {word}" for word, count in counts.items())
    print("\n".join(["", *wrong, f"{len(mutants)} mutants in {time.monotonic() - began:.0f} s: {reported}"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
