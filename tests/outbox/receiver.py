"""A receiver of webhooks. Each item of `moods` says how it treats one request; after that it answers 200."""

from __future__ import annotations

import json
import socket
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any


@dataclass(frozen=True)
class Received:
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found

    @property
    def sentence(self) -> str:
        return str(self.document["data"]["event"]["sentence"])


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64  # with 5, the default, some of sixteen connections at once wait for retransmissions


class Receiver:
    def __init__(self, *moods: str) -> None:
        self.moods = list(moods)  # a status, or "silent", "drips" or "dies"
        self.received: list[Received] = []
        self.let_go = threading.Event()
        self._server = _Server(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/hook/a-token-in-the-path"

    def wait(self, count: int, *, timeout_s: float = 150) -> None:
        until = time.monotonic() + timeout_s
        while len(self.received) < count:
            assert time.monotonic() < until, f"{len(self.received)} of {count} messages arrived"
            time.sleep(0.01)

    def __enter__(self) -> Receiver:
        self._thread.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.let_go.set()
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["content-length"])
                body = self.rfile.read(length)
                if len(body) < length:
                    return  # the sender was killed: the message did not arrive
                headers = {name.lower(): value for name, value in self.headers.items()}
                receiver.received.append(Received(self.path, headers, body))
                mood = receiver.moods.pop(0) if receiver.moods else "200"
                if mood == "silent":
                    receiver.let_go.wait(600)
                elif mood == "drips":
                    self._drip()
                elif mood == "dies":
                    self.wfile.write(b"HTTP/1.1 2")
                    self.wfile.flush()
                    self.connection.shutdown(socket.SHUT_RDWR)
                else:
                    self.send_response(int(mood))
                    if mood == "302":
                        self.send_header("location", receiver.url + "/elsewhere")
                    self.send_header("content-length", "0")
                    self.end_headers()

            def _drip(self) -> None:
                """Send a byte now and then, without end."""
                try:
                    for byte in b"HTTP/1.1 200 OK\r\nx: " + b"y" * 1000:
                        self.wfile.write(bytes([byte]))
                        self.wfile.flush()
                        if receiver.let_go.wait(0.05):
                            return
                except OSError:
                    return

            def log_message(self, *_: object) -> None:
                pass

        return Handler
