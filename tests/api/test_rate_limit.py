"""A caller above the rate limit gets 429 with Retry-After. Other callers are not affected."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from orchestrator.api.app import create_app
from orchestrator.dashboard.views import build_page_routes
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.job.worker_token import issue_worker_token
from orchestrator.identity.rate_limit import RateLimit
from orchestrator.identity.workers import Workers
from orchestrator.store.place_reader import PlaceReader
from tests.api.conftest import WORKER_KEY, World
from tests.api.fakes import Client


class Hand:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def hand() -> Hand:
    return Hand()


@pytest.fixture
def paced(closed: World, hand: Hand) -> Iterator[Client]:
    """Allows each caller ten requests at once, and each address ten invalid tokens; then one per second."""
    identity = replace(
        closed.services.identity,
        rate_limit=RateLimit(1, monotonic=hand),
        guess_limit=RateLimit(1, monotonic=hand),
        workers=Workers(PlaceReader(closed.database), closed.clock, [WORKER_KEY]),  # remembers valid tokens
    )
    client = Client(create_app(replace(closed.services, identity=identity), pages=build_page_routes()))
    yield client
    client.close()


def test_a_caller_above_the_rate_limit_gets_retry_after(closed: World, paced: Client, hand: Hand) -> None:
    alice, bob = closed.give("*=viewer"), closed.give("*=viewer", name="bob")
    statuses = [paced.get("/api/v1/jobs", headers=alice).status_code for _ in range(11)]
    assert statuses == [200] * 10 + [429]
    refused = paced.get("/api/v1/clusters", headers=alice)
    assert (refused.json()["type"], refused.headers["retry-after"]) == ("/problems/too-many", "1")
    assert refused.headers["content-type"] == "application/problem+json"
    assert paced.get("/api/v1/jobs", headers=bob).status_code == 200
    hand.now += 1
    assert paced.get("/api/v1/jobs", headers=alice).status_code == 200


def test_two_tokens_of_one_name_share_a_rate_limit(closed: World, paced: Client) -> None:
    first, second = closed.give("*=viewer"), closed.give("*=viewer")
    for _ in range(10):
        paced.get("/api/v1/jobs", headers=first)
    assert paced.get("/api/v1/jobs", headers=second).status_code == 429


def test_guesses_above_the_limit_do_not_reach_the_store(
    closed: World, paced: Client, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens, asked = closed.services.identity.tokens, []
    honest = tokens.verify
    monkeypatch.setattr(tokens, "verify", lambda text: asked.append(text) or honest(text))
    guesses = [{"Authorization": f"Bearer orc_{number:016x}_{'x' * 43}"} for number in range(20)]
    statuses = [paced.get("/api/v1/jobs", headers=guess).status_code for guess in guesses]
    assert statuses == [401] * 10 + [429] * 10
    assert len(asked) == 10
    hand.now += 1
    assert paced.get("/api/v1/jobs", headers=guesses[0]).status_code == 401


def test_sign_ins_count_as_guesses(paced: Client) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded", "Origin": "http://localhost:8700"}
    statuses = [paced.post("/sign-in", content="token=nonsense", headers=form).status_code for _ in range(11)]
    assert statuses == [401] * 10 + [429]
    assert paced.get("/sign-in").status_code == 200


def test_probes_are_never_refused(paced: Client) -> None:
    assert {paced.get(path).status_code for path in ("/healthz", "/readyz") for _ in range(30)} == {200}


def test_agents_are_rate_limited_by_attempt(closed: World, paced: Client, hand: Hand) -> None:
    admin = closed.give("*=admin")
    reports = []
    for _ in range(2):
        job_id = str(closed.client.post("/api/v1/jobs", json=closed.spec(), headers=admin).json()["id"])
        token = issue_worker_token(WORKER_KEY, AttemptKey(job_id, 1), closed.start(job_id).nonce)
        body = {"job_id": job_id, "attempt": 1, "replica": 0, "incarnation": 1}
        reports.append({"json": body, "headers": {"Authorization": f"Bearer {token}"}})
    statuses = [paced.post("/api/v1/reports", **reports[0]).status_code for _ in range(11)]
    assert statuses == [200] * 10 + [429]
    assert paced.post("/api/v1/reports", **reports[1]).status_code == 200


def test_invalid_reports_do_not_block_valid_ones(closed: World, paced: Client) -> None:
    admin = closed.give("*=admin")
    job_id = str(closed.client.post("/api/v1/jobs", json=closed.spec(), headers=admin).json()["id"])
    token = issue_worker_token(WORKER_KEY, AttemptKey(job_id, 1), closed.start(job_id).nonce)
    body = {"job_id": job_id, "attempt": 1, "replica": 0, "incarnation": 1}
    true = {"Authorization": f"Bearer {token}"}
    assert paced.post("/api/v1/reports", json=body, headers=true).status_code == 200
    statuses = {
        paced.post("/api/v1/reports", json=body, headers={"Authorization": f"Bearer orw_{number:064x}"}).status_code
        for number in range(20)
    }
    assert statuses == {401, 429}
    assert paced.post("/api/v1/reports", json=body, headers=true).status_code == 200
