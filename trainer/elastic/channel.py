"""Messages between two processes of one machine: a line of JSON each, over a stream socket, of any length.

A packet socket would keep them apart by itself, and refuses a command line of more than 200 kB (socket(7), wmem_max).
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping

_CHUNK_BYTES = 1 << 20


class Channel:
    """One end. Not for two threads."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._rest = b""  # of a line that is not whole yet

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        one, other = socket.socketpair()
        return cls(one), cls(other)

    def fileno(self) -> int:
        return self._end.fileno()

    def close(self) -> None:
        self._end.close()

    def send(self, message: Mapping[str, object]) -> bool:
        """Waits for the other side to read a long one. Returns whether there still is another side."""
        try:
            self._end.sendall(json.dumps(message).encode() + b"\n")
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def receive(self) -> list[dict[str, object]] | None:
        """Waits for something to come. Empty while no line is whole yet, None when there is nobody any more."""
        try:
            chunk = self._end.recv(_CHUNK_BYTES)
        except ConnectionResetError:  # gone with our words unread
            return None
        if not chunk:
            return None
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return [json.loads(line) for line in lines]
