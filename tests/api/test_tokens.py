"""Tokens over HTTP: shown once, listed without their text, validated."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.api.conftest import World


def make(world: World, headers: dict[str, str] | None = None, **fields: Any) -> Any:
    body = {"name": "alice", "grants": {"research": "operator"}, **fields}
    return world.client.post("/api/v1/tokens", json=body, headers=headers or {})


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_a_token_is_shown_once_and_works(closed: World) -> None:
    admin = closed.give("*=admin", name="root")
    with capture_logs() as logged:
        made = make(closed, admin).json()
    assert closed.client.get("/api/v1/jobs", headers=bearer(made["token"])).status_code == 200
    listed = closed.client.get("/api/v1/tokens", headers=admin)
    mine = next(each for each in listed.json()["items"] if each["id"] == made["id"])
    assert mine == {name: value for name, value in made.items() if name != "token"}
    assert (mine["created_by"], mine["grants"]) == ("root", {"research": "operator"})
    assert made["token"] not in listed.text + str(logged)
    assert made["token"].encode() not in (closed.root.parent / "orchestrator.db").read_bytes()


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"name": ""}, "/name"),
        ({"name": "a\nb"}, "/name"),
        ({"name": "local"}, "/name"),
        ({"grants": {}}, "/grants"),
        ({"grants": {"research": "king"}}, "/grants/research"),
        ({"grants": {"No Project": "viewer"}}, "/grants/No Project"),
        ({"expires_at": "tomorrow"}, "/expires_at"),
        ({"expires_at": "2030-01-01T00:00:00"}, "/expires_at"),
        ({"scope": "all"}, "/scope"),
    ],
)
def test_a_wrong_request_is_refused_by_field(world: World, fields: dict[str, Any], pointer: str) -> None:
    answer = make(world, **fields)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == pointer


def test_on_an_open_service_a_token_that_is_sent_counts(world: World) -> None:
    made = make(world).json()
    assert world.client.get("/api/v1/tokens").status_code == 200
    assert world.client.get("/api/v1/tokens", headers=bearer(made["token"])).status_code == 403
    assert world.client.get("/api/v1/jobs", headers=bearer("orc_wrong")).status_code == 401
