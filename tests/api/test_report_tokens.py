"""The token of a report is checked before its body is read, because a body may have megabytes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from orchestrator.api.agents import find_attempt, parse_attempt
from orchestrator.api.app import create_app
from orchestrator.domain.job.attempt import AttemptKey, AttemptState
from orchestrator.domain.job.worker_token import LATE, issue_worker_token
from orchestrator.identity.rate_limit import RateLimit
from tests.api.conftest import WORKER_KEY, World
from tests.api.fakes import Client
from trainer.contract.env import ATTEMPT_HEADER

FALSE = "orw_" + "0" * 64
JUNK = b"[" + b"{}," * 20_000 + b"{}]"


@dataclass
class Post:
    """The answer to a report that was sent in chunks, and the number of chunks that were read."""

    status: int
    answer: dict[str, Any]
    taken: int


def post(world: World, token: str | None, chunks: Iterable[bytes], attempt: str | None = None) -> Post:
    return asyncio.run(_post(world, token, list(chunks), attempt))


async def _post(world: World, token: str | None, chunks: list[bytes], attempt: str | None) -> Post:
    headers = {"host": "localhost", "content-type": "application/json"}
    headers |= {} if token is None else {"authorization": f"Bearer {token}"}
    headers |= {} if attempt is None else {ATTEMPT_HEADER.lower(): attempt}
    sent: list[dict[str, Any]] = []
    taken = 0

    async def receive() -> dict[str, Any]:
        nonlocal taken
        taken += 1
        return {"type": "http.request", "body": chunks[taken - 1], "more_body": taken < len(chunks)}

    async def send(message: Any) -> None:
        sent.append(message)

    await world.app(_scope(headers), receive, send)
    body = b"".join(message.get("body", b"") for message in sent)
    return Post(sent[0]["status"], json.loads(body), taken)


def _scope(headers: dict[str, str]) -> dict[str, Any]:
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    path = "/api/v1/reports"
    address = {"client": ("192.0.2.1", 5), "path": path, "raw_path": path.encode(), "query_string": b""}
    return {"type": "http", "method": "POST", "http_version": "1.1", "scheme": "http", "headers": raw, **address}


@dataclass
class Reporting:
    """An attempt on a service that needs tokens."""

    world: World
    key: AttemptKey
    token: str

    @property
    def name(self) -> str:
        return f"{self.key.job_id}/{self.key.number}"

    def body(self, **fields: Any) -> bytes:
        document = {"version": 1, "job_id": self.key.job_id, "attempt": self.key.number, "replica": 0, "incarnation": 1}
        return json.dumps({**document, **fields}).encode()


@pytest.fixture
def reporting(closed: World) -> Reporting:
    admin = closed.give("*=admin")
    job_id = str(closed.client.post("/api/v1/jobs", json=closed.spec(), headers=admin).json()["id"])
    key = AttemptKey(job_id, 1)
    return Reporting(closed, key, issue_worker_token(WORKER_KEY, key, closed.start(job_id).nonce))


def test_a_report_with_an_invalid_token_is_refused_before_its_body_is_read(reporting: Reporting) -> None:
    persons = reporting.world.give("*=admin", name="bob")["Authorization"].removeprefix("Bearer ")
    for token in (FALSE, persons, "nonsense", None):
        for attempt in (reporting.name, "unknown-1/1", "not an attempt", "../../etc/1", "x" * 5000):
            refused = post(reporting.world, token, [JUNK], attempt)
            assert (refused.status, refused.taken) == (401, 0), (token, attempt)


def test_only_the_first_bytes_are_read_of_a_report_without_the_header(reporting: Reporting) -> None:
    for first in (JUNK, reporting.body(progress=["x" * 5000])):
        refused = post(reporting.world, FALSE, [first, JUNK, JUNK])
        assert (refused.status, refused.taken) == (401, 1)


@pytest.mark.parametrize("cut", [1, 10, 40, 1000])
def test_agents_of_the_first_release_report_without_the_header(reporting: Reporting, cut: int) -> None:
    body = reporting.body(progress=["x" * 5000])
    accepted = post(reporting.world, reporting.token, [body[:cut], body[cut:]])
    assert accepted.status == 200, accepted.answer
    assert reporting.world.intake.bodies[0].progress == ["x" * 5000]


def test_a_report_with_the_header_is_accepted_whatever_its_body_begins_with(reporting: Reporting) -> None:
    body = json.dumps(dict(reversed(json.loads(reporting.body(progress=["x" * 5000])).items()))).encode()
    assert post(reporting.world, reporting.token, [body], reporting.name).status == 200
    assert post(reporting.world, reporting.token, [body]).status == 401, (
        "its attempt is beyond the bytes that are searched"
    )


def test_a_token_is_valid_only_for_reports_of_its_attempt(reporting: Reporting) -> None:
    other = json.loads(reporting.body()) | {"attempt": 2}
    for attempt in (reporting.name, f"{reporting.key.job_id}/2", None):
        assert post(reporting.world, reporting.token, [json.dumps(other).encode()], attempt).status == 401
    assert reporting.world.intake.bodies == []


def test_the_agent_of_an_ended_attempt_is_told_to_stop_and_its_report_is_not_read(reporting: Reporting) -> None:
    world = reporting.world
    world.start(reporting.key.job_id, state=AttemptState.FAILED, ended_at=world.clock.now())
    world.clock.moment += LATE
    refused = post(world, reporting.token, [reporting.body()], reporting.name)
    assert (refused.status, refused.taken) == (403, 0)
    assert refused.answer["type"] == "/problems/forbidden"
    assert refused.answer["desired"]["state"] == "stop"


@pytest.mark.parametrize("attempt", ["unknown-1/1", "nonsense", None], ids=str)
@pytest.mark.parametrize("body", [b"", b"{", b"[]", JUNK], ids=["empty", "torn", "a list", "much"])
def test_every_refused_report_counts_as_a_guess(reporting: Reporting, attempt: str | None, body: bytes) -> None:
    identity = replace(reporting.world.services.identity, guess_limit=RateLimit(1, monotonic=lambda: 0.0))
    app = create_app(replace(reporting.world.services, identity=identity))
    client = Client(app)
    headers = {"Authorization": f"Bearer {FALSE}", "Content-Type": "application/json"}
    headers |= {} if attempt is None else {ATTEMPT_HEADER: attempt}
    statuses = [client.post("/api/v1/reports", content=body, headers=headers).status_code for _ in range(11)]
    client.close()
    assert statuses == [401] * 10 + [429]


def test_invalid_tokens_take_no_memory_in_the_rate_limit_of_callers(reporting: Reporting) -> None:
    """Otherwise the text of each invalid token would stay in memory."""
    rate_limit = RateLimit(1, monotonic=lambda: 0.0)
    identity = replace(reporting.world.services.identity, rate_limit=rate_limit, guess_limit=RateLimit(1e6))
    client = Client(create_app(replace(reporting.world.services, identity=identity)))
    for number in range(5):
        client.post("/api/v1/reports", content=b"{}", headers={"Authorization": f"Bearer {number}{'x' * 60_000}"})
    client.close()
    assert len(rate_limit) == 0


@pytest.mark.parametrize(("number", "is_valid"), [(2**31 - 1, True), (2**31, False), (9_999_999_999, False)])
def test_an_attempt_number_that_postgresql_cannot_store_is_refused(number: int, is_valid: bool) -> None:
    """PostgreSQL fails with `integer out of range`, which would be a 500, and no guess would be counted."""
    key = AttemptKey("job-1", number) if is_valid else None
    assert parse_attempt(f"job-1/{number}") == key
    assert find_attempt(f'{{"job_id": "job-1", "attempt": {number}}}'.encode()) == key
