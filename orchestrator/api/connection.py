"""Limits on a connection: how long headers, bodies and readers may take, and how much memory they may hold.

Uvicorn has none of these limits:

- It waits for the headers of a request without a time limit, so a client that sends a byte a second holds a connection
  for days.
- It collects headers without a size limit, so a client that sends without pause fills the memory.
- It keeps an answer until the client has read it, so a client that reads a log at a byte a second holds megabytes for
  days.
- It reads ahead: a body before the application asks for it, and pipelined requests before their turn.
"""

from __future__ import annotations

import asyncio
import gc
import socket
from dataclasses import dataclass

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADERS_S = 20.0  # from the connection, or the first byte of a later request, to the end of the headers
MAX_HEADER_BYTES = 64 * 1024
MAX_HEADERS = 128  # per request; short headers take thirty times their size in memory
MAX_PIPELINED = 16  # requests of a connection that wait for their turn; it is closed after the last of them
MAX_BUFFERED_BYTES = 64 * 1024 * 1024  # of all connections: received bodies that the application has not read
COLLECT_EVERY_BYTES = 16 * 1024 * 1024  # received from all connections
DRAIN_S = 20.0  # the time for the rest of a body whose request was already answered
# The kernel closes a connection whose client acknowledges no data for so long (tcp(7), TCP_USER_TIMEOUT). The limit
# also applies to the probes of an idle connection (SO_KEEPALIVE), whose client's machine may be down.
UNREAD_MS = 60_000
_PROBE_AFTER_S = 60
# An answer may be longer than the kernel's buffer. Its client must read LEAST_READ_BYTES in each UNREAD_S, which is
# 128 kbit/s. TCP_USER_TIMEOUT does not stop a client that reads a little every minute.
UNREAD_S = 30.0
LEAST_READ_BYTES = 480 * 1024
MAX_UNREAD_BYTES = 256 * 1024 * 1024  # of all connections; above it the connection that is behind longest is closed

_LATE = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_LONG = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_FULL = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_received_bytes = 0  # since the last collection


@dataclass(frozen=True, slots=True)
class _Unread:
    """How many bytes a client had not read at the last check, and since when it is behind (the loop's time)."""

    since: float
    size_bytes: int
    look: asyncio.TimerHandle


