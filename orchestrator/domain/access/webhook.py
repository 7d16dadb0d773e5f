"""Webhooks: which ones receive an event, the signature of a message, and its retries. Pure."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

SECRET_PREFIX = "whsec_"  # standardwebhooks.com: the key follows in base64
_MIN_KEY_BYTES = 16
_FIRST_RETRY_S = 5.0
_LONGEST_PAUSE_S = 6 * 3600.0
_JITTER = 0.25  # share of a pause
GIVEN_UP_AFTER_S = 3 * 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """A subscription under a name that a job's `notify` may use. `events` are shell patterns."""

    name: str
    events: tuple[str, ...] = ("job.state",)
    all_jobs: bool = False  # it receives events of jobs that do not name it too

    def wants(self, kind: str) -> bool:
        return any(fnmatchcase(kind, pattern) for pattern in self.events)


def webhooks_for(kind: str, notify: Collection[str], configured: Iterable[Webhook]) -> list[str]:
    """Return the names of the webhooks that receive an event of this kind, for a job with this `notify`."""
    return [hook.name for hook in configured if hook.wants(kind) and (hook.all_jobs or hook.name in notify)]


def why_no_endpoint(url: str) -> str | None:
    """Return why a URL cannot be a webhook's, as a phrase. None if it can."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  # raises ValueError for one that is no number
    except ValueError as error:
        return f"is not a URL: {error}"
    if parts.scheme not in ("http", "https") or not parts.hostname or any(char.isspace() for char in url):
        return "must be an http or https URL"
    if "@" in parts.netloc:
        return "must not contain a user and password: messages are signed"
    return None


def parse_key(secret: str) -> bytes:
    """Return the key of a secret: the base64 after `whsec_`, or else the text itself. Raises ValueError."""
    if secret.startswith(SECRET_PREFIX):
        try:
            key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
        except binascii.Error as error:
            raise ValueError(f"the text after {SECRET_PREFIX} is not base64") from error
    else:
        key = secret.encode()
    if len(key) < _MIN_KEY_BYTES:
        raise ValueError(f"the secret has {len(key)} bytes, fewer than {_MIN_KEY_BYTES}")
    return key


def sign(key: bytes, message_id: str, timestamp: int, body: bytes) -> str:
    """Return the header `webhook-signature` (Standard Webhooks 1.0, symmetric)."""
    content = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()


def retry_in_s(tries: int, age_s: float, draw: float) -> float | None:
    """Return the pause after failure number `tries` of a message of this age. None: give up. `draw` is in [0, 1)."""
    growing = _FIRST_RETRY_S * 2.0 ** min(tries - 1, 60)
    pause = min(growing, _LONGEST_PAUSE_S / (1 + _JITTER)) * (1 + _JITTER * draw)
    return None if age_s + pause > GIVEN_UP_AFTER_S else pause
