"""The mutation tool finds mutants of guards and rules, and tells a killed one from a survivor."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from deploy.dev.mutate import (
    EQUIVALENT,
    LEFT_OUT,
    ROOT,
    SUITES,
    StaleTable,
    Suite,
    choose_tests,
    find_all,
    find_mutants,
    modules_of,
)

RULES = """
TINY_POLICY: tuple[object, ...] = (early, late)
OTHERS = (early, late)

class Judge:
    def may(self, é, b, c):
        if é == 1 or (b and
            not c):
            raise ValueError("ß")
        for one in b:
            if one: continue
        if c:
            print("no guard")
        elif b:
            return not (b or c)
        return None if c else b
"""


def changed(source: str) -> dict[str, str]:
    """Map each mutant's name to its first line that differs from the source."""
    lines = source.splitlines()
    mutated = {mutant.name: mutant.applied_to(source).splitlines() for mutant in find_mutants("tiny/rules.py", source)}
    return {
        name: next(line.strip() for line, original in zip(text, lines, strict=False) if line != original)
        for name, text in mutated.items()
    }


def test_each_rule_guard_and_part_of_a_condition_is_a_mutant() -> None:
    assert changed(RULES) == {
        "rules.py:TINY_POLICY: without early": "TINY_POLICY: tuple[object, ...] = (*(), late)",
        "rules.py:TINY_POLICY: without late": "TINY_POLICY: tuple[object, ...] = (early, *())",
        "rules.py:Judge.may: if é == 1 or (b and not c)": "if False:",
        "rules.py:Judge.may: without é == 1": "if False or (b and",
        "rules.py:Judge.may: without b and not c": "if é == 1 or (False):",
        "rules.py:Judge.may: without b": "if é == 1 or (True and",
        "rules.py:Judge.may: without not c": "True):",
        "rules.py:Judge.may: if one": "if False: continue",
        "rules.py:Judge.may: if b": "elif False:",
        "rules.py:Judge.may: without b (2)": "return not (False or c)",
        "rules.py:Judge.may: without c": "return not (b or False)",
        "rules.py:Judge.may: return if c": "return None if False else b",
    }


def test_equal_conditions_in_one_function_have_names_of_their_own() -> None:
    source = "def f(a):\n    if a:\n        return 1\n    if a:\n        return 2\n"
    assert [mutant.name for mutant in find_mutants("p/m.py", source)] == ["m.py:f: if a", "m.py:f: if a (2)"]


def test_every_mutant_of_the_product_compiles_and_every_equivalent_is_one_of_them() -> None:
    mutants = [mutant for mutant, _ in find_all(ROOT, SUITES, LEFT_OUT)]
    assert len({(mutant.path, mutant.name) for mutant in mutants}) == len(mutants) > 0
    assert EQUIVALENT.keys() <= {mutant.name for mutant in mutants}
    for mutant in mutants:
        compile(mutant.applied_to((ROOT / mutant.path).read_text()), mutant.path, "exec")


def test_the_tables_may_not_name_what_is_not_there() -> None:
    for suites, left_out in (([Suite(modules=["tests/no_such_*.py"], tests=[])], []), ([], ["tests/no_such.py"])):
        with pytest.raises(StaleTable, match="no_such"):
            modules_of(ROOT, suites, left_out)
    assert [test for suite in SUITES for test in suite.tests if not (ROOT / test).exists()] == []


def test_the_tests_of_a_module_are_those_that_import_it_and_then_those_one_step_farther() -> None:
    find = choose_tests(ROOT)
    assert find("orchestrator/domain/counted.py")[0] == "tests/unit/test_counted.py"
    assert "tests/unit/test_why.py" in find("orchestrator/domain/explanation/verdict.py")  # `why` imports it
    with pytest.raises(StaleTable, match=r"no test imports nothing\.py"):
        find("nothing.py")


TINY = {
    "tiny/rules.py": """
def first(x):
    if x > 3:
        return "big"
    if x < 0:
        return "small"
    if x == 1000:
        return "exact"
    return "some"
def endless(x):
    while True:
        if x:
            return x
""",
    "test_tiny.py": """
from tiny.rules import first
def test_a_big_number_is_big():
    assert first(4) == "big"
""",
    "test_more.py": """
import pytest
from tiny.rules import endless, first
def test_a_small_number_is_small():
    assert first(-1) == "small"
@pytest.mark.timeout(1)
def test_it_ends():
    assert endless(1) == 1
""",
}
# A separate process, since the tool forks and pytest-xdist's workers have threads.
SCRIPT = """
import sys
from pathlib import Path
from deploy.dev import mutate

mutate._WARM = ()
root, exact = Path(sys.argv[1]), "rules.py:first: if x == 1000"
mutants = mutate.find_all(root, [mutate.Suite(modules=["tiny/*.py"], tests=["test_tiny.py", "test_more.py"])], [])
print(mutate.judge(root, mutants, [exact], 2))
print(mutate.judge(root, [(each, suite) for each, suite in mutants if each.name == exact], [], 1))
races = [(each, mutate.Suite(modules=[], tests=["test_tiny.py"], races=True)) for each, _ in mutants[:1]]
print(mutate.judge(root, races, [races[0][0].name], 1))
"""


def test_a_mutant_is_killed_by_the_first_test_that_notices_and_survives_otherwise(tmp_path: Path) -> None:
    for name, text in TINY.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, tmp_path], cwd=ROOT, capture_output=True, text=True, check=True
    )
    told = done.stdout.splitlines()
    assert sorted(line.split(" in ")[0] for line in told if line.startswith(("killed", "equivalent"))) == [
        "equivalent tiny/rules.py:first: if x == 1000",
        "killed tiny/rules.py:endless: if x  <- test_more.py::test_it_ends",
        "killed tiny/rules.py:first: if x < 0  <- test_more.py::test_a_small_number_is_small",
        "killed tiny/rules.py:first: if x > 3  <- test_tiny.py::test_a_big_number_is_big",
        *["killed, though listed tiny/rules.py:first: if x > 3  <- test_tiny.py::test_a_big_number_is_big"] * 2,
    ]
    assert told.count("SURVIVED tiny/rules.py:first: if x == 1000") == 2, "once when found, once at the end"
    assert [line for line in told if line.isdigit()] == ["0", "1", "1"]
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert {name for name in left if "__pycache__" not in name} == {*TINY, "pytest.ini"}
