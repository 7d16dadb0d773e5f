"""Callers with or without a token cannot fill the memory of a real service. Others are answered meanwhile."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Mapping, Sequence

import pytest

from deploy.dev.service import ThrowawayService
from orchestrator.client import Client
from tests.integration.hostile import ADMIN, MIB, TOKEN, guarded, head, hold, post, send_all, withstanding
from tests.jobs import ended, python_job, until
from trainer.contract.env import ATTEMPT_HEADER

FALSE = f"Authorization: Bearer orw_{'0' * 64}"
ADMINS = f"Authorization: Bearer {TOKEN}"
FORM = "application/x-www-form-urlencoded"
ORIGIN = "Origin: http://localhost"

JUNK = b"[" + b"{}," * (8 * MIB // 3 - 2) + b"{}]"
KEYS = b"{" + b",".join(b'"%x":{}' % number for number in range(8 * MIB // 12)) + b"}"
DEEP = b"[" * (8 * MIB)
SPEC = MIB - 100

Requests = Sequence[Sequence[bytes]]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThrowawayService]:
    with guarded(tmp_path_factory.mktemp("hostile") / "root") as service:
        yield service


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThrowawayService]:
    """A second service, for attacks by callers with a token."""
    settings = {"ORCHESTRATOR_LOCAL_SLOTS": "4", "ORCHESTRATOR_ADVERTISE_URL": "http://127.0.0.1:1"}
    with guarded(tmp_path_factory.mktemp("used") / "root", **settings) as service:
        yield service


def attack(service: ThrowawayService, what: str, requests: Requests) -> set[int | None]:
    with withstanding(service, what):
        return set(asyncio.run(send_all(service.url, requests)))


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(JUNK, id="objects"),
        pytest.param(KEYS, id="keys", marks=pytest.mark.long),
        pytest.param(DEEP, id="depth", marks=pytest.mark.long),
    ],
)
def test_eight_reports_of_8_megabytes_by_strangers_are_not_read(service: ThrowawayService, body: bytes) -> None:
    headers = [[], [f"{ATTEMPT_HEADER}: unknown-1/1"]]
    requests = [post("/api/v1/reports", body, FALSE, *more) for more in headers for _ in range(4)]
    assert attack(service, "eight junk reports", requests) <= {401, 429}


@pytest.mark.long
@pytest.mark.timeout(300)
def test_24_concurrent_reports_for_a_minute(service: ThrowawayService) -> None:
    ends, rounds = time.monotonic() + 60, 0
    with withstanding(service, "24 junk reports at a time for a minute"):
        while time.monotonic() < ends or rounds == 0:
            statuses = asyncio.run(send_all(service.url, [post("/api/v1/reports", JUNK, FALSE)] * 24))
            assert set(statuses) <= {401, 429, 503, None}
            rounds += 1
    print(f"{24 * rounds} reports of 8 MiB")


SLOW: Mapping[str, Sequence[bytes]] = {
    "nothing": [b""],
    "headers": [b"GET /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nX-Slow: "],
    "many short headers": [b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"a:b\r\n" * 12_000],
    "a long address": [b"GET /" + b"x" * 60_000],
    "a report": [head("POST", "/api/v1/reports", FALSE, "Content-Type: application/json", length=8 * MIB), JUNK[:MIB]],
    "a report at once": [
        head("POST", "/api/v1/reports", FALSE, "Content-Type: application/json", length=8 * MIB) + JUNK[: MIB // 4]
    ],
    "a chunked report": [
        head("POST", "/api/v1/reports", FALSE, "Content-Type: application/json", "Transfer-Encoding: chunked"),
        b"ffffff\r\n",
        JUNK[:MIB],
    ],
    "a sign-in": [head("POST", "/sign-in", f"Content-Type: {FORM}", length=8 * MIB), b"token=" + b"x" * MIB],
    "an unknown page": [head("POST", "/nowhere", length=8 * MIB), JUNK[:MIB]],
}


@pytest.mark.parametrize("what", SLOW)
def test_300_slow_connections_of_strangers(service: ThrowawayService, what: str) -> None:
    with withstanding(service, f"300 slow connections, {what}") as watch:
        asyncio.run(hold(service.url, [SLOW[what]] * 300, watch.has_heard(40), drop=b"x"))


@pytest.mark.long
def test_256_streams_that_are_held_open(service: ThrowawayService) -> None:
    streams = [[head("GET", "/api/v1/events", ADMINS)]] * 256
    with withstanding(service, "256 streams of events") as watch:
        asyncio.run(hold(service.url, streams, watch.has_heard(40)))


ODD: Mapping[str, Requests] = {
    "requests before their turn": [[b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" * 5000]] * 100,
    "reports before their turn": [
        [
            b"".join(
                head("POST", "/api/v1/reports", FALSE, length=9).replace(b"close", b"x") + b"[{},{},1]"
                for _ in range(900)
            )
        ]
    ]
    * 100,
    "long paths": [[head("GET", "/" + "a/" * 30_000)]] * 100,
    "escaped paths": [[head("GET", "/api/v1/jobs/" + "%41" * 20_000)]] * 100,
    "long queries": [[head("GET", "/api/v1/jobs?" + "a&" * 30_000)]] * 100,
    "long tokens": [[head("POST", "/api/v1/reports", f"Authorization: Bearer {n}{'x' * 60_000}")] for n in range(200)],
    "long cookies": [[head("GET", "/", "Cookie: " + "a=b;" * 15_000)]] * 100,
    "upgrades": [[head("GET", "/", "Upgrade: websocket").replace(b"close", b"upgrade")]] * 100,
    "compressed reports": [post("/api/v1/reports", JUNK, FALSE, "Content-Encoding: gzip")] * 8,
    "bodies of other routes": [
        post(path, JUNK) for path in ("/api/v1/jobs", "/api/v1/secrets", "/submit", "/cancel", "/metrics", "/no") * 3
    ],
    "sign-ins": [post("/sign-in", b"token=" + b"x" * 8 * MIB, kind=FORM)] * 8
    + [post("/sign-in", b"a&" * 4000, kind=FORM)] * 8
    + [post("/sign-in", b"--x\r\n" * MIB, kind="multipart/form-data; boundary=x")] * 8,
}


@pytest.mark.parametrize("what", ODD)
def test_odd_requests_of_strangers(service: ThrowawayService, what: str) -> None:
    statuses = attack(service, f"odd requests, {what}", ODD[what])
    assert 500 not in statuses
    assert not {200, 201, 303} & statuses or what == "requests before their turn"


BOMBS: Mapping[str, tuple[bytes, str]] = {
    "objects": (b'{"after":[' + b"{}," * (SPEC // 3 - 9) + b"{}]}", "application/json"),
    "ints": (b'{"name":"x","run":{"command":["true"]},"after":[' + b"1," * 190_000 + b"1]}", "application/json"),
    "keys": (KEYS[: SPEC - 4] + b"}", "application/json"),
    "depth": (DEEP[:SPEC], "application/json"),
    "a long number": (b'{"priority":' + b"9" * (SPEC - 20) + b"}", "application/json"),
    "escapes": (b'{"name":"' + b"\\u0041" * (SPEC // 6 - 9) + b'"}', "application/json"),
    "aliases": (b"a: &a [x]\n" + b"".join(b"b%d: &b%d [*a,*a]\n" % (n, n) for n in range(30_000)), "application/yaml"),
    "yaml depth": (b"[" * SPEC, "application/yaml"),
    "yaml keys": (b"".join(b"k%d: 1\n" % n for n in range(80_000)), "application/yaml"),
    "yaml text": (b'"' + b"\\x41" * (SPEC // 4 - 9) + b'"', "application/yaml"),
    "yaml number": (b"priority: " + b"9" * (SPEC - 20), "application/yaml"),
}


@pytest.mark.parametrize("what", BOMBS)
def test_specs_that_are_costly_to_parse(used: ThrowawayService, what: str) -> None:
    body, kind = BOMBS[what]
    paths = ("/api/v1/jobs", "/api/v1/plan", "/api/v1/jobs/unknown-1/retry")
    requests = [post(path, body, ADMINS, kind=kind) for path in paths for _ in range(8)]
    assert attack(used, f"24 specs of {what}", requests) <= {400, 404, 413, 422, 429, 503}


@pytest.mark.long
def test_forms_that_are_costly_to_parse(used: ThrowawayService) -> None:
    bodies = [b"yaml=" + b"%41" * (MIB - 9), b"a&" * MIB, b"yaml=" + b"%5B" * (MIB - 9), b"yaml=" + KEYS[: 2 * MIB]]
    paths = ("/submit", "/submit/draft", "/cancel", "/secrets", "/tokens")
    requests = [post(path, body, ADMINS, ORIGIN, kind=FORM) for path in paths for body in bodies]
    requests += [post("/submit", b"--x\r\n" * MIB, ADMINS, ORIGIN, kind="multipart/form-data; boundary=x")] * 4
    assert 500 not in attack(used, f"{len(requests)} forms", requests)


@pytest.mark.long
def test_an_agent_cannot_fill_the_memory(used: ThrowawayService) -> None:
    with Client(used.url, TOKEN) as client:
        printing = python_job("import os; print(os.environ['ORCHESTRATOR_REPORT_TOKEN'])")
        job = until(client, client.submit(printing).id, ended)
        token = client.logs(job.id).strip()
    own = [f"Authorization: Bearer {token}", f"{ATTEMPT_HEADER}: {job.id}/1"]
    report = {"job_id": job.id, "attempt": 1, "replica": 0, "incarnation": 9}
    record = json.dumps({**report, "exit_record": {f"k{n}": {} for n in range(39_000)}}).encode()
    lines = json.dumps({**report, "progress": ["x" * 800] * 9_900}).encode()
    wrong = json.dumps({**report, "progress": [{}] * 9_000, "events": [{}] * 9_000}).encode()
    requests = [post("/api/v1/reports", body, *own) for body in (JUNK, KEYS, DEEP, record, lines, wrong) * 4]
    statuses = attack(used, "24 reports of an agent", requests)
    assert statuses <= {200, 400, 401, 422, 429, 503}
    assert statuses & {429, 503}


def test_the_admin_is_answered_after_the_attacks(used: ThrowawayService) -> None:
    """The attacks' memory is free again."""
    (status,) = asyncio.run(
        send_all(used.url, [[head("GET", "/api/v1/jobs", *(f"{k}: {v}" for k, v in ADMIN.items()))]])
    )
    assert status == 200
