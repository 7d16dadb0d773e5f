"""The pages under docs/reference, and what docs/concepts.md shows of the code, say what the code says."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum

import pytest
from pydantic import BaseModel

from deploy.dev.diagrams import render_attempt_states, render_job_states, render_policy
from deploy.dev.reference import CONCEPTS, FOLDER, PAGES, render_concepts
from deploy.dev.rest_page import read_document
from orchestrator.cli.main import COMMANDS
from orchestrator.domain.job import attempt, job
from orchestrator.domain.policy.decide import POLICY
from orchestrator.domain.specs.spec import JobSpec


@pytest.mark.parametrize(("name", "render"), PAGES.items())
def test_a_page_is_up_to_date(name: str, render: Callable[[], str]) -> None:
    made = [line.rstrip() for line in render().splitlines()]
    assert (FOLDER / name).read_text().splitlines() == made, "run python -m deploy.dev.reference"


def test_every_command_stands_on_the_page_with_its_flags() -> None:
    page = (FOLDER / "cli.md").read_text()
    for name in COMMANDS:
        assert f"## orchestrator {name}" in page
    assert "| `--set KEY.PATH=VALUE` |" in page
    assert "## orchestrator db backup\n\n    orchestrator db backup FILE\n" in page


def test_every_setting_stands_on_the_page_with_its_comment() -> None:
    page = (FOLDER / "settings.md").read_text()
    assert "| `ORCHESTRATOR_PORT` | `port` | `8700` | 0 means any free port; <root>/service.json names it |" in page


def test_every_operation_and_type_of_the_interface_stands_on_the_page() -> None:
    page = (FOLDER / "rest.md").read_text()
    document = read_document()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert f"### {operation['operationId']}\n\n    {method.upper()} {path}\n" in page
    for name, schema in document["components"]["schemas"].items():
        assert f"\n### {name}\n" in page
        assert all(f"| `{field}` |" in page for field in schema.get("properties", {}))
    assert "| `limit` | query | integer | `50` |" in page
    assert "- 202: [`JobView`](#jobview)\n- errors: 404, 409\n" in page


def test_the_concepts_are_up_to_date() -> None:
    assert CONCEPTS.read_text() == render_concepts(), "run python -m deploy.dev.reference"


@pytest.mark.parametrize(
    ("render", "edges"),
    [(render_job_states, job.TRANSITIONS), (render_attempt_states, attempt.TRANSITIONS)],
    ids=["job", "attempt"],
)
def test_a_diagram_has_exactly_the_edges_of_its_table(
    render: Callable[[], str], edges: Mapping[StrEnum, frozenset[StrEnum]]
) -> None:
    drawn = set(re.findall(r"^ *(\w+) --> (\w+)(?:: [^:;\n]+)?$", render(), re.MULTILINE))
    box = {state.name for state in edges if not state.terminal}  # type: ignore[attr-defined]
    shown = {(inside, end) for start, end in drawn for inside in (box if start == "alive" else {start})}
    assert shown == {(start.name, end.name) for start, ends in edges.items() for end in ends}


def test_an_edge_is_labelled_by_the_comment_behind_it() -> None:
    assert "RECOVERING --> STARTING: the next attempt was submitted\n" in render_job_states()
    assert "| `LOST` | it is gone without an exit record |" in render_attempt_states()


def test_the_policy_is_told_in_its_order() -> None:
    names = re.findall(r"^\d+\. `(\w+)`: [A-Z].*\.$", render_policy(), re.MULTILINE)
    assert names == [rule.__name__ for rule in POLICY]


def _fields(part: type[BaseModel], path: str = "") -> Iterator[tuple[str, object]]:
    for name, field in part.model_fields.items():
        whole = f"{path}{field.alias or name}"
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _fields(kind, f"{whole}.")
        else:
            yield whole, field.default


def test_every_field_of_a_job_stands_on_its_page_with_its_default() -> None:
    page = (FOLDER.parent / "job.md").read_text().replace("`.", "`supervise.budgets.")
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    for path, default in _fields(JobSpec):
        row = next((row for row in rows if f"`{path}`" in row), None)
        assert row is not None, path
        if isinstance(default, (str, float, int)):
            assert str(default).lower() in row.split("|")[2], row
