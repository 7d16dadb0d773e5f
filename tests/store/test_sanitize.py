from __future__ import annotations

import functools
import json
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.store.sanitize import (
    MAX_DEPTH,
    MAX_EVIDENCE_BYTES,
    MAX_TEXT_CHARS,
    clean_json,
    clean_text,
    render_json,
    shorten_evidence,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters()), inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_any_value_becomes_strict_json_without_nul(value: object) -> None:
    cleaned = clean_json(value)
    rendered = json.dumps(cleaned, allow_nan=False, ensure_ascii=False)
    rendered.encode("utf-8")
    assert "\\u0000" not in rendered.replace("\\\\", "")
    assert clean_json(cleaned) == cleaned


@given(JSON)
@example("\\u0000")
@example({"\0": "\ud800", "emoji": "\U0001f600"})
@example("x" * (MAX_TEXT_CHARS + 1))
def test_json_is_rendered_clean(value: object) -> None:
    assert json.loads(render_json(value)) == json.loads(json.dumps(clean_json(value), ensure_ascii=False))


@pytest.mark.parametrize("depth", [MAX_DEPTH - 1, MAX_DEPTH, 5000])
def test_json_is_cut_where_it_is_too_deep(depth: int) -> None:
    value = functools.reduce(lambda inner, _: [inner], range(depth), [math.pi])
    assert json.loads(render_json(value)) == clean_json(value)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=200))
def test_storable_text_is_unchanged(text: str) -> None:
    assert clean_text(text) == text


def test_a_long_text_keeps_both_ends() -> None:
    short = clean_text("a" * 50 + "b" * 1000 + "c" * 50, max_chars=100)
    assert short.startswith("a" * 50)
    assert short.endswith("c" * 50)
    assert "1000 characters left out" in short


@given(st.dictionaries(st.text(max_size=10), st.text(max_size=50) | st.integers(1, 300)))
def test_evidence_is_shortened_to_the_limit(drawn: dict[str, str | int]) -> None:
    evidence: dict[str, object] = {
        name: "x" * value * 1000 if isinstance(value, int) else value for name, value in drawn.items()
    }
    kept = shorten_evidence(evidence)
    size = len(json.dumps(clean_json(kept), ensure_ascii=False).encode())
    assert size <= MAX_EVIDENCE_BYTES + 100
    assert kept == evidence or kept["shortened"] is True
