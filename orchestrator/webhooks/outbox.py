"""The outbox: sends what webhooks are owed, at least once, signed as standardwebhooks.com says.

One thread for each webhook, so that a slow receiver delays nobody else. A message is claimed in one transaction, sent
outside of any, and settled in another one: a crash between sending and settling sends it again, under the same id.
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

_AT_ONCE = 16  # messages on their way to one webhook at a time, each of another job
_HOLD_S = 20.0  # of a claim: twice what sending takes at most
_SWEEP_EVERY_S = 3600.0
_LAST_WORDS_S = 3.0  # for what is on its way when the service stops


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a webhook's messages go. Neither the key nor the URL, which may hold one too, is ever shown.

    `inside`: the names and networks behind the service's walls that it may lead to; None: anywhere, for it stands in
    the settings, which are an admin's of the machine.
    """

    webhook: Webhook
    url: str = field(repr=False)
    key: bytes = field(repr=False)
    inside: tuple[str, ...] | None = None


class Outbox:
    """Threads that send. Any number of services may run one on the same database."""

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
        """`made`: those that come and go while the service runs, looked up every few seconds."""
        self._store = store
        self._closing = threading.Event()
        self._metrics, self._poll_s, self._timeout_s = metrics, poll_s, timeout_s
        self._made, self._look_every_s = made, look_every_s
        self._ends: dict[str, tuple[Endpoint, threading.Event]] = {}  # of those of `made` that are carried
        self._threads = [self._courier_thread(endpoint, self._closing) for endpoint in endpoints]
        if made is not None:
            self._threads.append(threading.Thread(target=self._tend, name="webhooks-made", daemon=True))
        if self._threads:
            self._threads.append(threading.Thread(target=self._sweep, name="webhooks-sweep", daemon=True))

    def start(self) -> None:
        for thread in [*self._threads]:
            thread.start()

    def stop(self) -> None:
        """What is on its way may arrive or not; what is owed stays owed."""
        self._closing.set()
        until = time.monotonic() + _LAST_WORDS_S
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

    def _tend(self) -> None:
        """Begin to carry for those that have come, and end it for those that have gone or lead elsewhere now."""
        while not self._closing.is_set():
            _attempt(self._look, "look for webhooks")
            self._closing.wait(self._look_every_s)
        for _, end in self._ends.values():
            end.set()

    def _look(self) -> int:
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
    """Carries the messages of one webhook."""

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
        """Send what is due, once each; returns how many were sent or tried. Raises StoreUnavailable."""
        self._metrics.webhook_oldest_due_s.labels(self.name).set(self._store.oldest_due_s(self.name) or 0.0)
        claimed = self._store.claim(self.name, limit=_AT_ONCE, hold_s=_HOLD_S)
        if claimed:
            for delivery, error in zip(claimed, asyncio.run(self._send(claimed)), strict=True):
                self._settle(delivery, error)
        return len(claimed)

    async def _send(self, deliveries: Sequence[Delivery]) -> list[str | None]:
        trust_env = self._endpoint.inside is None  # a proxy would look up the name, and not be bound to what we found
        async with httpx.AsyncClient(
            verify=self._trust, timeout=self._timeout_s, follow_redirects=False, trust_env=trust_env
        ) as client:
            return await asyncio.gather(*(self._post(client, delivery) for delivery in deliveries))

    async def _post(self, client: httpx.AsyncClient, delivery: Delivery) -> str | None:
        """None, or why it did not arrive. The time-out is of the whole: a receiver that drips is slow as well."""
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
                    return None if answer.is_success else f"it answered {answer.status_code}"
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
                "webhook given up" if pause_s is None else "webhook failed, is tried again",
                webhook=self.name,
                message=delivery.message_id,
                job=delivery.event.job_id,
                tries=delivery.tries,
                reason=error,
            )


class _Inside(Exception):
    """The receiver's name leads behind the service's walls."""


async def _pinned(endpoint: Endpoint) -> tuple[httpx.URL, dict[str, str]]:
    """The URL with an address that was looked at in the place of its name. Raises _Inside, OSError."""
    url = httpx.URL(endpoint.url)
    if endpoint.inside is None:
        return url, {}
    name = url.raw_host.decode("ascii")
    found = await asyncio.get_running_loop().getaddrinfo(name, url.port or 0, type=socket.SOCK_STREAM)
    addresses = [str(address[0]) for *_, address in found]
    reason = why_inside(name, addresses, endpoint.inside)
    if reason is not None:
        raise _Inside(reason)
    return url.copy_with(host=addresses[0]), {"sni_hostname": name}  # the certificate is still the name's


def render_message(delivery: Delivery) -> bytes:
    """The body: the same at every try."""
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
    """A thread's edge: no trouble ends it."""
    try:
        return work()
    except Unavailable as error:
        log.warning(f"{what} has to wait", reason=str(error))
    except Exception:
        log.exception(f"{what} failed")
    return 0
