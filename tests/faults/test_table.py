"""The tables of faults are complete, and survive rendering and reading."""

from __future__ import annotations

import pytest

from tests.faults.cells import ABSENT, CLUSTERS, FAULTS, NEVER, PAGE, Cell, read, render


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_every_fault_has_a_row(cluster: str) -> None:
    assert tuple(read(PAGE.read_text(), cluster)) == FAULTS


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_only_absent_faults_are_marked_as_impossible(cluster: str) -> None:
    rows = read(PAGE.read_text(), cluster)
    assert tuple(fault for fault, cell in rows.items() if cell == NEVER) == ABSENT[cluster]


def test_a_rendered_table_can_be_read() -> None:
    cells = {
        FAULTS[0]: Cell(said="a | b", done="nothing", costs="node 1", seconds=1.5),
        FAULTS[1]: Cell(said="c", done="d", costs="e"),
    }
    page = f"<!-- made: faults-local -->\n\n{render(cells)}\n\n<!-- end: faults-local -->\n"
    assert read(page, "local") == cells
