"""Check names and words. Part of `make check`. Print each violation with its file and exit with 1.

- At most two packages have a module of the same name.
- The words below are not used; docs/glossary.md has the field's.
- No function takes more than six parameters.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("orchestrator/", "trainer/")
MOST_PACKAGES, MOST_PARAMETERS = 2, 6

# Module names that several packages share on purpose.
ALIKE = frozenset({"__init__", "__main__", "backend", "client", "clock", "errors", "render", "sight", "site", "states"})

_WORDS = (
    "office|offices|pace|paces|seat|seats|glance|glances|harvest|wish|wishes|wished|deed|deeds|mend|mends|mended|untold"
)
_TEXT = re.compile(rf"(?<![A-Za-z])(?i:{_WORDS}|ending what is left|tells of no steps)(?![a-z])")
_CAMEL = re.compile(r"(?<=[a-z])(?:Office|Pace|Seat|Glance|Harvest|Wish|Deed|Mend|Told)(?:s|es|ed)?(?![a-z])")
_NAME = re.compile(r"(?<![A-Za-z])(?i:told|keeping)(?![a-z])")  # only in names

# Columns, API fields, keys of files and OpenAPI tags keep their names.
STORED = {
    "deed": ("orchestrator/wire/insight.py", "orchestrator/queries/accounts.py", "docs/reference/rest.md"),
    "deeds": (
        "orchestrator/wire/insight.py",
        "orchestrator/queries/accounts.py",
        "orchestrator/domain/explanation/why.py",
        "orchestrator/cli/insight.py",
        "orchestrator/dashboard/templates/job_time.html",
        "docs/reference/rest.md",
        "tests/",
    ),
    "errand_told": ("orchestrator/store/tables.py", "orchestrator/domain/job/attempt.py"),
    "pace": (
        "alembic/",
        "orchestrator/store/mapping.py",
        "orchestrator/store/overview.py",
        "orchestrator/store/tables.py",
    ),
    "snapshots_told": ("orchestrator/store/tables.py", "orchestrator/domain/job/attempt.py"),
    "untold": (
        "orchestrator/domain/accounting/goodput.py",
        "orchestrator/cli/goodput_report.py",
        "orchestrator/dashboard/static/app.css",
        "orchestrator/dashboard/templates/job_time.html",
        "docs/glossary.md",
        "docs/goodput.md",
        "tests/",
    ),
    "wish": (
        "orchestrator/wire/history_views.py",
        "orchestrator/domain/job/rank_stacks.py",
        "orchestrator/cli/stacks.py",
        "trainer/elastic/agent_requests.py",
        "docs/api.md",
        "docs/reference/rest.md",
        "tests/",
    ),
    "wished": (
        "alembic/",
        "orchestrator/store/tables.py",
        "orchestrator/simulator/",
        "tests/simulator/",
        "docs/simulator.md",
    ),
    "wishes": (
        "orchestrator/api/routes/job_requests.py",
        "deploy/dev/rest_page.py",
        "trainer/script/script_saver.py",
        "trainer/snapshot/",
        "tests/api/long/test_generated_client.py",
    ),
}
LEFT_OUT = (
    "CHANGELOG.md",
    "docs/adr/",
    "deploy/dev/naming.py",
    "tests/deploy/test_naming.py",
)

# Functions whose parameters are a command's options, a query's fields or a signature of torch or torchx, and
# constructors that bootstrap calls once.
LONG = frozenset(
    {
        "orchestrator/api/routes/logs.py:_request",
        "orchestrator/bootstrap/service.py:_supervision",
        "orchestrator/cli/goodput_report.py:goodput",
        "orchestrator/cli/history_commands.py:logs",
        "orchestrator/cli/job_listing.py:ls",
        "orchestrator/cli/run.py:run",
        "orchestrator/cli/simulate.py:simulate",
        "orchestrator/cli/submit.py:submit",
        "orchestrator/client/functions.py:submit_function",
        "orchestrator/client/transport.py:__init__",
        "orchestrator/dashboard/list_page.py:_filters",
        "orchestrator/intake/intake.py:__init__",
        "orchestrator/queries/accounts.py:__init__",
        "orchestrator/supervisor/act.py:__init__",
        "orchestrator/supervisor/lease_keeper.py:__init__",
        "orchestrator/supervisor/loop.py:__init__",
        "orchestrator/supervisor/observe.py:__init__",
        "orchestrator/supervisor/reconcile.py:__init__",
        "orchestrator/torchx_scheduler/component.py:elastic",
        "orchestrator/torchx_scheduler/scheduler.py:log_iter",
        "orchestrator/webhooks/hooks.py:__init__",
        "orchestrator/webhooks/outbox.py:__init__",
        "trainer/data/datasets.py:__init__",
        "trainer/parallel/optim.py:_init_group",
        "trainer/script/sampler.py:__init__",
    }
)


def find_repeats(modules: Iterable[str]) -> Iterator[str]:
    """Find module names that too many packages have. `modules` are paths below the root."""
    packages = defaultdict(set)
    for module in modules:
        path = Path(module)
        packages[path.stem].add(str(path.parent))
    for name, where in sorted(packages.items()):
        if len(where) > MOST_PACKAGES and name not in ALIKE:
            yield f"{name}.py is in {', '.join(sorted(where))}: let each name say which it is"


def find_words(file: str, text: str) -> Iterator[str]:
    """Find the words in a file's name and text."""
    for number, line in enumerate([file, *text.splitlines()]):
        for word in (*_TEXT.findall(line), *_CAMEL.findall(line)):
            if not file.startswith(STORED.get(word.lower(), ())):
                yield f"{file}:{number}: {word!r} is a private word; docs/glossary.md has the field's"


def find_names(file: str, tree: ast.AST) -> Iterator[str]:
    """Find the words that are wrong only in a name that the file defines."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                pass
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                pass
            case _:
                continue
        if _NAME.search(name) and not file.startswith(STORED.get(name, ())):
            yield f"{file}:{getattr(node, 'lineno', 0)}: {name!r}: name what it holds"


def find_long(file: str, tree: ast.AST) -> Iterator[str]:
    """Find functions with too many parameters. `self` and `cls` do not count."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given = node.args
            names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
            count = (
                len(names) - (names[:1] in (["self"], ["cls"])) + (given.vararg is not None) + (given.kwarg is not None)
            )
            if count > MOST_PARAMETERS and f"{file}:{node.name}" not in LONG:
                yield f"{file}:{node.lineno}: {node.name} takes {count} parameters: group what travels together"


def main() -> int:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    files = [each for each in tracked if each and (ROOT / each).is_file()]
    product = [each for each in files if each.startswith(PRODUCT) and each.endswith(".py")]
    found = list(find_repeats(product))
    for file in files:
        if Path(file).suffix in (".py", ".md", ".html", ".css", ".toml", "") and not file.startswith(LEFT_OUT):
            text = (ROOT / file).read_text(errors="replace")
            found += find_words(file, text)
            if file.endswith(".py") and not file.startswith("tests/"):
                found += find_names(file, ast.parse(text))
            if file in product:
                found += find_long(file, ast.parse(text))
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
