"""Read the files in the memory of another node, from its agent's server (copy_server.py)."""

from __future__ import annotations

import http.client
import json
import socket
from contextlib import suppress
from urllib.parse import urlsplit

from trainer.contract.copy_record import RECORD_BYTES

_CONNECT_S, _TIMEOUT_S = 2.0, 10.0
_OK, _PARTIAL, _UNCHANGED = 200, 206, 304


class CopyClient:
    """A connection, for one thread. The server closes it when it is idle, so each request is tried twice.

    Methods may raise OSError; then the next one connects again.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._authorization = {"Authorization": f"Bearer {parts.username}"}
        self._http = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_CONNECT_S)
        self._tag = ""
        self._is_interrupted = False

    def close(self) -> None:
        self._http.close()

    def __del__(self) -> None:
        with suppress(AttributeError):  # the address was wrong
            self._http.close()

    def interrupt(self) -> None:
        """From another thread: end a call that waits. The client is of no use after this."""
        self._is_interrupted = True
        connection = self._http.sock
        if connection is not None:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def read_into(self, file: int, offset: int, target: memoryview) -> None:
        """Fill `target` from `offset` (bytes) of a file."""
        try:
            answer = self._ask(
                "GET", f"/files/{file}", _PARTIAL, {"Range": f"bytes={offset}-{offset + len(target) - 1}"}
            )
            got = 0
            while got < len(target) and (count := answer.readinto(target[got:])):
                got += count
            answer.read()
        except (http.client.HTTPException, OSError) as error:
            raise self._lost(error) from error
        if got < len(target):
            raise self._lost(EOFError(f"{len(target) - got} bytes are missing"))

    def read(self, file: int, offset: int, size_bytes: int) -> bytearray:
        content = bytearray(size_bytes)
        self.read_into(file, offset, memoryview(content))
        return content

    def read_record(self, file: int) -> bytes:
        return bytes(self.read(file, 0, RECORD_BYTES))

    def await_copies(self) -> list[list[tuple[int, bytes]]] | None:
        """The files and records of the node's ranks, by local rank. None if they have not changed for a second."""
        try:
            answer = self._ask("GET", "/copies", _OK, {"If-None-Match": self._tag})
            content = answer.read()
            if answer.status == _UNCHANGED:
                return None
            self._tag = answer.headers.get("ETag", "")
            return [[(int(file), bytes.fromhex(record)) for file, record in own] for own in json.loads(content)]
        except (http.client.HTTPException, OSError, ValueError, TypeError) as error:
            raise self._lost(error) from error

    def confirm(self, file: int, record: bytes) -> None:
        """Tell the node that this one has the copy of this record."""
        try:
            self._ask("PUT", f"/mirrored/{file}", _OK, {}, record).read()
        except (http.client.HTTPException, OSError) as error:
            raise self._lost(error) from error

    def _ask(
        self, method: str, path: str, expected: int, headers: dict[str, str], body: bytes | None = None
    ) -> http.client.HTTPResponse:
        is_new = self._http.sock is None
        try:
            answer = self._request(method, path, headers, body)
        except (http.client.HTTPException, OSError):
            self._http.close()
            if is_new or self._is_interrupted:
                raise
            answer = self._request(method, path, headers, body)
        if answer.status not in (expected, _UNCHANGED):
            answer.read()
            raise OSError(f"the agent answered {answer.status} {answer.reason}")
        return answer

    def _request(self, method: str, path: str, headers: dict[str, str], body: bytes | None) -> http.client.HTTPResponse:
        if self._http.sock is None:
            self._connect()
        self._http.request(method, path, body, headers | self._authorization)
        return self._http.getresponse()

    def _connect(self) -> None:
        self._http.connect()
        self._http.sock.settimeout(_TIMEOUT_S)

    def _lost(self, error: Exception) -> OSError:
        self._http.close()
        self._tag = ""
        return OSError(f"{self._http.host}:{self._http.port}: {error or type(error).__name__}")
