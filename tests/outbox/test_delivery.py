"""Delivery of messages to good and bad receivers."""

from __future__ import annotations

import asyncio
import base64
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from orchestrator.domain.access.webhook import Webhook
from orchestrator.domain.errors import StoreUnavailable
from orchestrator.store.records import Delivery
from orchestrator.telemetry.metrics import Metrics
from orchestrator.webhooks.outbox import Courier, Endpoint, Outbox
from tests.builders import NOW, make_event
from tests.outbox.receiver import Received, Receiver
from tests.outbox.world import World
from trainer.contract.clock import render_time

KEY = b"0123456789abcdef-secret"


class Post:
    """A courier of the webhook `audit`, with its metrics."""

    def __init__(self, world: World, url: str, *, timeout_s: float = 10.0, name: str = "audit") -> None:
        self.metrics = Metrics()
        self.endpoint = Endpoint(webhook=Webhook(name=name), url=url, key=KEY)
        self.courier = Courier(
            world.outbox, self.endpoint, self.metrics, timeout_s=timeout_s, now=lambda: 1614265330.7, draw=lambda: 0.0
        )

    def count(self, outcome: str) -> float:
        line = f'orchestrator_webhook_deliveries_total{{outcome="{outcome}",webhook="audit"}} '
        text = self.metrics.render(None).decode()
        return next((float(found.removeprefix(line)) for found in text.splitlines() if found.startswith(line)), 0.0)


@pytest.fixture
def post(world: World, receiver: Receiver) -> Post:
    return Post(world, receiver.url)


def _openssl_hmac(content: bytes) -> str:
    """An independent implementation."""
    command = ["openssl", "dgst", "-sha256", "-mac", "HMAC", "-macopt", f"hexkey:{KEY.hex()}", "-binary"]
    done = subprocess.run(command, input=content, capture_output=True, check=True)
    return base64.b64encode(done.stdout).decode()


def _signature_of(message: Received) -> str:
    timestamp = message.headers["webhook-timestamp"]
    return "v1," + _openssl_hmac(f"{message.id}.{timestamp}.".encode() + message.body)


def test_a_message_says_what_happened_and_is_signed(world: World, receiver: Receiver, post: Post) -> None:
    world.submit()
    (owed,) = world.rows()
    assert post.courier.carry() == 1
    (message,) = receiver.received
    assert message.headers["webhook-signature"] == _signature_of(message)
    assert message.headers["webhook-timestamp"] == "1614265330"
    assert message.headers["content-type"] == "application/json"
    assert message.id == owed.message_id == message.document["id"]
    assert (message.document["type"], message.document["timestamp"]) == ("job.submitted", render_time(NOW))
    job, event = message.document["data"]["job"], message.document["data"]["event"]
    assert job == {"id": "job-1", "name": "demo", "project": "default", "cluster": "local"}
    assert (event["sentence"], event["kind"], event["evidence"]) == ("job-1 came", "job.submitted", {})
    (row,) = world.rows()
    assert (row.due_at, row.delivered_at is None, row.tries) == (None, False, 1)
    assert post.courier.carry() == 0
    assert post.count("delivered") == 1


def test_failed_messages_are_retried_in_order_with_the_same_id(world: World, receiver: Receiver, post: Post) -> None:
    receiver.moods = ["500", "503", "410", "404"]
    world.submit()
    world.happen("second", "third")
    for _ in range(20):
        while post.courier.carry():
            pass
        world.pass_time(41)
    assert [message.sentence for message in receiver.received] == ["job-1 came"] * 5 + ["second", "third"]
    assert len({message.id for message in receiver.received[:5]}) == 1
    assert len({message.body for message in receiver.received[:5]}) == 1
    assert len({message.id for message in receiver.received}) == 3
    assert all(message.headers["webhook-signature"] == _signature_of(message) for message in receiver.received)
    assert (post.count("failed"), post.count("delivered")) == (4, 3)


@pytest.mark.parametrize(
    ("mood", "why"),
    [
        ("silent", "no answer within 0.3 s"),
        ("drips", "no answer within 0.3 s"),
        ("dies", "RemoteProtocolError"),
        ("302", "the receiver answered 302"),
        ("410", "the receiver answered 410"),
    ],
)
def test_a_failed_try_is_counted_and_its_reason_stored(world: World, receiver: Receiver, mood: str, why: str) -> None:
    post = Post(world, receiver.url, timeout_s=0.3)
    receiver.moods = [mood]
    world.submit()
    assert post.courier.carry() == 1
    (row,) = world.rows()
    assert why in str(row.last_error)
    assert row.due_at is not None
    world.pass_time(6)
    assert post.courier.carry() == 1
    assert [message.path for message in receiver.received] == ["/hook/a-token-in-the-path"] * 2
    assert world.rows()[0].delivered_at is not None


