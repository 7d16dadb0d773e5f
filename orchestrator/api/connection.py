"""A connection before there is a request and behind its answer: how long headers and readers may take, and hold.

Uvicorn waits for ever for the first line of a request, and collects headers without end: a client that sends a byte a
second would hold a connection for days, and one that sends without pause would fill the memory. It also keeps an answer
for as long as its reader takes: who asks for logs and reads a byte a second would hold megabytes for days.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADERS_S = 20.0  # from the connection, or the first byte of a later request, to the end of the headers
MAX_HEADER_BYTES = 64 * 1024
# Of what was sent and is not taken (tcp(7), TCP_USER_TIMEOUT): who asks and never reads gives his place up. The same of
# a probe into a connection on which nothing is sent (SO_KEEPALIVE), for his machine may be gone.
UNREAD_MS = 60_000
_PROBE_AFTER_S = 60
# Of an answer that is longer than what the system takes at once. TCP_USER_TIMEOUT is no help against a reader who takes
# a little every minute.
UNREAD_S = 30.0
LEAST_READ_BYTES = 480 * 1024  # in that time, while there is so much: 128 kbit/s
MAX_UNREAD_BYTES = 256 * 1024 * 1024  # of all connections; whoever has waited longest gives his place up

_LATE = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_LONG = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


@dataclass(frozen=True, slots=True)
class _Unread:
    """What a reader had not taken when it was looked at last, and since when he is behind (the loop's time)."""

    since: float
    size_bytes: int
    look: asyncio.TimerHandle


class Connection(HttpToolsProtocol):
    """Uvicorn's, with these limits."""

    _deadline: asyncio.TimerHandle | None = None
    _header_bytes: int | None = 0  # None: the headers are complete, what comes is a body
    _unread: _Unread | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        super().connection_made(transport)
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._is_read()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The reader is behind; until `resume_writing` nothing more of the answer is given to the transport."""
        super().pause_writing()
        self._is_read()
        self._watch_reader(self.loop.time())
        self._make_room()

    def resume_writing(self) -> None:
        self._is_read()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._header_bytes is None:
            return
        self._header_bytes += len(data)
        if self._header_bytes > MAX_HEADER_BYTES:
            self._refuse(_LONG)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._header_bytes = 0
        self._await_headers()

    def on_headers_complete(self) -> None:
        self._header_bytes = None
        self._stop_waiting()
        super().on_headers_complete()

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
        """Abort the slowest readers while all of them together hold too much."""
        waiting = [(each._unread, each) for each in self.connections if isinstance(each, Connection) and each._unread]
        held = sum(unread.size_bytes for unread, _ in waiting)
        for unread, connection in sorted(waiting, key=lambda pair: pair[0].since):
            if held <= MAX_UNREAD_BYTES:
                return
            held -= unread.size_bytes
            connection.transport.abort()

    def _refuse(self, answer: bytes) -> None:
        self._stop_waiting()
        if not self.transport.is_closing():
            if self.cycle is None or self.cycle.response_complete:  # else it would stand within another answer
                self.transport.write(answer)
            self.transport.close()


def limit_unread(listener: socket.socket) -> None:
    """Of every connection that it will accept; where the system cannot, nothing is limited."""
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_MS)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_AFTER_S)
