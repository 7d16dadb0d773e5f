"""Who asks too fast is told when to come again, and costs nobody else anything."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest

from orchestrator.api.app import create_app
from orchestrator.dashboard.sign_in import add_sign_in
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.job.worker_token import issue_worker_token
from orchestrator.identity.rate_limit import RateLimit
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
    """Ten requests at once of each caller, and ten false tokens of each address; then one a second."""
    meters = {"rate_limit": RateLimit(1, monotonic=hand), "strangers": RateLimit(1, monotonic=hand)}
    identity = replace(closed.services.identity, **meters)  # type: ignore[arg-type]
    signing = partial(add_sign_in, tokens=closed.services.identity.tokens)
    client = Client(create_app(replace(closed.services, identity=identity), add_pages=signing))
    yield client
    client.close()


def test_a_caller_who_asks_too_fast_is_told_when_to_come_again(closed: World, paced: Client, hand: Hand) -> None:
    alice, bob = closed.give("*=viewer"), closed.give("*=viewer", name="bob")
    statuses = [paced.get("/api/v1/jobs", headers=alice).status_code for _ in range(11)]
    assert statuses == [200] * 10 + [429]
    refused = paced.get("/api/v1/clusters", headers=alice)
    assert (refused.json()["type"], refused.headers["retry-after"]) == ("/problems/too-many", "1")
    assert refused.headers["content-type"] == "application/problem+json"
    assert paced.get("/api/v1/jobs", headers=bob).status_code == 200
    hand.now += 1
    assert paced.get("/api/v1/jobs", headers=alice).status_code == 200


def test_a_second_token_of_the_same_name_gets_nobody_further(closed: World, paced: Client) -> None:
    first, second = closed.give("*=viewer"), closed.give("*=viewer")
    for _ in range(10):
        paced.get("/api/v1/jobs", headers=first)
    assert paced.get("/api/v1/jobs", headers=second).status_code == 429


def test_who_guesses_is_not_looked_up_for_ever(
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


def test_signing_in_is_a_guess_like_another(paced: Client) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded", "Origin": "http://localhost:8700"}
    statuses = [paced.post("/sign-in", content="token=nonsense", headers=form).status_code for _ in range(11)]
    assert statuses == [401] * 10 + [429]
    assert paced.get("/sign-in").status_code == 200


def test_probes_are_never_refused(paced: Client) -> None:
    assert {paced.get(path).status_code for path in ("/healthz", "/readyz") for _ in range(30)} == {200}


def test_an_agent_is_paced_by_its_attempt(closed: World, paced: Client, hand: Hand) -> None:
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


def test_false_reports_cost_true_ones_nothing(closed: World, paced: Client) -> None:
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


def test_what_guessers_send_is_not_read_for_ever(paced: Client) -> None:
    """A report has megabytes, and its token is looked at when it has been parsed."""
    job = {"job_id": "none-1", "attempt": 1, "replica": 0, "incarnation": 1}
    for number in range(10):
        guess = {"Authorization": f"Bearer orw_{number:064x}"}
        assert paced.post("/api/v1/reports", json=job, headers=guess).status_code == 401
    headers = {"Authorization": f"Bearer orw_{'f' * 64}", "Content-Type": "application/json"}
    assert paced.post("/api/v1/reports", content=b"{", headers=headers).status_code == 429
