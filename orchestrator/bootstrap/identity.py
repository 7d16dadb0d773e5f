"""Build access control from the settings."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from orchestrator.api.deps import Identity
from orchestrator.api.edge import ANY_HOST, LOOPBACK_HOSTS
from orchestrator.domain.job.worker_token import derive_worker_key
from orchestrator.identity.gate import Gate, Proxy
from orchestrator.identity.job_places import JobPlaces
from orchestrator.identity.keys import keep_keys, parse_keys, read_keys
from orchestrator.identity.rate_limit import GUESSES_PER_S, RateLimit
from orchestrator.identity.stream_limit import StreamLimit
from orchestrator.identity.tokens import Tokens
from orchestrator.identity.vault import Vault
from orchestrator.identity.workers import Workers
from orchestrator.ports.clock import Clock
from orchestrator.settings import Settings
from orchestrator.store.engine import Database
from orchestrator.store.place_reader import PlaceReader
from orchestrator.store.secret_store import SecretStore
from orchestrator.store.token_store import TokenStore

_CALLER_PER_S = 100.0
_OPEN_PER_S = 2000.0  # more than a service can answer


def build_identity(
    settings: Settings,
    database: Database,
    clock: Clock,
    keys: Sequence[bytes],
    *,
    monotonic: Callable[[], float] = time.monotonic,
) -> Identity:
    """Build access control. `monotonic` measures the age of cached answers of the store."""
    first = None if settings.token is None else settings.token.get_secret_value()
    reader = PlaceReader(database)
    tokens, places = Tokens(TokenStore(database), clock, first=first, monotonic=monotonic), JobPlaces(reader)
    return Identity(
        gate=Gate(tokens, is_open=is_open(settings), proxy=_proxy(settings)),
        tokens=tokens,
        places=places,
        workers=Workers(reader, clock, [derive_worker_key(key) for key in keys], monotonic=monotonic),
        vault=Vault(SecretStore(database), places, clock, keys, monotonic=monotonic),
        stream_limit=StreamLimit(settings.streams_per_caller),
        rate_limit=RateLimit(
            settings.requests_per_s or (_OPEN_PER_S if is_open(settings) else _CALLER_PER_S), monotonic=monotonic
        ),
        guess_limit=RateLimit(GUESSES_PER_S, monotonic=monotonic),
    )


def is_open(settings: Settings) -> bool:
    """Whether the service listens on loopback only and requires no sign-in."""
    asked_for = settings.require_token or settings.token is not None or settings.proxy is not None
    return settings.host in LOOPBACK_HOSTS and not asked_for


def hosts_of(settings: Settings) -> tuple[str, ...]:
    """Return the host names that requests may use. A service with tokens accepts any, unless `allowed_hosts` is set."""
    urls = [url for url in (settings.url, settings.advertise_url) if url is not None]
    named = tuple(host for url in urls if (host := urlsplit(url).hostname) is not None)
    any_host = () if is_open(settings) or settings.allowed_hosts else (ANY_HOST,)
    return (settings.host, *settings.allowed_hosts, *named, *any_host)


def keys_of(settings: Settings) -> tuple[bytes, ...]:
    """Raises ConfigurationError."""
    if settings.secret_keys is not None:
        return parse_keys(settings.secret_keys.get_secret_value(), "variable ORCHESTRATOR_SECRET_KEYS")
    if settings.secret_key_file is not None:
        return read_keys(settings.secret_key_file.expanduser())
    return keep_keys(settings.root / "secret.key")


def _proxy(settings: Settings) -> Proxy | None:
    given = settings.proxy
    if given is None:
        return None
    return Proxy(header=given.header, peers=given.peers, grants=given.grants, users=given.users)
