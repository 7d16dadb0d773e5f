"""The token with which an attempt's agents report. It is computed: a repeated submission has the same one. Pure.

It is an HMAC over the attempt and its nonce. Whoever holds it can report for that attempt and do nothing else; it ends
with the attempt.
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
LATE = timedelta(seconds=60)  # after an attempt's end: what its agents had to say last may still be on its way


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStay:
    """What an attempt's token depends on."""

    nonce: str
    ended_at: datetime | None


def derive_worker_key(key: bytes) -> bytes:
    """The key of worker tokens below a service's key, so that neither says anything of other uses."""
    return hmac.new(key, b"orchestrator worker tokens", hashlib.sha256).digest()


def issue_worker_token(worker_key: bytes, key: AttemptKey, nonce: str) -> str:
    message = f"{key.job_id}\0{key.number}\0{nonce}".encode()
    return "orw_" + hmac.new(worker_key, message, hashlib.sha256).hexdigest()


def looks_like_worker_token(token: str) -> bool:
    """Whether it has the form of a worker's token. Asks neither keys nor the store."""
    return _SHAPE.fullmatch(token) is not None


def is_genuine(token: str, worker_keys: Sequence[bytes], key: AttemptKey, nonce: str) -> bool:
    """Whether one of the keys has made it for this very attempt; every key is tried, in constant time."""
    given = token.encode(errors="surrogatepass")
    fits = [hmac.compare_digest(given, issue_worker_token(one, key, nonce).encode()) for one in worker_keys]
    return any(fits)


def is_over(stay: AttemptStay, now: datetime) -> bool:
    """Whether its token has ended with it."""
    return stay.ended_at is not None and now >= stay.ended_at + LATE
