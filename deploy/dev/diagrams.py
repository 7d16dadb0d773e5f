"""Render the generated parts of docs/concepts.md: state machines as Mermaid, their states, and the policy as a list.

Labels come from the comments in the tables of the code.
"""

from __future__ import annotations

import ast
import inspect
import tokenize
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from io import StringIO
from types import ModuleType
from typing import TypeVar

from orchestrator.domain.job import attempt, job
from orchestrator.domain.policy.decide import POLICY

State = TypeVar("State", bound=StrEnum)
_INDENT = "    "


def render_job_states() -> str:
    return _machine(job, job.JobState, job.TRANSITIONS, _edge_comments(job))


def render_attempt_states() -> str:
    return _machine(attempt, attempt.AttemptState, attempt.TRANSITIONS, {})


def render_policy() -> str:
    """Render the rules in order, each with the first sentence of its docstring."""
    rows = [f"{number}. `{rule.__name__}`: {_first_sentence(rule)}" for number, rule in enumerate(POLICY, start=1)]
    return "\n".join(rows)


def _machine(
    module: ModuleType,
    states: type[State],
    edges: Mapping[State, frozenset[State]],
    labels: Mapping[tuple[str, str], str],
) -> str:
    """Render a diagram and a table of the states. An edge that all non-terminal states share is drawn once."""
    alive = [state for state in states if not state.terminal]  # type: ignore[attr-defined]
    shared = frozenset.intersection(*(edges[state] for state in alive))
    lines = ["```mermaid", "stateDiagram-v2", f"{_INDENT}[*] --> {alive[0].name}", f"{_INDENT}state alive {{"]
    lines += [2 * _INDENT + _edge(a, b, labels) for a in alive for b in _sorted(states, edges[a]) if b in alive]
    lines += [f"{_INDENT}}}"]
    lines += [f"{_INDENT}alive --> {state.name}" for state in _sorted(states, shared)]
    for state in states:
        own = edges[state] - shared if state in alive else edges[state]
        lines += [
            _INDENT + _edge(state, b, labels) for b in _sorted(states, own) if not (state in alive and b in alive)
        ]
    return "\n".join([*lines, "```", "", _member_table(module, states, "state")])


def _sorted(states: type[State], some: frozenset[State]) -> list[State]:
    """Sort by the order of declaration, so that the page does not change."""
    return [state for state in states if state in some]


def _edge(a: StrEnum, b: StrEnum, labels: Mapping[tuple[str, str], str]) -> str:
    label = labels.get((a.name, b.name))
    return f"{a.name} --> {b.name}{f': {label}' if label else ''}"


def _member_table(module: ModuleType, members: type[StrEnum], title: str) -> str:
    """Render each member with the comment on its line."""
    comments = read_comments(module)
    (node,) = (node for node in _body(module) if isinstance(node, ast.ClassDef) and node.name == members.__name__)
    notes = {
        line.targets[0].id: comments.get(line.lineno, "")
        for line in node.body
        if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name)
    }
    return "\n".join([f"| {title} | |", "|---|---|", *(f"| `{each.value}` | {notes[each.name]} |" for each in members)])


def _edge_comments(module: ModuleType) -> dict[tuple[str, str], str]:
    """Return the comment of each edge in TRANSITIONS, by the names of both states."""
    comments = read_comments(module)
    (table,) = (
        node.value
        for node in _body(module)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == "TRANSITIONS"
    )
    assert isinstance(table, ast.Dict)
    return {
        (start.attr, end.attr): comments[end.lineno]
        for start, ends in zip(table.keys, table.values, strict=True)
        if isinstance(start, ast.Attribute)
        for end in _attributes(ends)
        if end.lineno in comments
    }


def _attributes(node: ast.AST) -> Iterator[ast.Attribute]:
    return (each for each in ast.walk(node) if isinstance(each, ast.Attribute))


def _body(module: ModuleType) -> list[ast.stmt]:
    return ast.parse(inspect.getsource(module)).body


def read_comments(module: ModuleType) -> dict[int, str]:
    """Return the comments that follow code, by line number."""
    tokens = tokenize.generate_tokens(StringIO(inspect.getsource(module)).readline)
    return {
        token.start[0]: token.string.lstrip("# ")
        for token in tokens
        if token.type == tokenize.COMMENT and token.line.strip() != token.string
    }


def _first_sentence(rule: Callable[..., object]) -> str:
    text = " ".join((inspect.getdoc(rule) or "").split("\n\n")[0].split())
    return text if ". " not in text else text[: text.index(". ") + 1]
