"""Clients that are slow or endless before there is a request or behind its answer, against the real protocol on a
socket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from orchestrator.api import connection
from orchestrator.api.connection import (
    MAX_HEADER_BYTES,
    MAX_HEADERS,
    MAX_PIPELINED,
    UNREAD_MS,
    Connection,
    limit_unread,
)

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
PATIENCE_S = 60.0
LONG_BYTES = 32 * 1024 * 1024  # more than the buffers of both kernels


async def app(scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def long_answer(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % LONG_BYTES)]})
    await send({"type": "http.response.body", "body": bytes(LONG_BYTES)})


@asynccontextmanager
async def listening(answer: Any = app, state: ServerState | None = None) -> AsyncIterator[tuple[str, int]]:
    config = uvicorn.Config(answer, http=Connection, log_config=None, lifespan="off")
    config.load()
    loop, state = asyncio.get_running_loop(), state or ServerState()
    server = await loop.create_server(lambda: Connection(config, state, {}), "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()
    finally:
        server.close()


async def converse(*parts: bytes, pause_s: float = 0.0, answer: Any = app) -> bytes:
    """Everything that is answered until the service closes the connection."""
    async with listening(answer) as (host, port):
        reader, writer = await asyncio.open_connection(host, port)
        try:
            for part in parts:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(pause_s)
        except ConnectionError:
            pass
        try:
            return await asyncio.wait_for(reader.read(), PATIENCE_S)
        except ConnectionError:
            return b""  # reset while data was in flight
        finally:
            writer.close()


@pytest.mark.parametrize("begin", [b"", b"GET / HT", b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nHost: local"])
def test_headers_that_do_not_arrive_in_time_are_refused(begin: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEADERS_S", 0.1)
    assert asyncio.run(converse(begin)).startswith(b"HTTP/1.1 408 ")


def test_slow_bytes_do_not_extend_the_time_limit_of_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEADERS_S", 0.2)
    drops = [bytes([byte]) for byte in b"GET / HTTP/1.1\r\nX-Slow: " + b"x" * 2000]
    answer = asyncio.run(converse(*drops[:400], pause_s=0.005))
    assert answer.startswith(b"HTTP/1.1 408 ") or answer == b""


def test_a_second_request_has_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEADERS_S", 0.3)
    answer = asyncio.run(converse(REQUEST, b"GET /again HTTP/1.1\r\nHost: lo", pause_s=0.05))
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1 408 " in answer


def test_the_time_limit_of_headers_does_not_apply_to_the_body(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "HEADERS_S", 0.1)
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 10\r\n\r\n"
    answer = asyncio.run(converse(head, b"01234", b"56789", pause_s=0.3))
    assert answer.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "parts",
    [
        (b"GET / HTTP/1.1\r\nX-Long: ", *[b"x" * 8192] * 64),
        (b"GET / HTTP/1.1\r\n", *[b"X-Many: " + b"x" * 1000 + b"\r\n"] * 512),
        (b"GET /", *[b"x" * 8192] * 64),
    ],
    ids=["one", "many", "address"],
)
def test_headers_without_an_end_are_refused(parts: tuple[bytes, ...]) -> None:
    assert sum(map(len, parts)) > 4 * MAX_HEADER_BYTES
    answer = asyncio.run(converse(*parts))
    assert answer.startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 400 ")) or answer == b""


def test_a_long_body_does_not_count_as_headers() -> None:
    size = 4 * MAX_HEADER_BYTES
    head = f"POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {size}\r\n\r\n".encode()
    assert asyncio.run(converse(head, *[b"x" * 8192] * (size // 8192))).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(("count", "status"), [(MAX_HEADERS - 2, b"200"), (MAX_HEADERS - 1, b"431"), (12_000, b"431")])
def test_the_number_of_headers_is_limited(count: int, status: bytes) -> None:
    head = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + b"a:b\r\n" * count
    answer = asyncio.run(converse(head, b"\r\n"))
    assert answer.startswith(b"HTTP/1.1 " + status) or (status, answer) == (b"431", b"")


async def early(scope: Any, receive: Any, send: Any) -> None:
    """Answer 401 without reading the body."""
    await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"no"})


def test_a_client_refused_while_it_sends_a_long_body_gets_the_answer() -> None:
    size = 64 * MAX_HEADER_BYTES
    for more in (b"", b"Connection: close\r\n"):
        head = b"POST / HTTP/1.1\r\nHost: localhost\r\n" + more + b"Content-Length: %d\r\n\r\n" % size
        last = REQUEST.replace(b"Host", b"Connection: close\r\nHost")
        answer = asyncio.run(converse(head, *[b"x" * 8192] * (size // 8192), last, answer=early))
        assert answer.count(b"HTTP/1.1 401 ") == (1 if more else 2)


@pytest.mark.parametrize("more", [b"", b"Connection: close\r\n"], ids=["kept", "closed"])
def test_the_rest_of_an_answered_body_is_awaited_for_a_limited_time(
    more: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "DRAIN_S", 0.2)
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\n" + more + b"Content-Length: 9999\r\n\r\n"
    answer = asyncio.run(converse(head, *[b"x"] * 400, pause_s=0.005, answer=early))
    assert answer.startswith(b"HTTP/1.1 401 ") or answer == b""


def test_a_body_is_not_read_before_the_application_asks_for_it() -> None:
    async def look() -> None:
        state, asked, ask = ServerState(), asyncio.Event(), asyncio.Event()

        async def patient(scope: Any, receive: Any, send: Any) -> None:
            asked.set()
            await ask.wait()
            await app(scope, receive, send)

        async with listening(patient, state) as address:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(b"POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 9000000\r\n\r\n")
            await asked.wait()
            writer.write(b"x" * 9_000_000)
            (one,) = state.connections
            assert isinstance(one, Connection)
            await until(lambda: one.flow.read_paused)
            assert len(one.cycle.body) == 0
            ask.set()
            assert (await asyncio.wait_for(reader.read(), PATIENCE_S)).startswith(b"HTTP/1.1 200 ")
            writer.close()

    asyncio.run(look())


def test_bodies_that_arrive_with_their_headers_share_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MAX_BUFFERED_BYTES", 1)
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 200000\r\n\r\n"

    async def stuck(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.Event().wait()

    async def overflow() -> bytes:
        """Feed the protocol directly, because the amount per read depends on the system."""
        state = ServerState()
        async with listening(stuck, state) as address:
            reader, writer = await asyncio.open_connection(*address)
            await until(lambda: len(state.connections) == 1)
            (one,) = state.connections
            assert isinstance(one, Connection)
            one.data_received(head + b"x" * 100_000)
            answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
            writer.close()
            for task in state.tasks:
                task.cancel()
            return answer

    answer = asyncio.run(overflow())
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 1" in answer


def test_pipelined_requests_are_answered_up_to_a_limit() -> None:
    """The connection is closed afterwards, so that the client sends the rest again."""
    few = asyncio.run(converse(REQUEST * MAX_PIPELINED + REQUEST.replace(b"Host", b"Connection: close\r\nHost")))
    assert few.count(b"HTTP/1.1 200 ") == MAX_PIPELINED + 1
    many = asyncio.run(converse(REQUEST * 5000))
    assert many.count(b"HTTP/1.1 200 ") == MAX_PIPELINED + 1
    assert many.count(b"connection: close") == 1


def test_a_pipelined_body_is_read_whole_or_not_at_all() -> None:
    sizes: list[int] = []

    async def measured(scope: Any, receive: Any, send: Any) -> None:
        size, more = 0, True
        while more:
            message = await receive()
            size, more = size + len(message.get("body", b"")), message.get("more_body", False)
        sizes.append(size)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    one = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20000\r\n\r\n" + b"x" * 20_000
    answer = asyncio.run(converse(*[one] * 40, answer=measured))
    assert set(sizes) == {20_000}
    assert answer.count(b"HTTP/1.1 200 ") == len(sizes)


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux has it")
def test_the_kernel_closes_connections_with_unread_data() -> None:
    with socket.socket() as listener:
        limit_unread(listener)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with socket.create_connection(listener.getsockname()) as _, listener.accept()[0] as accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == UNREAD_MS
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1


@contextmanager
def asking(address: tuple[str, int]) -> Iterator[socket.socket]:
    """A client with a small receive buffer that has sent a request and read nothing yet."""
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(PATIENCE_S)
        client.connect(address)
        client.sendall(REQUEST)
        client.setblocking(False)
        yield client


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.01)


def behind(state: ServerState) -> list[Any]:
    """The connections whose clients are behind."""
    return [each for each in state.connections if isinstance(each, Connection) and each.flow.write_paused]


def test_a_connection_that_reads_too_slowly_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "UNREAD_S", 0.2)

    async def dribble() -> None:
        state = ServerState()
        async with listening(long_answer, state) as address:
            with asking(address) as client:
                await until(lambda: len(behind(state)) == 1)

                def ended_while_read() -> bool:
                    with suppress(BlockingIOError, ConnectionError):
                        client.recv(1)
                    return not state.connections

                await until(ended_while_read)

    asyncio.run(dribble())


def test_a_connection_that_keeps_reading_gets_the_whole_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it is checked."""
    monkeypatch.setattr(connection, "UNREAD_S", 0.5)
    monkeypatch.setattr(connection, "LEAST_READ_BYTES", 1)
    head = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert len(asyncio.run(converse(head, answer=long_answer))) > LONG_BYTES


def test_the_slowest_readers_are_closed_above_the_memory_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three connections that fall behind one after the other, the first is closed."""
    monkeypatch.setattr(connection, "MAX_UNREAD_BYTES", int(2.5 * LONG_BYTES))

    async def crowd() -> None:
        state = ServerState()
        async with listening(long_answer, state) as address:
            with ExitStack() as stack:
                stack.enter_context(asking(address))
                await until(lambda: len(behind(state)) == 1)
                (first,) = behind(state)
                stack.enter_context(asking(address))
                await until(lambda: len(behind(state)) == 2)
                stack.enter_context(asking(address))
                await until(lambda: first not in state.connections and len(behind(state)) == 2)

    asyncio.run(crowd())
