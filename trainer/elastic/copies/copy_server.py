"""Serve an agent's files in memory to the other nodes of the job, over HTTP. Each request needs the server's token.

- GET /copies: the records of the copies of this node's ranks, once they differ from those of If-None-Match.
- GET /files/NUMBER with a Range: the bytes of a file.
- PUT /mirrored/NUMBER: another node has the copy of this record.
"""

from __future__ import annotations

import hmac
import json
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, BinaryIO

from trainer.contract.copy_record import MIRRORED_AT, RECORD_BYTES

_WAIT_S = 1.0  # the longest wait for a change of the records
_LOOK_EVERY_S = 0.02
_SILENCE_S = 30.0
_CLOSES_WITHIN_S = 0.1
_MOST_CONNECTIONS = 256
_RANGE = re.compile(r"bytes=([0-9]{1,18})-([0-9]{1,18})\Z")


class CopyServer:
    """Serves in threads of its own. `close` ends them."""

    def __init__(self, own: Callable[[], Sequence[Sequence[int]]], served: Callable[[], Sequence[int]]) -> None:
        """`own` returns the files with the copies of this node's ranks, by local rank; `served` every file to serve."""
        self._token = secrets.token_hex(16)
        self._http = _Http(own, served, self._token)
        threading.Thread(target=self._http.serve_forever, args=(_CLOSES_WITHIN_S,), name="copies", daemon=True).start()

    def url(self, host: str) -> str:
        """The address for other nodes. It contains the token."""
        shown = f"[{host}]" if ":" in host else host
        return f"http://{self._token}@{shown}:{self._http.server_port}"

    def close(self) -> None:
        """After this no file is read or written: their descriptors may be closed."""
        with self._http.lock:
            self._http.is_closing = True
        self._http.shutdown()
        self._http.server_close()


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    request_queue_size = 64

    def __init__(
        self, own: Callable[[], Sequence[Sequence[int]]], served: Callable[[], Sequence[int]], token: str
    ) -> None:
        self.own, self.served, self.token = own, served, token
        self.lock = threading.Lock()  # held while a descriptor is used by its number
        self.is_closing = False
        self._connections = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        super().__init__(("", 0), _Handler)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        self.socket.bind(self.server_address)  # HTTPServer's own looks up a name, which can take seconds
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "", self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Close a connection that would be one too many: each needs a descriptor of the agent."""
        if self._connections.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away is no error."""


class _Handler(BaseHTTPRequestHandler):
    server: _Http
    protocol_version = "HTTP/1.1"
    timeout = _SILENCE_S
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        if not self._is_allowed():
            self._answer(HTTPStatus.FORBIDDEN)
        elif self.path == "/copies":
            self._send_records()
        elif (file := self._open("/files/")) is None:
            self._answer(HTTPStatus.NOT_FOUND)
        else:
            with file:
                self._send_range(file)

    def do_PUT(self) -> None:
        record = self.rfile.read(RECORD_BYTES) if self.headers.get("Content-Length") == str(RECORD_BYTES) else b""
        with self.server.lock:
            number = self._find_number("/mirrored/")
            is_taken = self._is_allowed() and bool(record) and number is not None
            if is_taken and number is not None:
                os.pwrite(number, record, MIRRORED_AT)
        self.close_connection = self.close_connection or not is_taken  # the body may be unread
        self._answer(HTTPStatus.OK if is_taken else HTTPStatus.FORBIDDEN)

    def log_message(self, *_: object) -> None:
        """Nothing is logged: a request comes every second."""

    def _is_allowed(self) -> bool:
        given = self.headers.get("Authorization", "")
        return hmac.compare_digest(given.encode(), f"Bearer {self.server.token}".encode())

    def _find_number(self, prefix: str) -> int | None:
        """The descriptor that the path names, if it is served. The caller holds the lock."""
        with suppress(ValueError):
            number = int(self.path.removeprefix(prefix)) if self.path.startswith(prefix) else -1
            return number if number in self.server.served() and not self.server.is_closing else None
        return None

    def _open(self, prefix: str) -> BinaryIO | None:
        """The file that the path names, with an offset of its own."""
        with self.server.lock:
            number = self._find_number(prefix)
            return None if number is None else open(f"/proc/self/fd/{number}", "rb")  # noqa: PTH123

    def _read_records(self) -> bytes:
        with self.server.lock:
            own = [] if self.server.is_closing else self.server.own()
            return json.dumps(
                [[(file, os.pread(file, RECORD_BYTES, 0).hex()) for file in files] for files in own]
            ).encode()

    def _send_records(self) -> None:
        known, deadline = self.headers.get("If-None-Match"), time.monotonic() + _WAIT_S
        while True:
            content = self._read_records()
            tag = f'"{sha256(content).hexdigest()}"'
            if tag != known:
                self._answer(HTTPStatus.OK, content, tag)
                return
            if time.monotonic() > deadline:
                self._answer(HTTPStatus.NOT_MODIFIED, tag=tag)
                return
            time.sleep(_LOOK_EVERY_S)

    def _send_range(self, file: BinaryIO) -> None:
        asked = _RANGE.match(self.headers.get("Range", ""))
        first, last = (int(asked[1]), int(asked[2])) if asked else (0, -1)
        if not first <= last < os.fstat(file.fileno()).st_size:
            self._answer(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)
            return
        self.send_response(HTTPStatus.PARTIAL_CONTENT)
        self.send_header("Content-Length", str(last - first + 1))
        self.end_headers()
        self.connection.sendfile(file, first, last - first + 1)

    def _answer(self, status: HTTPStatus, content: bytes = b"", tag: str = "") -> None:
        self.send_response(status)
        if tag:
            self.send_header("ETag", tag)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
