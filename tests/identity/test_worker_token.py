"""A worker's token is valid for its own attempt, until shortly after its end."""

from __future__ import annotations

from datetime import timedelta

import pytest

from orchestrator.domain.errors import AttemptOver, Unauthenticated
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.job.worker_token import (
    LATE,
    TokenFacts,
    derive_worker_key,
    is_genuine,
    is_over,
    issue_worker_token,
)
from orchestrator.identity.workers import Workers
from tests.builders import NOW
from tests.identity.fakes import HandClock, MemoryPlaces

KEY, OLD = derive_worker_key(b"one"), derive_worker_key(b"another")
FIRST = AttemptKey("job-1", 1)
TOKEN = issue_worker_token(KEY, FIRST, "nonce")


def test_the_same_attempt_has_the_same_token_at_every_submission() -> None:
    assert issue_worker_token(KEY, FIRST, "nonce") == TOKEN
    assert TOKEN.startswith("orw_")


@pytest.mark.parametrize(
    ("key", "nonce"), [(AttemptKey("job-1", 2), "nonce"), (AttemptKey("job-2", 1), "nonce"), (FIRST, "other")]
)
def test_a_worker_token_is_invalid_for_another_attempt(key: AttemptKey, nonce: str) -> None:
    assert not is_genuine(TOKEN, [KEY], key, nonce)


def test_a_worker_token_is_valid_with_any_of_the_services_keys() -> None:
    assert is_genuine(TOKEN, [OLD, KEY], FIRST, "nonce")
    assert not is_genuine(TOKEN, [OLD], FIRST, "nonce")
    assert not is_genuine(TOKEN, [], FIRST, "nonce")
    assert not is_genuine("half a pair \ud800", [KEY], FIRST, "nonce")


def test_the_worker_key_does_not_reveal_the_services_key() -> None:
    assert b"one" not in KEY
    assert derive_worker_key(b"two") != KEY


def test_a_worker_token_is_valid_until_a_minute_after_its_attempt() -> None:
    assert not is_over(TokenFacts(nonce="n", ended_at=None), NOW)
    ended = TokenFacts(nonce="n", ended_at=NOW)
    assert not is_over(ended, NOW + LATE - timedelta(seconds=1))
    assert is_over(ended, NOW + LATE)


def test_a_token_is_refused_after_its_attempt_has_ended() -> None:
    clock = HandClock()
    places = MemoryPlaces(known_facts={FIRST: TokenFacts(nonce="nonce", ended_at=None)})
    workers = Workers(places, clock, [KEY], monotonic=clock.monotonic)
    workers.require(TOKEN, FIRST, workers.find(FIRST).value)
    places.known_facts[FIRST] = TokenFacts(nonce="nonce", ended_at=clock.now())
    assert workers.find(FIRST).value == TokenFacts(nonce="nonce", ended_at=None), (
        "the store's answer is cached for seconds"
    )
    clock.advance(LATE.total_seconds())
    facts = workers.find(FIRST).value
    workers.require(TOKEN, FIRST, facts)
    with pytest.raises(AttemptOver, match="job-1-a1 has ended"):
        workers.require_not_over(FIRST, facts)


def test_a_valid_token_is_known_for_a_while() -> None:
    clock = HandClock()
    facts = TokenFacts(nonce="nonce", ended_at=None)
    workers = Workers(MemoryPlaces(known_facts={FIRST: facts}), clock, [KEY], monotonic=clock.monotonic)
    assert not workers.knows(TOKEN)
    with pytest.raises(Unauthenticated):
        workers.require("orw_" + "0" * 64, FIRST, facts)
    assert not workers.knows("orw_" + "0" * 64)
    workers.require(TOKEN, FIRST, facts)
    clock.advance(60)
    assert workers.knows(TOKEN)
    clock.advance(7200)
    assert not workers.knows(TOKEN)


def test_a_token_of_an_unknown_attempt_is_invalid() -> None:
    workers = Workers(MemoryPlaces(), HandClock(), [KEY])
    with pytest.raises(Unauthenticated):
        workers.require(TOKEN, FIRST, workers.find(FIRST).value)
    with pytest.raises(Unauthenticated):
        workers.require("orw_" + "0" * 64, FIRST, TokenFacts(nonce="nonce", ended_at=None))
