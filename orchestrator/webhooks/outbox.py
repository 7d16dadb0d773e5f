"""The outbox: sends the stored messages of webhooks, at least once, signed as standardwebhooks.com says.

Each webhook has a thread, so that a slow receiver does not delay others. A message is claimed in one transaction, sent
outside of any, and settled in another. After a crash between sending and settling it is sent again with the same id.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import httpx
import structlog

from orchestrator.domain.access.url_policy import why_inside
from orchestrator.domain.access.webhook import GIVEN_UP_AFTER_S, Webhook, retry_in_s, sign
from orchestrator.domain.errors import Unavailable
from orchestrator.store.outbox_store import OutboxStore
from orchestrator.store.records import Delivery
from orchestrator.telemetry.metrics import Metrics
from trainer.contract.clock import render_time

log = structlog.get_logger()

_AT_ONCE = 16  # concurrent messages to one webhook, each of another job
_HOLD_S = 20.0  # how long a claim holds: twice the longest time to send
_SWEEP_EVERY_S = 3600.0
_STOP_S = 3.0  # how long a stop waits for messages in flight


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a webhook's messages go. Neither the key nor the URL, which may contain one too, is ever shown.

    `inside` has the names and private networks to which the webhook may lead. None means anywhere, because only an
    administrator of the machine writes the settings.
    """

    webhook: Webhook
    url: str = field(repr=False)
    key: bytes = field(repr=False)
    inside: tuple[str, ...] | None = None


class Outbox:
    """The threads that send. Any number of services may run an outbox on the same database."""

    def __init__(
        self,
        store: OutboxStore,
        endpoints: Sequence[Endpoint],
        metrics: Metrics,
        *,
        poll_s: float = 1.0,
        timeout_s: float = 10.0,
        made: Callable[[], Sequence[Endpoint]] | None = None,
        look_every_s: float = 3.0,
    ) -> None:
        """`made` returns the webhooks that were created by request. It is called every few seconds."""
        self._store = store
        self._closing = threading.Event()
        self._metrics, self._poll_s, self._timeout_s = metrics, poll_s, timeout_s
        self._made, self._look_every_s = made, look_every_s
        self._ends: dict[str, tuple[Endpoint, threading.Event]] = {}  # the events that stop the threads of `made`
        self._threads = [self._courier_thread(endpoint, self._closing) for endpoint in endpoints]
        if made is not None:
            self._threads.append(threading.Thread(target=self._watch_created, name="webhooks-made", daemon=True))
        if self._threads:
            self._threads.append(threading.Thread(target=self._sweep, name="webhooks-sweep", daemon=True))

    def start(self) -> None:
        for thread in [*self._threads]:
            thread.start()

    def stop(self) -> None:
        """Stop the threads. Messages in flight may or may not arrive. Undelivered ones stay in the outbox."""
        self._closing.set()
        until = time.monotonic() + _STOP_S
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout=max(0.0, until - time.monotonic()))

    def _courier_thread(self, endpoint: Endpoint, end: threading.Event) -> threading.Thread:
        courier = Courier(self._store, endpoint, self._metrics, timeout_s=self._timeout_s)
        return threading.Thread(target=self._carry, args=(courier, end), name=f"webhook-{courier.name}", daemon=True)

    def _carry(self, courier: Courier, end: threading.Event) -> None:
        while not end.is_set() and not self._closing.is_set():
            if not _attempt(courier.carry, f"webhook {courier.name}"):
                end.wait(self._poll_s)

    def _watch_created(self) -> None:
        """Start threads for new webhooks, and stop those of webhooks that were removed or changed."""
        while not self._closing.is_set():
            _attempt(self._update_threads, "search for webhooks")
            self._closing.wait(self._look_every_s)
        for _, end in self._ends.values():
            end.set()

    def _update_threads(self) -> int:
        found = {} if self._made is None else {endpoint.webhook.name: endpoint for endpoint in self._made()}
        for name, (endpoint, end) in list(self._ends.items()):
            if found.get(name) != endpoint:
                end.set()
                del self._ends[name]
        for name, endpoint in found.items():
            if name not in self._ends:
                end = threading.Event()
                self._ends[name] = (endpoint, end)
                self._courier_thread(endpoint, end).start()
        return len(found)

    def _sweep(self) -> None:
        while not self._closing.is_set():
            _attempt(lambda: self._store.sweep(owed_s=2 * GIVEN_UP_AFTER_S), "sweep of webhooks")
            self._closing.wait(_SWEEP_EVERY_S)


