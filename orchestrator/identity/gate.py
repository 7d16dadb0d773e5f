"""Authenticate a request: from its credentials to the caller. Permissions are checked elsewhere."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.domain.access.identity import LOCAL, Principal, Role
from orchestrator.domain.errors import Unauthenticated
from orchestrator.identity.short_memory import Remembered
from orchestrator.identity.tokens import Tokens

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_NOT_VALID = "the token is unknown, has expired or was revoked"
_FORWARDED = (
    "the request came through a proxy, and without tokens this service trusts only callers on its own machine; "
    "set ORCHESTRATOR_TOKEN, or name the proxy in [proxy]"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """The credentials of a request. `peer` is the client's address, `user` the value of the proxy's header."""

    peer: str | None = None
    bearer: str | None = field(default=None, repr=False)
    cookie: str | None = field(default=None, repr=False)
    user: str | None = None
    forwarded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    """A proxy that authenticates people. Its header counts only in requests from the addresses `peers`."""

    header: str
    peers: Sequence[Network]
    grants: Mapping[str, Role] = field(default_factory=dict)  # the roles of every user
    users: Mapping[str, Mapping[str, Role]] = field(default_factory=dict)  # additional roles, by user

    def trusts(self, peer: str | None) -> bool:
        try:
            address = ipaddress.ip_address(peer or "")
        except ValueError:
            return False
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self.peers)

    def principal(self, user: str) -> Principal:
        return Principal(name=user, grants={**self.grants, **self.users.get(user, {})})


class Gate:
    """With `is_open`, a caller without a token counts as this machine's user. Only for a loopback address."""

    def __init__(self, tokens: Tokens, *, is_open: bool, proxy: Proxy | None = None) -> None:
        self._tokens = tokens
        self._proxy = proxy
        self.is_open = is_open

    @property
    def proxy_header(self) -> str | None:
        return None if self._proxy is None else self._proxy.header

    def recall(self, given: Credentials) -> Remembered[Principal | None] | None:
        """Return the cached answer of `identify`. None if the store has to be asked. Raises Unauthenticated."""
        if given.bearer is not None:
            known = self._tokens.recall(given.bearer)
            return None if known is None else Remembered(_valid(known.value))
        if given.cookie is not None:
            session = self._tokens.recall_session(given.cookie)
            return (
                session
                if session is None or session.value is not None
                else Remembered(self._identify_without_token(given))
            )
        return Remembered(self._identify_without_token(given))

    def identify(self, given: Credentials) -> Principal | None:
        """Return the caller. None if the request has no valid credentials.

        Raises Unauthenticated for an invalid token: a caller that sends one expects to be known. Raises
        StoreUnavailable.
        """
        if given.bearer is not None:
            return _valid(self._tokens.verify(given.bearer))
        found = None if given.cookie is None else self._tokens.verify_session(given.cookie)
        return found or self._identify_without_token(given)

    def _identify_without_token(self, given: Credentials) -> Principal | None:
        """Return the caller of a request with neither a token nor a valid session."""
        if self._proxy is not None and given.user and self._proxy.trusts(given.peer):
            return self._proxy.principal(given.user)
        if not self.is_open:
            return None
        if given.forwarded:
            raise Unauthenticated(_FORWARDED)
        return LOCAL


def _valid(principal: Principal | None) -> Principal:
    if principal is None:
        raise Unauthenticated(_NOT_VALID)
    return principal
