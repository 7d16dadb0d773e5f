"""Count the bytes that the TCP connections of a process have carried (sock_diag(7)).

/proc/<pid>/io counts read(2) and write(2), but not recv(2).
"""

from __future__ import annotations

import os
import re
import socket
import struct
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress

_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _INET_DIAG_INFO = 4, 20, 2  # linux/netlink.h, sock_diag.h, inet_diag.h
_REQUEST_DUMP, _ERROR, _DONE = 0x301, 2, 3  # NLM_F_REQUEST | NLM_F_DUMP, NLMSG_ERROR, NLMSG_DONE
_HEADER, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=HH")
_REQUEST = struct.Struct("=BBBBI48x")  # inet_diag_req_v2: family, protocol, extensions, padding, states, no socket
_MESSAGE_BYTES, _INODE_AT = 72, 68  # of inet_diag_msg
_SENT_AND_RECEIVED = struct.Struct("=QQ")  # tcpi_bytes_acked and tcpi_bytes_received of tcp_info
_SENT_AT = 120  # their offset (linux/tcp.h, since 4.1)
_ALL_STATES = 0xFFFFFFFF
_TIMEOUT_S, _BUFFER_BYTES = 1.0, 1 << 16
_SOCKET = re.compile(r"socket:\[(\d+)\]")


def read_connections() -> dict[int, int]:
    """The bytes sent and received so far, by the socket's inode. Empty if the kernel does not support the request."""
    found: dict[int, int] = {}
    with suppress(OSError, struct.error):
        for family in (socket.AF_INET, socket.AF_INET6):
            found |= dict(_dump(family))
    return found


def count_bytes(pid: int, connections: Mapping[int, int]) -> int:
    """The bytes sent and received over all connections of a process."""
    return sum(connections.get(inode, 0) for inode in _inodes(pid))


def _inodes(pid: int) -> Collection[int]:
    found = set()
    with suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                match = _SOCKET.fullmatch(os.readlink(entry.path))  # noqa: PTH115  # not a path
                if match is not None:
                    found.add(int(match[1]))
    return found


def _dump(family: int) -> Iterator[tuple[int, int]]:
    request = _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), 0, _ALL_STATES)
    header = _HEADER.pack(_HEADER.size + len(request), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(_TIMEOUT_S)
        kernel.send(header + request)
        while True:
            answer, offset = kernel.recv(_BUFFER_BYTES), 0
            while offset < len(answer):
                length, kind, _, _, _ = _HEADER.unpack_from(answer, offset)
                if kind in (_ERROR, _DONE) or length < _HEADER.size:
                    return
                yield from _parse(answer[offset + _HEADER.size : offset + length])
                offset += _aligned(length)


def _parse(message: bytes) -> Iterator[tuple[int, int]]:
    (inode,) = struct.unpack_from("=I", message, _INODE_AT)
    offset = _MESSAGE_BYTES
    while offset + _ATTRIBUTE.size <= len(message):
        length, kind = _ATTRIBUTE.unpack_from(message, offset)
        info = message[offset + _ATTRIBUTE.size : offset + length]
        if kind == _INET_DIAG_INFO and len(info) >= _SENT_AT + _SENT_AND_RECEIVED.size:
            yield inode, sum(_SENT_AND_RECEIVED.unpack_from(info, _SENT_AT))
        offset += max(_ATTRIBUTE.size, _aligned(length))


def _aligned(length: int) -> int:
    return (length + 3) & ~3
