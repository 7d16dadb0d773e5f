"""Parameters of all routes, from the OpenAPI document: times are RFC 3339, and text has no NUL and is UTF-8."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from tests.api.conftest import World

NO_TIMES = (
    *("0.5", "0", "3", "-1", "1e9", "1700000000", "1700000000000", "2026-01-31", "2026-01-31T12:00:00", "12:00:00Z"),
    *("2026-01-31 12:00:00Z", "2026-01-31T12:00Z", "20260131T120000Z", "2026-W05-6T12:00:00Z", "now", "P1D"),
    *("2026-02-30T12:00:00Z", "2026-01-31T24:00:01Z", "2026-01-31T12:00:00+25:00", "٢٠٢٦-٠١-٣١T12:00:00Z"),
)
TIMES = ("2026-01-31T12:00:00Z", "2026-01-31t12:00:00.123z", "1970-01-01T00:00:00+14:00")
ENDS = ("0001-01-01T00:00:00+14:00", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59-14:00", "9999-12-31T23:59:59Z")
BAD_TEXTS = ("%00", "a%00b", "a%00", "%ff", "%ed%a0%80", "a%c3")


def parameters(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The parameters of all operations, each with its method and path."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            for parameter in operation.get("parameters", ()):
                yield method.upper(), path, parameter


def is_time(parameter: dict[str, Any]) -> bool:
    schema = parameter["schema"]
    return any(each.get("format") == "date-time" for each in (schema, *schema.get("anyOf", ())))


def ask(world: World, method: str, path: str, name: str, text: str) -> Any:
    """Request a URL with `text`, unescaped, as the value of the parameter `name`."""
    in_path = f"{{{name}}}" in path
    path = path.replace(f"{{{name}}}", text).replace("{job_id}", world.submit()).replace("{", "").replace("}", "")
    return world.client.request(method, path if in_path else f"{path}?{name}={text}")


def test_times_of_all_routes_are_rfc_3339_and_nothing_else(world: World, document: dict[str, Any]) -> None:
    tried = {(method, path, each["name"]) for method, path, each in parameters(document) if is_time(each)}
    assert {("GET", "/api/v1/goodput", "until"), ("GET", "/api/v1/jobs/{job_id}/logs", "since")} <= tried
    for method, path, name in tried:
        for text in NO_TIMES:
            answer = ask(world, method, path, name, quote(text, safe=""))
            assert answer.status_code == 422, (path, name, text)
            assert f"/query/{name}" in [each["pointer"] for each in answer.json()["errors"]]
        for text in TIMES:
            assert ask(world, method, path, name, quote(text, safe="")).status_code == 200, (path, name, text)
        for text in ENDS:
            assert ask(world, method, path, name, quote(text, safe="")).status_code in (200, 422), (path, name, text)


def test_every_parameter_named_like_a_time_is_declared_as_one(document: dict[str, Any]) -> None:
    names = {"since", "until", "before", "after", "at", "from", "to", "expires_at"}
    assert [
        (path, each["name"]) for _, path, each in parameters(document) if each["name"] in names and not is_time(each)
    ] == []


def test_every_operation_refuses_an_unknown_query_parameter(world: World, document: dict[str, Any]) -> None:
    for path, methods in document["paths"].items():
        if path.startswith("/api/v1/") and path != "/api/v1/reports":
            for method in methods:
                answer = ask(world, method.upper(), path, "unknown", "1")
                assert answer.status_code == 422, (method, path)
                assert [each["pointer"] for each in answer.json()["errors"]] == ["/query/unknown"]


@pytest.mark.parametrize("value", [3, 0.5, "3", "2026-01-31", 1700000000, "2099-01-01 00:00:00Z", True, ["2099"]])
def test_times_in_bodies_are_rfc_3339_too(world: World, value: object) -> None:
    body = {"name": "x", "grants": {"research": "viewer"}, "expires_at": value}
    answer = world.client.post("/api/v1/tokens", json=body)
    assert answer.status_code == 422
    assert [each["pointer"] for each in answer.json()["errors"]] == ["/expires_at"]


@pytest.mark.parametrize("text", BAD_TEXTS)
def test_nul_and_invalid_utf_8_are_refused_in_every_url(world: World, document: dict[str, Any], text: str) -> None:
    tried = 0
    for method, path, parameter in parameters(document):
        if parameter["in"] in ("query", "path"):
            answer = ask(world, method, path, parameter["name"], text)
            assert (answer.status_code, answer.json()["type"]) == (400, "/problems/malformed"), (
                path,
                parameter["name"],
            )
            tried += 1
    assert tried > 50


@pytest.mark.parametrize(
    "path", ["/?q={}", "/jobs/{}", "/static/{}", "/sign-in?next={}", "/submit?from={}", "/nowhere{}"]
)
def test_pages_refuse_invalid_urls_too(world: World, path: str) -> None:
    for text in BAD_TEXTS:
        assert world.client.get(path.format(text)).status_code == 400


def test_text_that_only_resembles_an_escape_is_accepted(world: World) -> None:
    for text in ("%2500", "%E2%90%80", "100%25", "%F0%9F%98%80", "a%0Ab"):
        assert world.client.get(f"/api/v1/jobs?q={text}").status_code == 200
