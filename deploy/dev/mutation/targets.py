"""What `make mutate` looks at: one table, from modules to the tests that must notice. Edit it here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Tests that are asked together, as pytest's arguments."""

    name: str
    arguments: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()
    timing: bool = False  # it has threads and processes that race: what fails is asked again, alone


@dataclass(frozen=True, kw_only=True)
class Suite:
    """Modules, and the stages that are asked about each of their mutants until one is red."""

    modules: tuple[str, ...]  # patterns; each must match a file
    stages: tuple[Stage, ...]  # the cheapest first


# The tool's own test says nothing about the product.
UNIT_TESTS = ("tests/unit", "--ignore=tests/unit/test_mutate.py")
UNIT = Stage(name="unit", arguments=UNIT_TESTS)
MACHINE_TESTS = ("tests/property/test_supervisor_machine.py",)
MACHINE = Stage(name="machine", arguments=MACHINE_TESTS, environment=(("HYPOTHESIS_EXAMPLES", "40"),))
LONG_MACHINE = Stage(name="long machine", arguments=MACHINE_TESTS, environment=(("HYPOTHESIS_EXAMPLES", "150"),))
CONTRACT = Stage(
    name="contract", arguments=(*UNIT_TESTS, "tests/elastic/test_restart_policy.py", "tests/elastic/test_postmortem.py")
)
FENCE = Stage(name="fence", arguments=("tests/property/test_fence.py",))
API = Stage(name="api", arguments=("tests/api/test_jobs.py", "tests/api/test_refusals.py"), timing=True)
SQLITE = Stage(name="sqlite", arguments=("tests/store", "-k", "not postgres"), timing=True)
POSTGRESQL = Stage(name="postgresql", arguments=("tests/store", "-k", "postgres"), timing=True)

# A module that is named twice is of the later suite.
SUITES: tuple[Suite, ...] = (
    Suite(
        modules=("orchestrator/domain/**/*.py", "orchestrator/supervisor/**/*.py"), stages=(UNIT, MACHINE, LONG_MACHINE)
    ),
    Suite(
        modules=("orchestrator/commands.py", "orchestrator/domain/wish.py"), stages=(UNIT, API, MACHINE, LONG_MACHINE)
    ),
    Suite(modules=("orchestrator/domain/told.py",), stages=(UNIT, SQLITE, MACHINE)),
    Suite(
        modules=(
            "orchestrator/store/supervision.py",
            "orchestrator/store/jobs.py",
            "orchestrator/store/leases.py",
            "orchestrator/store/marks.py",
        ),
        stages=(SQLITE, POSTGRESQL),
    ),
    Suite(
        modules=("trainer/contract/restart_policy.py", "trainer/contract/failure.py"),
        stages=(CONTRACT, MACHINE, LONG_MACHINE),
    ),
    Suite(modules=("trainer/contract/fence.py",), stages=(UNIT, FENCE, MACHINE)),
)

# Of the modules above: what judges an owner's input, which is the API's tests' affair.
LEFT_OUT = ("orchestrator/domain/spec.py", "orchestrator/domain/unsupported.py", "orchestrator/domain/validation.py")


class StaleTable(Exception):
    """The table names a file that is not there; the text says which."""


def modules_of(root: Path, suites: Sequence[Suite], left_out: Sequence[str] = ()) -> dict[str, Suite]:
    """The suite of each module, by its path from the root. Raises StaleTable."""
    for path in left_out:
        if not (root / path).is_file():
            raise StaleTable(f"{path} is left out and not there: take it off")
    found: dict[str, Suite] = {}
    for suite in suites:
        for pattern in suite.modules:
            paths = sorted(path.relative_to(root).as_posix() for path in root.glob(pattern))
            if not paths:
                raise StaleTable(f"no module matches {pattern}: mend the table")
            found |= {path: suite for path in paths if path not in left_out}
    return found
