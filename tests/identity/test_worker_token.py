"""A worker's token is good for its own attempt, and as long as that one."""

from __future__ import annotations

from datetime import timedelta

import pytest

from orchestrator.domain.errors import AttemptOver, Unauthenticated
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.job.worker_token import (
    LATE,
    AttemptStay,
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
def test_it_is_good_for_no_other_attempt(key: AttemptKey, nonce: str) -> None:
    assert not is_genuine(TOKEN, [KEY], key, nonce)


def test_it_holds_while_one_of_the_services_keys_is_its_own() -> None:
    assert is_genuine(TOKEN, [OLD, KEY], FIRST, "nonce")
    assert not is_genuine(TOKEN, [OLD], FIRST, "nonce")
    assert not is_genuine(TOKEN, [], FIRST, "nonce")
    assert not is_genuine("half a pair \ud800", [KEY], FIRST, "nonce")


def test_the_key_of_tokens_says_nothing_of_the_services_key() -> None:
    assert b"one" not in KEY
    assert derive_worker_key(b"two") != KEY


def test_it_ends_a_minute_after_its_attempt() -> None:
    assert not is_over(AttemptStay(nonce="n", ended_at=None), NOW)
    ended = AttemptStay(nonce="n", ended_at=NOW)
    assert not is_over(ended, NOW + LATE - timedelta(seconds=1))
    assert is_over(ended, NOW + LATE)


def test_a_replayed_token_of_a_finished_attempt_is_refused() -> None:
    clock = HandClock()
    places = MemoryPlaces(stays={FIRST: AttemptStay(nonce="nonce", ended_at=None)})
    workers = Workers(places, clock, [KEY], monotonic=clock.monotonic)
    workers.require(TOKEN, FIRST, workers.find(FIRST).value)
    places.stays[FIRST] = AttemptStay(nonce="nonce", ended_at=clock.now())
    assert workers.find(FIRST).value == AttemptStay(nonce="nonce", ended_at=None), "it is remembered for seconds"
    clock.advance(LATE.total_seconds())
    stay = workers.find(FIRST).value
    workers.require(TOKEN, FIRST, stay)
    with pytest.raises(AttemptOver, match="job-1-a1 has ended"):
        workers.require_not_over(FIRST, stay)


def test_a_token_is_known_for_a_while_once_it_was_genuine() -> None:
    clock = HandClock()
    stay = AttemptStay(nonce="nonce", ended_at=None)
    workers = Workers(MemoryPlaces(stays={FIRST: stay}), clock, [KEY], monotonic=clock.monotonic)
    assert not workers.knows(TOKEN)
    with pytest.raises(Unauthenticated):
        workers.require("orw_" + "0" * 64, FIRST, stay)
    assert not workers.knows("orw_" + "0" * 64)
    workers.require(TOKEN, FIRST, stay)
    clock.advance(60)
    assert workers.knows(TOKEN)
    clock.advance(7200)
    assert not workers.knows(TOKEN)


def test_a_token_for_an_attempt_that_never_was_is_refused_like_a_false_one() -> None:
    workers = Workers(MemoryPlaces(), HandClock(), [KEY])
    with pytest.raises(Unauthenticated):
        workers.require(TOKEN, FIRST, workers.find(FIRST).value)
    with pytest.raises(Unauthenticated):
        workers.require("orw_" + "0" * 64, FIRST, AttemptStay(nonce="nonce", ended_at=None))
