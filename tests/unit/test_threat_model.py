"""Each row of the threat model that says what an attacker cannot do names a test that exists."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "threat-model.md"


def rows() -> Iterator[list[str]]:
    """The rows of the tables whose last column is `test`."""
    header: list[str] = []
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not cells or not header:
            header = cells
        elif header[-1] == "test" and set(cells[-1]) != {"-"}:
            yield cells


def names_of(file: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("row", list(rows()), ids=lambda row: row[1][:60])
def test_the_test_of_each_row_exists(row: list[str]) -> None:
    path, _, name = row[-1].partition("::")
    assert name.startswith("test_")
    assert name in names_of(ROOT / path)


def test_each_table_with_tests_is_read() -> None:
    text = PAGE.read_text()
    assert len(list(rows())) == text.count("::test_")
    assert text.count("| test |") == 3


def test_the_page_is_short() -> None:
    assert len(PAGE.read_text().split()) < 1300
