"""Let collectives continue soon after a network that lost packets works again.

TCP waits twice as long before each retransmission of a packet. After an outage of 10 s the next one can be 13 s away,
and all ranks wait for it. gloo sets no option for this. With these options TCP tries again at least once a second, on
Linux 6.15 or newer.
"""

from __future__ import annotations

import os
import socket
import stat
from contextlib import suppress
from pathlib import Path

# linux/tcp.h. A kernel that lacks an option refuses it.
_TCP_THIN_LINEAR_TIMEOUTS = 16  # the first six retransmissions come at equal intervals, if few packets are under way
_TCP_RTO_MAX_MS = 44  # since Linux 6.15
_LEAST_RTO_MAX_MS = 1000  # that the kernel accepts
_OPTIONS = {_TCP_THIN_LINEAR_TIMEOUTS: 1, _TCP_RTO_MAX_MS: _LEAST_RTO_MAX_MS}


def limit_backoff() -> None:
    """Set the options of all TCP connections that this process has now. Does nothing without /proc."""
    found: list[str] = []
    with suppress(OSError):
        found = [entry.name for entry in Path("/proc/self/fd").iterdir()]
    for descriptor in map(int, found):
        with suppress(OSError):  # another thread has closed it
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                _limit(descriptor)


def _limit(descriptor: int) -> None:
    connection = socket.socket(fileno=descriptor)
    try:
        if connection.type == socket.SOCK_STREAM and connection.family in (socket.AF_INET, socket.AF_INET6):
            for option, value in _OPTIONS.items():
                with suppress(OSError):
                    connection.setsockopt(socket.IPPROTO_TCP, option, value)
    finally:
        connection.detach()
