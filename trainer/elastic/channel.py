"""Messages between two processes of one machine: lines of JSON over a stream socket, of any length.

A packet socket would keep messages apart by itself, but refuses more than about 200 kB (socket(7), wmem_max). A command
line can be longer.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping

_CHUNK_BYTES = 1 << 20


class Channel:
    """One end of the connection. Not thread-safe."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._rest = b""  # the start of an incomplete line

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        one, other = socket.socketpair()
        return cls(one), cls(other)

    def fileno(self) -> int:
        return self._end.fileno()

    def close(self) -> None:
        self._end.close()

    def send(self, message: Mapping[str, object]) -> bool:
        """Blocks until the other side has read enough of a long message. Returns False if the other side is gone."""
        try:
            self._end.sendall(json.dumps(message).encode() + b"\n")
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def receive(self) -> list[dict[str, object]] | None:
        """Blocks until data arrives. Returns no message while a line is incomplete, None if the other side is gone."""
        try:
            chunk = self._end.recv(_CHUNK_BYTES)
        except ConnectionResetError:  # the other side ended without reading what we sent
            return None
        if not chunk:
            return None
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return [json.loads(line) for line in lines]