class Connection(HttpToolsProtocol):
    """Uvicorn's protocol with these limits."""

    _deadline: asyncio.TimerHandle | None = None
    _header_bytes: int | None = 0  # None once the headers are complete and a body follows
    _unread: _Unread | None = None
    _body_is_due: bool = False
    _is_last: bool = False  # the request being read is the last one of the connection
    _ignores_input: bool = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        super().connection_made(transport)
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._is_read()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Note that the client is behind. Until `resume_writing`, the transport gets nothing more of the answer."""
        super().pause_writing()
        self._is_read()
        self._watch_reader(self.loop.time())
        self._make_room()

    def resume_writing(self) -> None:
        self._is_read()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        _collect_by_size(len(data))
        if self._ignores_input:
            return
        in_headers = self._header_bytes is not None
        super().data_received(data)
        if self._header_bytes is not None:
            self._header_bytes += len(data)
            if self._header_bytes > MAX_HEADER_BYTES:
                self._refuse(_LONG)
        elif in_headers and self._body_is_due:
            self.flow.pause_reading()  # until the application asks for the body, or has answered without it

    def on_message_begin(self) -> None:
        if self._ignores_input:
            return
        super().on_message_begin()
        self._header_bytes = 0
        self._await_headers()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._ignores_input:
            return
        if len(self.headers) < MAX_HEADERS:
            super().on_header(name, value)
        else:
            self._refuse(_LONG)

    def on_headers_complete(self) -> None:
        if self._ignores_input:
            return
        self._header_bytes = None
        self._stop_waiting()
        super().on_headers_complete()
        self._body_is_due = True
        self.cycle.transport = _DeferredClose(self)
        if len(self.pipeline) >= MAX_PIPELINED:
            self.cycle.keep_alive = False
            self._is_last = True

    def on_body(self, body: bytes) -> None:
        if self._ignores_input:
            return
        super().on_body(body)
        if (self.pipeline or len(self.cycle.body) > HIGH_WATER_LIMIT) and self._buffered_bytes() > MAX_BUFFERED_BYTES:
            self._refuse_body()

    def on_message_complete(self) -> None:
        if self._ignores_input:
            return
        self._body_is_due = False
        self._stop_waiting()
        super().on_message_complete()
        if self._is_last:
            self._ignores_input = True
            if self.cycle.response_complete:
                self.transport.close()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete and self._body_is_due and not self.transport.is_closing():
            self.cycle.body.clear()
            self._unset_keepalive_if_required()  # its timeout could close the connection before the body has arrived
            self._deadline = self.loop.call_later(DRAIN_S, self.transport.close)

    def close_after_body(self) -> None:
        """Close the connection once the body has arrived. Closing earlier resets the connection, and the client may
        lose the answer."""
        if self._body_is_due and self.cycle.response_complete:
            self._is_last = True
        else:
            self.transport.close()

    def _await_headers(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(HEADERS_S, self._refuse, _LATE)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _watch_reader(self, since: float) -> None:
        size_bytes = self.transport.get_write_buffer_size()
        self._unread = _Unread(since, size_bytes, self.loop.call_later(UNREAD_S, self._look_at_reader))

    def _look_at_reader(self) -> None:
        before = self._unread
        if before is None:
            return
        if self.transport.get_write_buffer_size() > max(0, before.size_bytes - LEAST_READ_BYTES):
            self.transport.abort()
        else:
            self._watch_reader(before.since)

    def _is_read(self) -> None:
        if self._unread is not None:
            self._unread.look.cancel()
            self._unread = None

    def _make_room(self) -> None:
        """Abort the connections that are behind longest until the unread bytes are within the limit."""
        waiting = [(each._unread, each) for each in self.connections if isinstance(each, Connection) and each._unread]
        held = sum(unread.size_bytes for unread, _ in waiting)
        for unread, connection in sorted(waiting, key=lambda pair: pair[0].since):
            if held <= MAX_UNREAD_BYTES:
                return
            held -= unread.size_bytes
            connection.transport.abort()

    def _buffered_bytes(self) -> int:
        connections = (each for each in self.connections if isinstance(each, Connection) and each.cycle is not None)
        cycles = (cycle for each in connections for cycle in (each.cycle, *(waiting for waiting, _ in each.pipeline)))
        return sum(len(cycle.body) for cycle in cycles)

    def _refuse_body(self) -> None:
        if not self.pipeline and not self.cycle.response_started:
            self.transport.write(_FULL)
            self.cycle.disconnected = True  # the application's own answer is not sent
        self._hang_up()

    def _refuse(self, answer: bytes) -> None:
        if not self.transport.is_closing() and (self.cycle is None or self.cycle.response_complete):
            self.transport.write(answer)  # otherwise it would land inside another answer
        self._hang_up()

    def _hang_up(self) -> None:
        self._stop_waiting()
        self._ignores_input = True
        self.transport.close()


class _DeferredClose(asyncio.Transport):
    """The transport that an answer writes to. It stays open while the request's body is arriving."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._connection.transport.write(data)

    def is_closing(self) -> bool:
        return self._connection.transport.is_closing()

    def close(self) -> None:
        self._connection.close_after_body()


def _collect_by_size(size_bytes: int) -> None:
    """Collect garbage by received bytes: requests leave reference cycles with their bodies, and the garbage collector
    counts only objects."""
    global _received_bytes
    _received_bytes += size_bytes
    if _received_bytes > COLLECT_EVERY_BYTES:
        _received_bytes = 0
        gc.collect()


def limit_unread(listener: socket.socket) -> None:
    """Limit unread data on every connection of `listener`, on systems that have TCP_USER_TIMEOUT."""
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_MS)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_AFTER_S)
