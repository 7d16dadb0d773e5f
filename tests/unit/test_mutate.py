"""The tool that takes guards and rules out: which mutants it finds, and that it tells a killed one from a survivor."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.dev.mutate import ROOT, build_plan
from deploy.dev.mutation.equivalent import LIST, BadList, parse_equivalents
from deploy.dev.mutation.mutants import find_mutants
from deploy.dev.mutation.targets import LEFT_OUT, SUITES, StaleTable, Suite, modules_of

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
    """By name: the line that differs first, in the mutant's text."""
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


def test_every_mutant_of_the_product_compiles_and_has_its_own_name() -> None:
    plan = build_plan(ROOT, SUITES, LEFT_OUT, {})
    assert len({mutant.name for mutant, _ in plan.mutants}) == len(plan.mutants) > 0
    for mutant, _ in plan.mutants:
        compile(mutant.applied_to((ROOT / mutant.path).read_text()), mutant.path, "exec")


def test_the_table_may_not_name_what_is_not_there() -> None:
    missing = Suite(modules=("orchestrator/domain/no_such_*.py",), stages=())
    with pytest.raises(StaleTable, match="no_such"):
        modules_of(ROOT, [missing])
    with pytest.raises(StaleTable, match="take it off"):
        modules_of(ROOT, [], ["orchestrator/domain/no_such.py"])


def test_each_equivalent_mutant_has_a_reason() -> None:
    assert parse_equivalents("# why\na.py:f: if x\n    Nobody calls f\n    with x.\n") == {
        "a.py:f: if x": "Nobody calls f with x."
    }
    for wrong in ("a.py:f: if x\n", "  a reason alone\n", "a\n  b\na\n  b\n"):
        with pytest.raises(BadList):
            parse_equivalents(wrong)
    assert parse_equivalents(LIST.read_text()) is not None


def test_an_equivalent_that_is_no_mutant_any_more_is_refused() -> None:
    with pytest.raises(BadList, match="gone from here"):
        build_plan(ROOT, SUITES, LEFT_OUT, {"gone from here": "for a reason"})


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
from tiny.rules import first
def test_a_small_number_is_small():
    assert first(-1) == "small"
""",
    "test_endless.py": """
from tiny.rules import endless
def test_it_ends():
    assert endless(1) == 1
""",
}
# Its processes fork, which those of a parallel test run had better not.
SCRIPT = """
import sys
from pathlib import Path
from deploy.dev import mutate
from deploy.dev.mutation import run
from deploy.dev.mutation.targets import Stage, Suite

run.WARM = ()
stages = (Stage(name="one", arguments=("test_tiny.py",)), Stage(name="two", arguments=("test_more.py",), timing=True))
suites = [Suite(modules=("tiny/*.py",), stages=stages)]
plan = mutate.build_plan(Path(sys.argv[1]), suites, [], {"rules.py:first: if x == 1000": "Nobody counts so far."})
codes = [mutate.run(plan.only(part), jobs=2, as_json=True) for part in ("first", "endless")]
false = mutate.build_plan(Path(sys.argv[1]), suites, [], {"rules.py:first: if x > 3": "It is noticed all the same."})
codes.append(mutate.run(false.only("x > 3"), jobs=2, as_json=True))
(hangs, _), = plan.only("endless").mutants
print(run.ask(plan.root, hangs, Stage(name="three", arguments=("test_endless.py",)), 1.0).red)
print(codes)
"""


def test_a_mutant_is_killed_by_the_first_stage_that_notices_and_survives_otherwise(tmp_path: Path) -> None:
    for name, text in TINY.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, tmp_path], cwd=ROOT, capture_output=True, text=True, check=True
    )
    *documents, hung, codes = done.stdout.splitlines()
    assert [verdicts(document) for document in documents] == [
        {
            "rules.py:first: if x > 3": ("test_tiny.py::test_a_big_number_is_big", "one"),
            "rules.py:first: if x < 0": ("test_more.py::test_a_small_number_is_small", "two"),
            "rules.py:first: if x == 1000": (None, "one"),
        },
        {"rules.py:endless: if x": (None, "two")},
        {"rules.py:first: if x > 3": ("test_tiny.py::test_a_big_number_is_big", "one")},
    ]
    assert hung == "the time-out of 1 s"
    assert codes == "[0, 1, 1]"
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert {name for name in left if "__pycache__" not in name} == TINY.keys()


def verdicts(document: str) -> dict[str, tuple[str | None, str]]:
    return {one["name"]: (one["killed_by"], one["stage"]) for one in json.loads(document)["mutants"]}
