"""Roles, grants and tokens: what each may, and what a stored token gives away."""

from __future__ import annotations

import hmac
from datetime import timedelta

import pytest

from orchestrator.domain.access import identity
from orchestrator.domain.access.identity import (
    LOCAL,
    Principal,
    Role,
    Token,
    digest_of,
    parse_token_id,
    render_token,
    same_digest,
)
from tests.builders import NOW

ALICE = Principal(name="alice", grants={"research": Role.OPERATOR, "vision": Role.VIEWER})


def a_token(**fields: object) -> Token:
    values = {"id": "t", "name": "a", "digest": "d", "grants": {}, "created_at": NOW, "created_by": "b", **fields}
    return Token(**values)  # type: ignore[arg-type]  # a builder


def test_each_role_may_what_the_ones_below_it_may() -> None:
    order = [Role.VIEWER, Role.SUBMITTER, Role.OPERATOR, Role.ADMIN]
    for held_at, held in enumerate(order):
        assert [held.covers(needed) for needed in order] == [needed_at <= held_at for needed_at in range(4)]


def test_a_grant_counts_in_its_project_alone() -> None:
    assert ALICE.may(Role.OPERATOR, "research")
    assert not ALICE.may(Role.ADMIN, "research")
    assert not ALICE.may(Role.SUBMITTER, "vision")
    assert not ALICE.may(Role.VIEWER, "other")
    assert ALICE.projects(Role.VIEWER) == {"research", "vision"}
    assert ALICE.projects(Role.OPERATOR) == {"research"}
    assert (ALICE.may_somewhere(Role.OPERATOR), ALICE.may_somewhere(Role.ADMIN)) == (True, False)
    assert not ALICE.may_everywhere(Role.VIEWER)


def test_a_grant_for_every_project_adds_to_that_of_one() -> None:
    bob = Principal(name="bob", grants={"*": Role.VIEWER, "research": Role.ADMIN})
    assert (bob.role_in("research"), bob.role_in("other")) == (Role.ADMIN, Role.VIEWER)
    assert bob.projects(Role.VIEWER) is None
    assert bob.projects(Role.ADMIN) == {"research"}
    carol = Principal(name="carol", grants={"*": Role.OPERATOR, "research": Role.VIEWER})
    assert carol.role_in("research") is Role.OPERATOR


def test_nobody_gives_what_he_is_not_the_admin_of() -> None:
    bob = Principal(name="bob", grants={"research": Role.ADMIN})
    assert bob.may_give({"research": Role.ADMIN})
    assert not bob.may_give({"*": Role.VIEWER})
    assert not bob.may_give({"research": Role.VIEWER, "vision": Role.VIEWER})
    assert LOCAL.may_give({"*": Role.ADMIN})


def test_a_token_ends_at_its_time_and_by_its_revocation() -> None:
    assert a_token().lives(NOW)
    dated = a_token(expires_at=NOW + timedelta(seconds=1))
    assert dated.lives(NOW)
    assert not dated.lives(NOW + timedelta(seconds=1))
    assert not a_token(revoked_at=NOW).lives(NOW)


def test_a_principal_is_the_token_without_its_digest() -> None:
    principal = a_token(grants={"x": Role.VIEWER}).principal()
    assert principal == Principal(name="a", grants={"x": Role.VIEWER}, token_id="t")


def test_a_token_text_names_its_id() -> None:
    text = render_token("0123456789abcdef", "s" * 43)
    assert text == "orc_0123456789abcdef_" + "s" * 43
    assert parse_token_id(text) == "0123456789abcdef"


@pytest.mark.parametrize(
    "text", ["", "orc_", "orc_0123456789abcdef_short", "ORC_0123456789abcdef_" + "s" * 43, " orc_" + "0" * 60]
)
def test_what_is_no_token_has_no_id(text: str) -> None:
    assert parse_token_id(text) is None


def test_a_stored_token_shows_nothing_that_signs_in() -> None:
    token = a_token(digest=digest_of("orc_secret"))
    assert "orc_secret" not in repr(token)
    assert token.digest not in repr(token)
    assert same_digest("orc_secret", token.digest)
    assert not same_digest("orc_secres", token.digest)


def test_digests_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[object, object]] = []

    def compare(one: str, other: str) -> bool:
        compared.append((one, other))
        return hmac.compare_digest(one, other)

    monkeypatch.setattr(identity, "hmac", type("Hmac", (), {"compare_digest": staticmethod(compare)}))
    assert not same_digest("a", digest_of("b"))
    assert compared == [(digest_of("a"), digest_of("b"))]
