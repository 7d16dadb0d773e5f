"""A proxy on loopback that passes requests on to a service and remembers what was said."""

from __future__ import annotations

import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from urllib.parse import urlsplit

from deploy.dev.traffic.exchange import Exchange

_ASKED = ("content-type", "idempotency-key", "if-none-match", "accept")
_ANSWERED = ("content-type", "location", "etag", "retry-after", "www-authenticate")
_HOP = frozenset({"connection", "transfer-encoding", "content-length", "keep-alive"})
_ANSWER_S = 120.0


class Proxy:
    """`call` names whoever asks next; it is the recorder's to set. Answers are passed on once they are whole."""

    def __init__(self, target: str = "") -> None:
        self.target = target  # may be told later: the service wants to know where the proxy is
        self.call: str | None = None
        self.exchanges: list[Exchange] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Proxy:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _pass_on(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
                parts = urlsplit(proxy.target)
                connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_ANSWER_S)
                try:
                    headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP}
                    connection.request(self.command, self.path, body or None, {**headers, "Host": parts.netloc})
                    answer = connection.getresponse()
                    content = answer.read()
                except OSError:
                    self.close_connection = True  # as if the service itself were away
                    return
                finally:
                    connection.close()
                proxy.exchanges.append(
                    Exchange(
                        call=proxy.call if not self.path.endswith("/reports") else None,
                        method=self.command,
                        path=self.path,
                        headers={name: self.headers[name] for name in _ASKED if name in self.headers},
                        body=body.decode(),
                        status=answer.status,
                        answer_headers={
                            name: str(answer.headers[name]) for name in _ANSWERED if name in answer.headers
                        },
                        answer=content.decode(),
                    )
                )
                self.send_response_only(answer.status)
                for name, value in answer.headers.items():
                    if name.lower() not in _HOP:
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_DELETE = _pass_on  # noqa: N815  # http.server's own names

            def log_message(self, *_: object) -> None:
                """Keep quiet."""

        return Handler
