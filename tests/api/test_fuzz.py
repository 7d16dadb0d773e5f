"""Every operation of the OpenAPI document with paths, queries, headers and bodies of any bytes: refused, never a 5xx.

The requests go past every client's own checks, as a socket would deliver them.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import quote_from_bytes

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.api.conftest import World
from tests.api.openapi import streaming_paths
from tests.examples import examples

FUZZ = settings(
    max_examples=examples(20, 500),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
PATIENCE_S = 60.0
HEADERS = (
    *("accept", "accept-encoding", "authorization", "content-length", "content-type", "cookie", "expect", "forwarded"),
    *("host", "idempotency-key", "if-none-match", "last-event-id", "origin", "range", "sec-fetch-site", "te"),
    *("transfer-encoding", "upgrade", "x-forwarded-for", "x-forwarded-proto", "x-fragment", "x-request-id"),
)
TEXTS = st.one_of(
    st.binary(max_size=40),
    st.sampled_from(
        [
            *(b"", b"\0", b"\xff\xfe", b"\xed\xa0\x80", b"%00", b"%2e%2e%2f", b"..", b"orc_0_", b"Bearer ", b"null"),
            *(b"1e999", b"-1", b"9" * 400, b"'", b'"', b"\r\n", b"*", b'W/"x"', b"application/json; charset=\xff"),
            *(b"application/yaml", b"bytes=0-", b"[::1", b"http://[", b"a=b; a=c", b"orchestrator_session=\xff"),
        ]
    ),
)
NAMES = st.sampled_from(["limit", "cursor", "names", "points", "tail", "grep", "rank", "q", "label", "state", "x"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10) | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    [
        *("name", "run", "grants", "project", "value", "nodes", "patch", "restore_from", "job_id", "attempt"),
        *("progress", "progress_to", "events", "exit_record", "expires_at", "topology", "snapshot"),
    ]
)
YAML = st.sampled_from(
    ["a: &a [*a]", "? [1]\n: 2", "!!set {x}", "- - - -", "a: !!python/name:os.system x", "%YAML 9.9\n---\n", "\ufeff{}"]
)
BODIES = st.one_of(
    st.dictionaries(FIELDS, JSON, max_size=6).map(lambda value: json.dumps(value).encode()),
    JSON.map(lambda value: json.dumps(value).encode()),
    YAML.map(str.encode),
    st.binary(max_size=200),
    st.sampled_from([b"[" * 5000, b'{"a":' * 5000, b"1" * 5000, b'{"a":1,"a":2}', '{"name": "é"}'.encode("latin-1")]),
)


@pytest.fixture
def operations(world: World) -> list[tuple[str, str]]:
    """All operations except the streams, which do not end."""
    paths = world.client.get("/openapi.json").json()["paths"]
    return [
        (method.upper(), path)
        for path in paths
        if path not in streaming_paths({"paths": paths})
        for method in paths[path]
    ]


async def ask(world: World, scope: dict[str, Any], body: bytes) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []
    parts = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> dict[str, Any]:
        return next(parts, {"type": "http.disconnect"})

    async def send(message: Any) -> None:
        sent.append(dict(message))

    await asyncio.wait_for(world.app(scope, receive, send), PATIENCE_S)
    return sent


@pytest.mark.timeout(300)
@FUZZ
@given(data=st.data())
def test_no_request_of_any_bytes_brings_the_service_down(
    world: World, operations: list[tuple[str, str]], data: st.DataObject
) -> None:
    method, path = data.draw(st.sampled_from(operations))
    for part in [part for part in path.split("/") if part.startswith("{")]:
        path = path.replace(part, quote_from_bytes(data.draw(TEXTS), safe="."))
    query = b"&".join(
        name.encode() + b"=" + quote_from_bytes(value).encode()
        for name, value in data.draw(st.lists(st.tuples(NAMES, TEXTS), max_size=3))
    )
    kind = data.draw(st.sampled_from([b"application/json", b"application/yaml"]))
    drawn = data.draw(st.lists(st.tuples(st.sampled_from(HEADERS), TEXTS), max_size=4))
    headers = [(b"host", b"localhost"), (b"content-type", kind), *((name.encode(), value) for name, value in drawn)]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query,
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("localhost", 8700),
    }
    sent = asyncio.run(ask(world, scope, data.draw(BODIES)))
    assert sent, "no answer"
    status = sent[0]["status"]
    assert status < 500, sent
    if status >= 400:
        assert (b"content-type", b"application/problem+json") in sent[0]["headers"], sent
