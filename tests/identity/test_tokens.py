"""Tokens and sessions: created, cached for seconds, ended."""

from __future__ import annotations

from datetime import timedelta
from ipaddress import ip_network

import pytest

from orchestrator.domain.access.identity import LOCAL, Principal, Role
from orchestrator.domain.errors import Forbidden, InvalidSpec, NotFound, Unauthenticated
from orchestrator.identity.gate import Credentials, Gate, Proxy
from orchestrator.identity.short_memory import MOST, ShortMemory
from orchestrator.identity.tokens import FIRST, SESSION_FOR, Tokens
from tests.identity.fakes import HandClock, MemoryTokenStore

BOB = Principal(name="bob", grants={"research": Role.ADMIN})


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def store() -> MemoryTokenStore:
    return MemoryTokenStore()


@pytest.fixture
def tokens(store: MemoryTokenStore, clock: HandClock) -> Tokens:
    return Tokens(store, clock, monotonic=clock.monotonic)


def make(tokens: Tokens, by: Principal = LOCAL, project: str = "research", **fields: object) -> tuple[str, str]:
    expires_at = fields.get("expires_at")
    token, text = tokens.create("alice", {project: Role.VIEWER}, by=by, expires_at=expires_at)  # type: ignore[arg-type]
    return token.id, text


def test_a_token_is_random_and_stored_only_as_a_digest(tokens: Tokens, store: MemoryTokenStore) -> None:
    (first, text), (second, other) = make(tokens), make(tokens)
    assert first != second
    assert text.rpartition("_")[2] != other.rpartition("_")[2]
    assert all(text not in str(vars_of(row)) for row in store.rows.values())


def vars_of(row: object) -> dict[str, object]:
    return {name: getattr(row, name) for name in row.__slots__}  # type: ignore[attr-defined]  # a slotted dataclass


def test_a_token_identifies_its_caller(tokens: Tokens) -> None:
    token_id, text = make(tokens)
    assert tokens.verify(text) == Principal(name="alice", grants={"research": Role.VIEWER}, token_id=token_id)


@pytest.mark.parametrize("change", [lambda text: text[:-1] + "~", lambda text: text.swapcase(), lambda _: ""])
def test_a_changed_token_is_invalid(tokens: Tokens, change: object) -> None:
    _, text = make(tokens)
    assert tokens.verify(change(text)) is None  # type: ignore[operator]


def test_tokens_are_cached_for_seconds(tokens: Tokens, store: MemoryTokenStore, clock: HandClock) -> None:
    _, text = make(tokens)
    for _ in range(100):
        tokens.verify(text)
        tokens.verify("orc_0123456789abcdef_" + "x" * 43)
    assert store.asked == 2
    clock.advance(6)
    tokens.verify(text)
    assert store.asked == 3


def test_a_cached_token_expires_on_time(tokens: Tokens, clock: HandClock) -> None:
    _, text = make(tokens, expires_at=clock.now() + timedelta(seconds=2))
    assert tokens.verify(text) is not None
    clock.advance(2)
    assert tokens.verify(text) is None


def test_a_revoked_token_ends_here_at_once_and_elsewhere_in_seconds(
    tokens: Tokens, store: MemoryTokenStore, clock: HandClock
) -> None:
    elsewhere = Tokens(store, clock, monotonic=clock.monotonic)
    token_id, text = make(tokens)
    assert tokens.verify(text)
    assert elsewhere.verify(text)
    revoked = tokens.revoke(token_id, by=BOB)
    assert (revoked.revoked_by, tokens.verify(text)) == ("bob", None)
    clock.advance(5)
    assert elsewhere.verify(text) is None
    assert tokens.revoke(token_id, by=LOCAL).revoked_by == "bob", "the first revocation counts"


def test_an_admin_neither_lists_nor_revokes_tokens_of_other_projects(tokens: Tokens) -> None:
    mine, _ = make(tokens, by=BOB)
    foreign, _ = make(tokens, project="vision")
    assert [token.id for token in tokens.listed(BOB)] == [mine]
    with pytest.raises(NotFound):
        tokens.revoke(foreign, by=BOB)
    with pytest.raises(NotFound):
        tokens.revoke("unknown", by=LOCAL)
    with pytest.raises(Forbidden):
        make(tokens, by=BOB, project="vision")


@pytest.mark.parametrize("name", ["local", FIRST])
def test_a_token_cannot_take_the_name_of_the_services_own_callers(tokens: Tokens, name: str) -> None:
    with pytest.raises(InvalidSpec):
        tokens.create(name, {"research": Role.VIEWER}, by=LOCAL, expires_at=None)


def test_an_admin_cannot_use_a_token_name_of_other_projects(tokens: Tokens) -> None:
    make(tokens, project="vision")
    admin = Principal(name="eve", grants={"research": Role.ADMIN})
    with pytest.raises(InvalidSpec, match="used in other projects"):
        make(tokens, by=admin)
    make(tokens)
    tokens.create("bob", {"research": Role.VIEWER}, by=admin, expires_at=None)
    tokens.create("bob", {"research": Role.OPERATOR}, by=admin, expires_at=None)


def test_the_first_token_is_an_admins_and_is_not_stored(store: MemoryTokenStore, clock: HandClock) -> None:
    tokens = Tokens(store, clock, first="a token of the settings")
    found = tokens.verify("a token of the settings")
    assert found is not None
    assert (found.name, found.may_everywhere(Role.ADMIN), store.asked) == (FIRST, True, 0)
    assert tokens.verify("a token of the setting") is None
    assert tokens.any_admin()


