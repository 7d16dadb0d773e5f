"""Tables in the documentation match the tables in the code."""

from __future__ import annotations

import re
from pathlib import Path

from orchestrator.domain.policy.budget import BUDGET_OF
from orchestrator.domain.specs.spec import Budgets

DOCS = Path(__file__).parents[2] / "docs"


def test_the_published_table_of_budgets_is_the_one_that_is_used() -> None:
    rows = re.findall(
        r"^\| ([a-z-]+) \| ([a-z]+) \| (no limit|\d+) \|", (DOCS / "failures.md").read_text(), re.MULTILINE
    )
    published = {kind: (budget, default) for kind, budget, default in rows}
    limits = Budgets()
    used = {
        kind.value: (budget, "no limit" if getattr(limits, budget) is None else str(getattr(limits, budget)))
        for kind, budget in BUDGET_OF.items()
    }
    assert published == used
