"""`orchestrator token`: parsing of grants and terms."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from orchestrator.cli.token import parse_grant, parse_term
from orchestrator.domain.access.identity import Role
from orchestrator.domain.errors import Refused

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "grant"),
    [
        ("research=operator", ("research", Role.OPERATOR)),
        ("*=viewer", ("*", Role.VIEWER)),
        ("admin", ("*", Role.ADMIN)),
    ],
)
def test_a_grant_is_a_role_in_a_project_or_everywhere(text: str, grant: tuple[str, Role]) -> None:
    assert parse_grant(text) == grant


@pytest.mark.parametrize("text", ["", "king", "research=", "research=king", "=viewer", "viewer=research"])
def test_an_invalid_grant_is_refused_with_the_list_of_roles(text: str) -> None:
    with pytest.raises(Refused, match="operator"):
        parse_grant(text)


@pytest.mark.parametrize(
    ("text", "ends"),
    [(None, None), ("12h", timedelta(hours=12)), ("30d", timedelta(days=30)), ("8w", timedelta(weeks=8))],
)
def test_a_term_is_a_number_of_hours_days_or_weeks(text: str | None, ends: timedelta | None) -> None:
    assert parse_term(text, NOW) == (None if ends is None else NOW + ends)


@pytest.mark.parametrize("text", ["", "12", "0d", "-1d", "1y", "1.5d", "٣d"])
def test_an_invalid_term_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="30d"):
        parse_term(text, NOW)
