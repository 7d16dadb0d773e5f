"""Roles, grants and tokens."""

from __future__ import annotations

from datetime import timedelta

import pytest

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


def test_each_role_includes_the_lower_ones() -> None:
    order = [Role.VIEWER, Role.SUBMITTER, Role.OPERATOR, Role.ADMIN]
    for held_at, held in enumerate(order):
        assert [held.covers(needed) for needed in order] == [needed_at <= held_at for needed_at in range(4)]


def test_a_grant_applies_only_to_its_project() -> None:
    assert ALICE.may(Role.OPERATOR, "research")
    assert not ALICE.may(Role.ADMIN, "research")
    assert not ALICE.may(Role.SUBMITTER, "vision")
    assert not ALICE.may(Role.VIEWER, "other")
    assert ALICE.projects(Role.VIEWER) == {"research", "vision"}
    assert ALICE.projects(Role.OPERATOR) == {"research"}
    assert (ALICE.may_somewhere(Role.OPERATOR), ALICE.may_somewhere(Role.ADMIN)) == (True, False)
    assert not ALICE.may_everywhere(Role.VIEWER)


def test_a_grant_for_every_project_adds_to_a_grant_for_one() -> None:
    bob = Principal(name="bob", grants={"*": Role.VIEWER, "research": Role.ADMIN})
    assert (bob.role_in("research"), bob.role_in("other")) == (Role.ADMIN, Role.VIEWER)
    assert bob.projects(Role.VIEWER) is None
    assert bob.projects(Role.ADMIN) == {"research"}
    carol = Principal(name="carol", grants={"*": Role.OPERATOR, "research": Role.VIEWER})
    assert carol.role_in("research") is Role.OPERATOR


def test_roles_are_granted_only_in_projects_of_the_admin() -> None:
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
def test_an_invalid_token_text_has_no_id(text: str) -> None:
    assert parse_token_id(text) is None


def test_a_stored_token_does_not_reveal_its_text() -> None:
    token = a_token(digest=digest_of("orc_secret"))
    assert "orc_secret" not in repr(token)
    assert token.digest not in repr(token)
    assert same_digest("orc_secret", token.digest)
    assert not same_digest("orc_secres", token.digest)
