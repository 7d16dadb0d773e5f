"""JSON columns are parsed as by the standard library."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.fast_json import parse_json

leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
documents = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4)
)


@given(documents, st.booleans())
def test_any_document_is_parsed_as_by_the_standard_library(document: object, ascii_only: bool) -> None:
    text = json.dumps(document, ensure_ascii=ascii_only)
    assert repr(parse_json(text)) == repr(json.loads(text))


@pytest.mark.parametrize("text", ['"\\ud800"', '{"a": 1, "a": 2}', "1e400", "-0.0", "9" * 400, " [1] ", '"\\u0000"'])
def test_unusual_documents_are_parsed_as_by_the_standard_library(text: str) -> None:
    assert repr(parse_json(text)) == repr(json.loads(text))


@pytest.mark.parametrize("text", ["", "{", "[1] 2"])
def test_invalid_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        parse_json(text)
