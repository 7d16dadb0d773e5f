"""Forms are parsed as urllib parses them, and take memory in proportion to their size."""

from __future__ import annotations

from urllib.parse import parse_qs, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.api.errors import HttpProblem
from orchestrator.dashboard.answers import parse_form
from orchestrator.domain.specs.spec import MAX_SPEC_BYTES
from tests.api.test_exhaustion import peak

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(st.lists(st.tuples(TEXT, TEXT), max_size=8))
def test_forms_of_a_browser_are_read(fields: list[tuple[str, str]]) -> None:
    raw = urlencode(fields)
    assert parse_form(raw.encode()) == parse_qs(raw, keep_blank_values=True)


@given(st.text("ab%4é1+=&;[", max_size=30))
def test_any_form_is_parsed_as_urllib_parses_it(text: str) -> None:
    try:
        assert parse_form(text.encode()) == parse_qs(text, keep_blank_values=True, errors="strict")
    except (HttpProblem, UnicodeDecodeError):
        with pytest.raises(UnicodeDecodeError):
            parse_qs(text, keep_blank_values=True, errors="strict")


@pytest.mark.parametrize("raw", [b"a&" * 2000, b"a=%ff", b"\xff=1", b"a=" + b"x" * (MAX_SPEC_BYTES + 1)])
def test_an_invalid_form_is_refused(raw: bytes) -> None:
    with pytest.raises(HttpProblem):
        parse_form(raw)


def test_an_escaped_form_takes_memory_in_proportion_to_its_size() -> None:
    raw = b"yaml=" + b"%41" * (MAX_SPEC_BYTES - 9)
    assert peak(lambda: parse_form(raw)) < 50 * len(raw)