class Courier:
    """Sends the messages of one webhook."""

    def __init__(
        self,
        store: OutboxStore,
        endpoint: Endpoint,
        metrics: Metrics,
        *,
        timeout_s: float = 10.0,
        now: Callable[[], float] = time.time,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.name = endpoint.webhook.name
        self._store = store
        self._endpoint = endpoint
        self._metrics = metrics
        self._timeout_s = timeout_s
        self._now = now
        self._draw = draw
        self._trust = ssl.create_default_context() if endpoint.url.startswith("https:") else False

    def carry(self) -> int:
        """Try each due message once. Returns how many were tried. Raises StoreUnavailable."""
        self._metrics.webhook_oldest_due_s.labels(self.name).set(self._store.oldest_due_s(self.name) or 0.0)
        claimed = self._store.claim(self.name, limit=_AT_ONCE, hold_s=_HOLD_S)
        if claimed:
            for delivery, error in zip(claimed, asyncio.run(self._send(claimed)), strict=True):
                self._settle(delivery, error)
        return len(claimed)

    async def _send(self, deliveries: Sequence[Delivery]) -> list[str | None]:
        # A proxy would resolve the name itself and could find another address.
        trust_env = self._endpoint.inside is None
        async with httpx.AsyncClient(
            verify=self._trust, timeout=self._timeout_s, follow_redirects=False, trust_env=trust_env
        ) as client:
            return await asyncio.gather(*(self._post(client, delivery) for delivery in deliveries))

    async def _post(self, client: httpx.AsyncClient, delivery: Delivery) -> str | None:
        """Send a message. Returns why it did not arrive, or None.

        The timeout covers the whole exchange, because a receiver may also answer byte by byte.
        """
        body, timestamp = render_message(delivery), int(self._now())
        headers = {
            "content-type": "application/json",
            "user-agent": "orchestrator-webhooks",
            "webhook-id": delivery.message_id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": sign(self._endpoint.key, delivery.message_id, timestamp, body),
        }
        try:
            async with asyncio.timeout(self._timeout_s):
                url, extensions = await _pinned(self._endpoint)
                sent = {**headers, "host": httpx.URL(self._endpoint.url).netloc.decode()}
                async with client.stream("POST", url, content=body, headers=sent, extensions=extensions) as answer:
                    return None if answer.is_success else f"the receiver answered {answer.status_code}"
        except _Inside as error:
            return str(error)
        except (TimeoutError, httpx.TimeoutException):
            return f"no answer within {self._timeout_s:g} s"
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            return f"{type(error).__name__}: {error}".replace(self._endpoint.url, "its URL")

    def _settle(self, delivery: Delivery, error: str | None) -> None:
        if error is None:
            self._store.delivered(delivery)
            self._metrics.webhook_deliveries.labels(self.name, "delivered").inc()
            return
        pause_s = retry_in_s(delivery.tries, delivery.age_s, self._draw())
        self._store.failed(delivery, error, retry_in_s=pause_s)
        outcome = "given_up" if pause_s is None else "failed"
        self._metrics.webhook_deliveries.labels(self.name, outcome).inc()
        if pause_s is None or delivery.tries == 1:
            log.warning(
                "webhook message given up" if pause_s is None else "webhook message failed, will be retried",
                webhook=self.name,
                message=delivery.message_id,
                job=delivery.event.job_id,
                tries=delivery.tries,
                reason=error,
            )


class _Inside(Exception):
    """The receiver's name resolves to an address in a private network."""


async def _pinned(endpoint: Endpoint) -> tuple[httpx.URL, dict[str, str]]:
    """Return the URL with a checked address in place of its host name. Raises _Inside, OSError."""
    url = httpx.URL(endpoint.url)
    if endpoint.inside is None:
        return url, {}
    name = url.raw_host.decode("ascii")
    found = await asyncio.get_running_loop().getaddrinfo(name, url.port or 0, type=socket.SOCK_STREAM)
    addresses = [str(address[0]) for *_, address in found]
    reason = why_inside(name, addresses, endpoint.inside)
    if reason is not None:
        raise _Inside(reason)
    return url.copy_with(host=addresses[0]), {"sni_hostname": name}  # the certificate must still match the name


def render_message(delivery: Delivery) -> bytes:
    """Return the body of a message, the same at every try."""
    event = delivery.event.event
    document = {
        "id": delivery.message_id,
        "type": event.kind,
        "timestamp": render_time(event.at),
        "data": {
            "job": dict(delivery.job),
            "event": {
                "id": delivery.event.id,
                "at": render_time(event.at),
                "kind": event.kind,
                "sentence": event.sentence,
                "attempt": event.attempt,
                "generation": event.generation,
                "evidence": event.evidence,
            },
        },
    }
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def _attempt(work: Callable[[], int], what: str) -> int:
    """Run a thread's work once. Logs every error, so that the thread continues."""
    try:
        return work()
    except Unavailable as error:
        log.warning(f"{what} is delayed", reason=str(error))
    except Exception:
        log.exception(f"{what} failed")
    return 0
