"""The token with which an attempt's agents report. Pure.

The token is an HMAC over the attempt and its nonce, so a repeated submission has the same token. Its holder can report
for that attempt and do nothing else. It expires soon after the attempt ends.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from orchestrator.domain.job.attempt import AttemptKey

_SHAPE = re.compile(r"orw_[0-9a-f]{64}", re.ASCII)
LATE = timedelta(seconds=60)  # after the end of an attempt, for its last reports


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFacts:
    """The facts of an attempt that its token depends on."""

    nonce: str
    ended_at: datetime | None


def derive_worker_key(key: bytes) -> bytes:
    """Derive the key of worker tokens from a service's key, so that it reveals nothing about other uses of that key."""
    return hmac.new(key, b"orchestrator worker tokens", hashlib.sha256).digest()


def issue_worker_token(worker_key: bytes, key: AttemptKey, nonce: str) -> str:
    message = f"{key.job_id}\0{key.number}\0{nonce}".encode()
    return "orw_" + hmac.new(worker_key, message, hashlib.sha256).hexdigest()


def looks_like_worker_token(token: str) -> bool:
    """Whether the text has the form of a worker token. Does not verify it."""
    return _SHAPE.fullmatch(token) is not None


def is_genuine(token: str, worker_keys: Sequence[bytes], key: AttemptKey, nonce: str) -> bool:
    """Whether one of the keys made the token for this attempt. Tries every key, in constant time."""
    given = token.encode(errors="surrogatepass")
    fits = [hmac.compare_digest(given, issue_worker_token(one, key, nonce).encode()) for one in worker_keys]
    return any(fits)


def is_over(facts: TokenFacts, now: datetime) -> bool:
    """Whether the attempt's token has expired."""
    return facts.ended_at is not None and now >= facts.ended_at + LATE
