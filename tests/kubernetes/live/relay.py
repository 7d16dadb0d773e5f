"""A proxy to the API server that can be shut, and a proxy through which pods reach a service on loopback."""

from __future__ import annotations

import http.client
import ipaddress
import socket
import threading
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_ANYWHERE = ("192.0.2.1", 9)  # an address for documentation (RFC 5737)
_PASSED = ("Content-Type", "Authorization")  # including the attempt's token


class Relay:
    """A proxy to one host and port. While it is shut, it closes all connections and accepts none.

    It answers CONNECT itself, unless the target is another proxy (`to_proxy`). It forwards all other bytes.
    """

    def __init__(self, host: str, port: int, *, to_proxy: bool = False) -> None:
        self._target, self._to_proxy = (host, port), to_proxy
        self._open: set[socket.socket] = set()
        self._shut = threading.Event()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def shut(self) -> None:
        with self._lock:
            self._shut.set()
        self._drop()

    def open(self) -> None:
        self._shut.clear()

    def close(self) -> None:
        self._shut.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # closing alone does not wake the thread in accept()
        self._listener.close()
        self._drop()

    def _drop(self) -> None:
        with self._lock:
            for each in self._open:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                ours, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(ours,), daemon=True).start()

    def _serve(self, ours: socket.socket) -> None:
        with ours, suppress(OSError), socket.create_connection(self._target, timeout=10) as theirs:
            theirs.settimeout(None)
            with self._lock:
                if self._shut.is_set():  # shut while the connection was made
                    return
                self._open |= {ours, theirs}
            try:
                self._pass_on(ours, theirs)
            finally:
                with self._lock:
                    self._open -= {ours, theirs}

    def _pass_on(self, ours: socket.socket, theirs: socket.socket) -> None:
        begin = ours.recv(65536)
        if begin.startswith(b"CONNECT ") and not self._to_proxy:
            while b"\r\n\r\n" not in begin:
                more = ours.recv(65536)
                if not more:
                    return
                begin += more
            ours.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            begin = begin.partition(b"\r\n\r\n")[2]
        theirs.sendall(begin)
        back = threading.Thread(target=_copy, args=(theirs, ours), daemon=True)
        back.start()
        _copy(ours, theirs)
        back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for each in (source, target):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


class ReportsDoor:
    """Forwards only reports to a service on loopback. `service_port` may change with a restart."""

    def __init__(self, port: int = 0) -> None:
        self.service_port = 0
        door = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if self.path != "/api/v1/reports":
                    self.send_error(404)
                    return
                try:
                    with closing(http.client.HTTPConnection("127.0.0.1", door.service_port, timeout=10)) as service:
                        passed = {name: self.headers[name] for name in _PASSED if name in self.headers}
                        service.request("POST", self.path, body, passed)
                        answer = service.getresponse()
                        payload = answer.read()
                except (OSError, http.client.HTTPException):
                    self.send_error(503)
                    return
                self.send_response(answer.status)
                self.send_header("Content-Type", answer.getheader("Content-Type") or "application/json")
                self.send_header("Content-Length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Log nothing."""

        self._server = ThreadingHTTPServer(("0.0.0.0", port), Handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def address_towards(host: str, port: int) -> str | None:
    """Return the address that this machine uses towards the host, or else towards the internet. None: only loopback.

    An API server on loopback may have its pods in containers, which do not share loopback. Nothing is sent.
    """
    for target in ((host, port), _ANYWHERE):
        with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(target)
            found = str(probe.getsockname()[0])
            if not ipaddress.ip_address(found).is_loopback:
                return found
    return None
