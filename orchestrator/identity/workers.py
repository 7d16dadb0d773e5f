"""Check by the attempt's token that a report comes from its attempt."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence

from orchestrator.domain.errors import AttemptOver, Unauthenticated
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.job.worker_token import TokenFacts, is_genuine, is_over
from orchestrator.identity.short_memory import Remembered, ShortMemory
from orchestrator.ports.clock import Clock
from orchestrator.store.place_reader import PlaceReader

_KEEP_S = 5.0  # how late the end of an attempt may be noticed here
_KNOWN_S = 3600.0  # how long a token that was valid once is exempt from the limit on guesses
NOT_ITS_TOKEN = "a report needs the token of its attempt"


class Workers:
    """The first of `keys` makes tokens. Tokens of each key are accepted."""

    def __init__(
        self,
        reader: PlaceReader,
        clock: Clock,
        keys: Sequence[bytes],
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reader = reader
        self._clock = clock
        self._keys = tuple(keys)
        self._genuine: ShortMemory[None] = ShortMemory(_KNOWN_S, monotonic=monotonic)
        self._facts: ShortMemory[TokenFacts | None] = ShortMemory(_KEEP_S, monotonic=monotonic)

    def knows(self, token: str) -> bool:
        """Whether the token was valid lately. A hint before a report is read; `require` decides."""
        return self._genuine.recall(_digest(token)) is not None

    def recall(self, key: AttemptKey) -> Remembered[TokenFacts | None] | None:
        """Return the cached answer of `find`. None if the store has to be asked."""
        return self._facts.recall(str(key))

    def find(self, key: AttemptKey) -> Remembered[TokenFacts | None]:
        """Raises StoreUnavailable."""
        remembered = self.recall(key)
        return remembered or Remembered(self._facts.keep(str(key), self._reader.facts(key)))

    def require(self, token: str, key: AttemptKey, facts: TokenFacts | None) -> None:
        """Raises Unauthenticated unless this is the attempt's token."""
        if facts is None or not is_genuine(token, self._keys, key, facts.nonce):
            raise Unauthenticated(NOT_ITS_TOKEN)
        if not self.knows(token):
            self._genuine.keep(_digest(token), None)

    def require_not_over(self, key: AttemptKey, facts: TokenFacts | None) -> None:
        """Raises AttemptOver if the attempt has ended or does not exist."""
        if facts is None or is_over(facts, self._clock.now()):
            raise AttemptOver(f"attempt {key} has ended, so its token is no longer valid")


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode(errors="surrogatepass")).hexdigest()
