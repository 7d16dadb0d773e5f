"""What no document may contain is found and named, wherever it is."""

from __future__ import annotations

from datetime import date

import pytest

from orchestrator.domain.specs.spec import Placement
from orchestrator.domain.specs.validation import MAX_DEPTH, MAX_NODES, check_plain


def _nested(depth: int, value: object) -> object:
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "document",
    [
        {"a": [1, -(2**63), 2**63 - 1, 0.5, True, None, "text", {}, []]},
        {"grüße": "naïve \U0001f600"},
        _nested(MAX_DEPTH, "deep"),
        [0] * (MAX_NODES - 1),
    ],
)
def test_a_plain_document_has_no_problem(document: object) -> None:
    assert check_plain(document) == []


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("torn \ud800", "contains a lone surrogate"),
        ({"torn \ud800": 1}, "which is not text"),
        ({7: 1}, "has the key 7, which is not text"),
        (2**63, "is an integer of more than 64 bits"),
        (-(2**63) - 1, "is an integer of more than 64 bits"),
        (float("inf"), "must be a finite number"),
        (float("nan"), "must be a finite number"),
        (date(2026, 1, 1), "is a date"),
        (("tuple",), "is a tuple"),
    ],
)
def test_the_problem_of_a_value_is_named_with_its_place(value: object, message: str) -> None:
    (problem,) = check_plain({"a": ["fine", value]})
    assert problem.pointer == "/a/1"
    assert message in problem.message


def test_a_document_that_is_too_deep_or_too_large_is_refused() -> None:
    (deep,) = check_plain(_nested(MAX_DEPTH + 1, "deep"))
    assert "nested deeper" in deep.message
    (large,) = check_plain([0] * MAX_NODES)
    assert f"more than {MAX_NODES} values" in large.message


def test_a_default_part_of_a_spec_is_not_copied() -> None:
    part = Placement()
    assert part.model_copy(deep=True) is part
