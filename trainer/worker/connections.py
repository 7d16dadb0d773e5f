"""The TCP connections of process groups: limit their retransmission pause, or break them.

TCP doubles the pause before each retransmission of a packet. After an outage of 10 s the next one can be 13 s away, and
all ranks wait for it. gloo does not change this. The options below make TCP retransmit at least once a second, on Linux
6.15 or newer.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

# linux/tcp.h. A kernel that lacks an option refuses it.
_TCP_THIN_LINEAR_TIMEOUTS = 16  # the first six retransmissions come at equal intervals, if few packets are under way
_TCP_RTO_MAX_MS = 44  # since Linux 6.15
_LEAST_RTO_MAX_MS = 1000  # that the kernel accepts
_OPTIONS = {_TCP_THIN_LINEAR_TIMEOUTS: 1, _TCP_RTO_MAX_MS: _LEAST_RTO_MAX_MS}


class Connection(NamedTuple):
    """A socket of this process. `inode` distinguishes it from a later socket with the same descriptor."""

    descriptor: int
    inode: int


def find_connections() -> set[Connection]:
    """The TCP sockets that this process has now. None without /proc."""
    names: list[str] = []
    with suppress(OSError):
        names = [entry.name for entry in Path("/proc/self/fd").iterdir()]
    found = set[Connection]()
    for descriptor in map(int, names):
        with suppress(OSError), _borrowed(descriptor) as connection:  # else another thread has closed it
            if connection.type == socket.SOCK_STREAM and connection.family in (socket.AF_INET, socket.AF_INET6):
                found.add(Connection(descriptor, os.fstat(descriptor).st_ino))
    return found


def limit_backoff(connections: Iterable[Connection]) -> None:
    """Set the options above. An option that the kernel lacks is skipped."""
    for each in connections:
        for option, value in _OPTIONS.items():
            with suppress(OSError), _borrowed(each.descriptor) as connection:
                connection.setsockopt(socket.IPPROTO_TCP, option, value)


def break_connections(connections: Iterable[Connection]) -> None:
    """Shut these connections down, so that every collective over them fails, here and on the other ranks."""
    for each in connections:
        with suppress(OSError), _borrowed(each.descriptor) as connection:
            is_same = os.fstat(each.descriptor).st_ino == each.inode
            # gloo ends the process if accept(2) fails.
            if is_same and not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    """Raises OSError if the descriptor is no socket."""
    connection = socket.socket(fileno=descriptor)
    try:
        yield connection
    finally:
        connection.detach()