def made(receiver: Receiver, *inside: str, host: str = "localhost") -> Endpoint:
    """An endpoint as a caller of the API creates it, which leads to the receiver."""
    url = receiver.url.replace("127.0.0.1", host)
    return Endpoint(webhook=Webhook(name="audit"), url=url, key=KEY, inside=inside)


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that name resolution returns, one per call."""
    answers: list[str] = []

    async def resolve(loop: object, host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (answers.pop(0), port))]

    monkeypatch.setattr(asyncio.base_events.BaseEventLoop, "getaddrinfo", resolve)
    return answers


@pytest.mark.parametrize("address", ["127.0.0.1", "64:ff9b::7f00:1"])
def test_a_name_with_a_private_address_is_not_connected_to(
    world: World, receiver: Receiver, resolver: list[str], address: str
) -> None:
    resolver.append(address)
    courier = Courier(world.outbox, made(receiver, host="hook.example"), Metrics())
    world.submit()
    assert courier.carry() == 1
    (row,) = world.rows()
    assert f"hook.example has the private address {address}" in str(row.last_error)
    assert receiver.received == []


@pytest.mark.parametrize("inside", ["hook.example", "127.0.0.0/8", "127.0.0.1"])
def test_an_allowed_name_is_connected_to_by_its_checked_address(
    world: World, receiver: Receiver, resolver: list[str], inside: str
) -> None:
    resolver.append("127.0.0.1")  # one answer only: the name must not be resolved again
    courier = Courier(world.outbox, made(receiver, inside, host="hook.example"), Metrics())
    world.submit()
    assert courier.carry() == 1
    assert world.rows()[0].delivered_at is not None
    assert receiver.received[0].headers["host"].startswith("hook.example:")


@pytest.mark.parametrize("from_settings", [True, False])
def test_only_webhooks_of_the_settings_use_the_proxy(
    world: World, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, from_settings: bool
) -> None:
    """A proxy would resolve the name itself, to an address that was not checked."""
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with Receiver() as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.removesuffix("/hook/a-token-in-the-path"))
        endpoint = made(receiver, "127.0.0.1", host="127.0.0.1")
        courier = Courier(world.outbox, replace(endpoint, inside=None) if from_settings else endpoint, Metrics())
        world.submit()
        assert courier.carry() == 1
        assert (len(proxy.received), len(receiver.received)) == ((1, 0) if from_settings else (0, 1))


def test_a_connection_error_shows_neither_key_nor_url(world: World, receiver: Receiver) -> None:
    post = Post(world, "http://127.0.0.1:1/hook/a-token-in-the-path")
    world.submit()
    with capture_logs() as lines:
        post.courier.carry()
    (row,) = world.rows()
    assert "ConnectError" in str(row.last_error)
    shown = f"{lines} {row.last_error} {post.endpoint!r} {post.metrics.render(None)!r}"
    assert "webhook message failed, will be retried" in shown
    assert "a-token" not in shown
    assert KEY.decode() not in shown


def test_a_message_is_sent_again_after_a_crash_with_the_same_id(
    world: World, receiver: Receiver, post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.submit()

    def crash(_: Delivery) -> None:
        raise StoreUnavailable("the database is gone")

    with monkeypatch.context() as patched:
        patched.setattr(world.outbox, "delivered", crash)
        with pytest.raises(StoreUnavailable):
            post.courier.carry()
    assert post.courier.carry() == 0
    world.pass_time(61)
    assert post.courier.carry() == 1
    first, second = receiver.received
    assert (first.id, first.body) == (second.id, second.body)


@pytest.mark.long
def test_a_message_is_given_up_after_three_days(world: World, receiver: Receiver, post: Post) -> None:
    receiver.moods = ["500"] * 100
    world.submit()
    tries = 0
    with capture_logs() as lines:
        while world.rows()[0].due_at is not None and tries < 100:
            tries += post.courier.carry()
            world.pass_time(600)
    (row,) = world.rows()
    assert (row.due_at, row.delivered_at, row.last_error) == (None, None, "the receiver answered 500")
    assert 15 < row.tries < 40
    assert (post.count("given_up"), post.count("failed")) == (1, row.tries - 1)
    assert [line["event"] for line in lines] == ["webhook message failed, will be retried", "webhook message given up"]


def test_messages_of_sixteen_jobs_are_sent_concurrently(world: World, receiver: Receiver) -> None:
    post = Post(world, receiver.url, timeout_s=600)
    receiver.moods = ["silent"] * 16
    for number in range(20):
        world.submit(f"job-{number}")
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(post.courier.carry)
        try:
            receiver.wait(16)
        finally:
            receiver.let_go.set()
        assert sent.result() == 16
    assert post.courier.carry() == 4


@pytest.fixture
def run_outbox(world: World) -> Iterator[Callable[..., Outbox]]:
    running: list[Outbox] = []

    def start(*endpoints: Endpoint) -> Outbox:
        running.append(Outbox(world.outbox, endpoints, Metrics(), poll_s=0.02, timeout_s=600))
        running[-1].start()
        return running[-1]

    yield start
    for outbox in running:
        outbox.stop()


def test_two_services_send_each_message_once(
    world: World, receiver: Receiver, run_outbox: Callable[..., Outbox]
) -> None:
    endpoint = Endpoint(webhook=Webhook(name="audit"), url=receiver.url, key=KEY)
    outboxes = [run_outbox(endpoint) for _ in range(2)]
    for number in range(10):
        world.submit(f"job-{number}")
        world.happen("a", "b", job_id=f"job-{number}")
    receiver.wait(30)
    for outbox in outboxes:
        outbox.stop()
    assert len(receiver.received) == len({message.id for message in receiver.received}) == 30
    for number in range(10):
        mine = [one.sentence for one in receiver.received if one.document["data"]["job"]["id"] == f"job-{number}"]
        assert mine == [f"job-{number} came", "a", "b"]


def test_a_silent_receiver_delays_no_other_webhook(
    world: World, receiver: Receiver, run_outbox: Callable[..., Outbox]
) -> None:
    with Receiver("silent") as silent:
        run_outbox(
            Endpoint(webhook=Webhook(name="audit"), url=silent.url, key=KEY),
            Endpoint(webhook=Webhook(name="pager"), url=receiver.url, key=KEY),
        )
        world.submit(notify=["pager"])
        silent.wait(1)
        world.happen("runs")
        receiver.wait(1)  # fails after 30 s; the timeout of the silent receiver is 600 s


def test_webhooks_may_change_while_the_outbox_runs(world: World, receiver: Receiver) -> None:
    with Receiver() as other:
        places = {"first": receiver.url}
        looked = threading.Semaphore(0)

        def made() -> list[Endpoint]:
            looked.release()
            return [Endpoint(webhook=Webhook(name="audit"), url=url, key=KEY) for url in places.values()]

        outbox = Outbox(world.outbox, [], Metrics(), poll_s=0.02, timeout_s=5, made=made, look_every_s=0.01)
        outbox.start()
        try:
            world.submit()
            receiver.wait(1)
            places["first"] = other.url
            _await_looks(looked)
            world.happen("it moved")
            other.wait(1)
            places.clear()
            _await_looks(looked)
            world.happen("nobody hears")
            _await_looks(looked)
            assert [one.sentence for one in (*receiver.received, *other.received)] == ["job-1 came", "it moved"]
        finally:
            outbox.stop()


def _await_looks(looked: threading.Semaphore) -> None:
    """Wait for three more lookups of webhooks."""
    while looked.acquire(blocking=False):
        pass
    for _ in range(3):
        assert looked.acquire(timeout=300)


def test_a_store_outage_ends_no_thread(
    world: World, receiver: Receiver, run_outbox: Callable[..., Outbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    claim, troubles = world.outbox.claim, iter([StoreUnavailable("gone"), RuntimeError("a defect")])

    def troubled(*arguments: object, **named: object) -> object:
        trouble = next(troubles, None)
        if trouble is not None:
            raise trouble
        return claim(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(world.outbox, "claim", troubled)
    run_outbox(Endpoint(webhook=Webhook(name="audit"), url=receiver.url, key=KEY))
    world.submit()
    receiver.wait(1)


def test_evidence_is_sent_as_stored(world: World, receiver: Receiver, post: Post) -> None:
    world.submit()
    evidence: dict[str, object] = {"rank": 3, "names": ["ä", "\u2028"], "loss": float("nan")}
    world.happen("ünï", evidence=evidence, attempt=2, generation=7)
    while post.courier.carry():
        pass
    event = receiver.received[-1].document["data"]["event"]
    assert (event["sentence"], event["attempt"], event["generation"]) == ("ünï", 2, 7)
    assert event["evidence"] == {"rank": 3, "names": ["ä", "\u2028"], "loss": "nan"}
    assert make_event().kind == event["kind"]
