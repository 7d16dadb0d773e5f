"""Tokens, sessions, secrets, and the places of jobs."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import text

from orchestrator.domain.access.identity import Role, Session, Token
from orchestrator.domain.access.route_roles import JobPlace
from orchestrator.domain.job.attempt import AttemptKey, AttemptState
from orchestrator.domain.job.job import JobState
from orchestrator.domain.job.worker_token import TokenFacts
from orchestrator.store.records import JobFilter, SealedSecret
from orchestrator.store.secret_store import SecretStore
from orchestrator.store.token_store import TokenStore
from tests.builders import NOW, at, make_attempt, make_event, make_spec
from tests.store.harness import Stores

TOKEN = Token(
    id="t1",
    name="alice",
    digest="d1",
    grants={"research": Role.OPERATOR, "*": Role.VIEWER},
    created_at=NOW,
    created_by="root",
    expires_at=at(3600),
)
SECRET = SealedSecret(project="research", name="KEY", sealed="sealed", updated_at=NOW, updated_by="root")


def a_session(digest: str = "s1", *, seconds: float = 60, created: float = 0, token_id: str = "t1") -> Session:
    return Session(digest=digest, token_id=token_id, created_at=at(created), expires_at=at(created + seconds))


@pytest.fixture
def tokens(stores: Stores) -> TokenStore:
    return TokenStore(stores.database)


@pytest.fixture
def secrets(stores: Stores) -> SecretStore:
    return SecretStore(stores.database)


def test_a_token_is_read_back_unchanged(tokens: TokenStore) -> None:
    tokens.add_token(TOKEN)
    assert tokens.token("t1") == TOKEN
    assert tokens.token("t2") is None


def test_tokens_are_listed_newest_first(tokens: TokenStore) -> None:
    for number in (1, 3, 2):
        tokens.add_token(replace(TOKEN, id=f"t{number}", created_at=at(number)))
    assert [token.id for token in tokens.tokens()] == ["t3", "t2", "t1"]


def test_the_first_revocation_counts_and_ends_the_sessions(tokens: TokenStore) -> None:
    tokens.add_token(TOKEN)
    tokens.add_session(a_session())
    tokens.add_session(a_session("s2", token_id="another"))
    tokens.revoke_token("t1", by="bob", at=at(1))
    tokens.revoke_token("t1", by="carol", at=at(2))
    tokens.revoke_token("unknown", by="carol", at=at(2))
    assert tokens.token("t1") == replace(TOKEN, revoked_at=at(1), revoked_by="bob")
    assert tokens.session("s1") is None
    assert tokens.session("s2") is not None


def test_a_session_can_be_ended_twice(tokens: TokenStore) -> None:
    tokens.add_session(a_session())
    assert tokens.session("s1") == a_session()
    tokens.end_session("s1")
    tokens.end_session("s1")
    assert tokens.session("s1") is None


def test_a_new_session_deletes_expired_ones(tokens: TokenStore, stores: Stores) -> None:
    tokens.add_session(a_session("old", seconds=5))
    tokens.add_session(a_session("lives", seconds=60))
    tokens.add_session(a_session("new", created=5))
    with stores.database.read() as session:
        left = session.scalars(text("SELECT digest FROM sessions ORDER BY digest")).all()
    assert left == ["lives", "new"]


def test_a_secret_is_replaced_within_its_project(secrets: SecretStore) -> None:
    assert secrets.put(SECRET) is True
    assert secrets.put(replace(SECRET, sealed="again", updated_by="bob")) is False
    assert secrets.put(replace(SECRET, project="vision")) is True
    assert secrets.put(replace(SECRET, name="A")) is True
    assert [(each.name, each.sealed) for each in secrets.of_project("research")] == [("A", "sealed"), ("KEY", "again")]
    assert [(each.project, each.name) for each in secrets.all()] == [
        ("research", "A"),
        ("research", "KEY"),
        ("vision", "KEY"),
    ]


def test_a_secret_is_removed_once(secrets: SecretStore) -> None:
    secrets.put(SECRET)
    assert secrets.remove("research", "KEY") is True
    assert secrets.remove("research", "KEY") is False


def test_the_place_of_a_job_is_its_project_and_owner(stores: Stores) -> None:
    stores.add("job-1", spec=make_spec(project="research"), owner="alice")
    stores.add("job-2", owner=None)
    assert stores.places.places(["job-1", "job-2", "job-3"]) == {
        "job-1": JobPlace(project="research", owner="alice"),
        "job-2": JobPlace(project="default", owner=None),
    }
    assert stores.places.places([]) == {}
    assert stores.jobs.get("job-1").owner == "alice"


def test_an_attempt_is_read_with_its_nonce_and_end(stores: Stores) -> None:
    job = stores.add_with_attempt()
    key = AttemptKey(job.id, 1)
    assert stores.places.facts(key) == TokenFacts(nonce="c0ffee", ended_at=None)
    stores.apply(job, make_attempt(job.id, state=AttemptState.FAILED, ended_at=at(9)))
    assert stores.places.facts(key) == TokenFacts(nonce="c0ffee", ended_at=at(9))
    assert stores.places.facts(AttemptKey(job.id, 2)) is None
    assert stores.places.facts(AttemptKey("unknown", 1)) is None


def test_jobs_are_listed_and_counted_by_project(stores: Stores) -> None:
    for project in ("research", "vision", "default"):
        stores.add(f"job-{project}", spec=make_spec(project=project))

    def listed(**where: object) -> set[str]:
        rows, _ = stores.reader.summaries(JobFilter(**where), limit=9, cursor=None)  # type: ignore[arg-type]
        return {row.project for row in rows}

    assert listed(projects={"research", "vision"}) == {"research", "vision"}
    assert listed(projects={"research"}, project="vision") == set()
    assert listed(projects=frozenset()) == set()
    assert listed() == {"research", "vision", "default"}
    assert stores.reader.count_by_state({"research"}) == {JobState.QUEUED: 1}
    assert stores.reader.count_by_state(()) == {}


def test_an_event_has_its_actor(stores: Stores) -> None:
    job = stores.add()
    stores.apply(job, None, make_event(actor="alice"), make_event())
    assert [event.actor for event in stores.events()][-2:] == ["alice", None]


def test_an_expiry_is_stored_to_the_microsecond(tokens: TokenStore) -> None:
    tokens.add_token(replace(TOKEN, expires_at=NOW + timedelta(microseconds=1)))
    found = tokens.token("t1")
    assert found is not None
    assert (found.lives(NOW), found.lives(NOW + timedelta(microseconds=1))) == (True, False)