def test_any_admin_needs_a_valid_admin_of_every_project(tokens: Tokens, clock: HandClock) -> None:
    assert not tokens.any_admin()
    tokens.create("a", {"research": Role.ADMIN}, by=LOCAL, expires_at=None)
    assert not tokens.any_admin()
    tokens.create("b", {"*": Role.ADMIN}, by=LOCAL, expires_at=clock.now() + timedelta(seconds=1))
    assert tokens.any_admin()
    clock.advance(1)
    assert not tokens.any_admin()


def test_a_session_ends_with_its_time_its_token_and_signing_out(tokens: Tokens, clock: HandClock) -> None:
    token_id, text = make(tokens)
    cookies = []
    for _ in range(3):
        opened = tokens.sign_in(text)
        assert opened is not None
        cookies.append(opened[0])
        assert opened[1].expires_at == clock.now() + SESSION_FOR
    assert len(set(cookies)) == 3
    assert tokens.verify_session(cookies[0]) == tokens.verify(text)
    tokens.sign_out(cookies[0])
    assert tokens.verify_session(cookies[0]) is None
    assert tokens.verify_session(cookies[1]) is not None
    tokens.revoke(token_id, by=LOCAL)
    assert tokens.verify_session(cookies[1]) is None
    assert tokens.sign_in(text) is None
    assert tokens.verify_session("forged") is None


def test_a_session_ends_after_twelve_hours(tokens: Tokens, clock: HandClock) -> None:
    opened = tokens.sign_in(make(tokens)[1])
    assert opened is not None
    clock.advance(SESSION_FOR.total_seconds() - 1)
    assert tokens.verify_session(opened[0]) is not None
    clock.advance(1)
    remembered = tokens.recall_session(opened[0])
    assert remembered is not None
    assert remembered.value is None
    assert tokens.verify_session(opened[0]) is None


def test_a_session_lives_no_longer_than_its_token(tokens: Tokens, clock: HandClock) -> None:
    ends = clock.now() + timedelta(minutes=5)
    opened = tokens.sign_in(make(tokens, expires_at=ends)[1])
    assert opened is not None
    assert opened[1].expires_at == ends


def test_a_new_first_token_ends_the_sessions_of_the_old_one(store: MemoryTokenStore, clock: HandClock) -> None:
    opened = Tokens(store, clock, first="the first of them").sign_in("the first of them")
    assert opened is not None
    assert Tokens(store, clock, first="the first of them").verify_session(opened[0]) is not None
    assert Tokens(store, clock, first="the second of them").verify_session(opened[0]) is None


def test_a_session_is_cached_for_seconds(tokens: Tokens, store: MemoryTokenStore) -> None:
    opened = tokens.sign_in(make(tokens)[1])
    assert opened is not None
    assert tokens.recall_session(opened[0]) is None
    tokens.verify_session(opened[0])
    asked = store.asked
    remembered = tokens.recall_session(opened[0])
    assert remembered is not None
    assert remembered.value is not None
    assert store.asked == asked


# The gate


def test_a_caller_without_credentials_is_the_machines_user_on_an_open_service(tokens: Tokens) -> None:
    assert Gate(tokens, is_open=True).identify(Credentials()) is LOCAL
    assert Gate(tokens, is_open=False).identify(Credentials()) is None


def test_an_open_service_refuses_an_invalid_token(tokens: Tokens) -> None:
    with pytest.raises(Unauthenticated):
        Gate(tokens, is_open=True).identify(Credentials(bearer="orc_wrong"))


def test_an_open_service_refuses_requests_through_a_proxy(tokens: Tokens) -> None:
    with pytest.raises(Unauthenticated, match="proxy"):
        Gate(tokens, is_open=True).identify(Credentials(forwarded=True))
    _, text = make(tokens)
    assert Gate(tokens, is_open=True).identify(Credentials(forwarded=True, bearer=text)) is not None


def test_an_ended_session_counts_as_no_credentials(tokens: Tokens) -> None:
    assert Gate(tokens, is_open=True).identify(Credentials(cookie="stale")) is LOCAL
    assert Gate(tokens, is_open=False).identify(Credentials(cookie="stale")) is None


def test_the_proxys_header_counts_only_from_the_proxys_address(tokens: Tokens) -> None:
    proxy = Proxy(
        header="X-User",
        peers=[ip_network("10.0.0.0/24")],
        grants={"*": Role.VIEWER},
        users={"alice": {"research": Role.ADMIN}},
    )
    gate = Gate(tokens, is_open=False, proxy=proxy)
    alice = gate.identify(Credentials(peer="10.0.0.7", user="alice"))
    assert alice == Principal(name="alice", grants={"*": Role.VIEWER, "research": Role.ADMIN})
    bob = gate.identify(Credentials(peer="::ffff:10.0.0.7", user="bob"))
    assert bob == Principal(name="bob", grants={"*": Role.VIEWER})
    for peer in ("10.0.1.7", "127.0.0.1", None, "unix", "::1"):
        assert gate.identify(Credentials(peer=peer, user="alice")) is None
    assert gate.identify(Credentials(peer="10.0.0.7", user="")) is None


def test_a_token_takes_precedence_over_the_proxys_header(tokens: Tokens) -> None:
    proxy = Proxy(header="X-User", peers=[ip_network("10.0.0.0/24")], grants={"*": Role.ADMIN})
    _, text = make(tokens)
    found = Gate(tokens, is_open=False, proxy=proxy).identify(Credentials(peer="10.0.0.7", user="root", bearer=text))
    assert found is not None
    assert found.name == "alice"


def test_a_full_cache_is_emptied(clock: HandClock) -> None:
    memory: ShortMemory[int] = ShortMemory(5, monotonic=clock.monotonic)
    for number in range(MOST):
        memory.keep(str(number), number)
    assert memory.recall("0") is not None
    memory.keep("one more", 1)
    assert memory.recall("0") is None
    assert memory.recall("one more") is not None
