"""A UDP socket that never blocks, and the ICMP errors that its datagrams caused. Linux."""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address
from typing import NamedTuple

# linux/in.h, linux/in6.h and linux/errqueue.h; see ip(7) and ipv6(7)
_IP_RECVERR, _IPV6_RECVERR = 11, 25
_ORIGIN_ICMP, _ORIGIN_ICMP6 = 2, 3
_EXTENDED_ERROR = struct.Struct("=IBBBBII")  # errno, origin, type, code, padding, info, data
_MAPPED = bytes(10) + b"\xff\xff"  # RFC 4291, section 2.5.5.2

_RECEIVE_BUFFER_BYTES = 1 << 20  # the kernel may allow less
_LONGEST_BYTES = 2048
MOST_AT_ONCE = 20_000
_SENDS = 3


class Address(NamedTuple):
    """An IPv6 address in which IPv4 is mapped, or an IPv4 address if this machine has no IPv6."""

    ip: str
    port: int
    scope: int = 0


class LinkSocket:
    """A socket on a free port of all addresses, of IPv6 and IPv4 if the machine has IPv6."""

    def __init__(self) -> None:
        self._socket = _open()
        self._socket.setblocking(False)
        with suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
        for level, option in ((socket.IPPROTO_IP, _IP_RECVERR), (socket.IPPROTO_IPV6, _IPV6_RECVERR)):
            with suppress(OSError):
                self._socket.setsockopt(level, option, 1)
        self.port: int = self._socket.getsockname()[1]

    @property
    def has_ipv6(self) -> bool:
        return self._socket.family == socket.AF_INET6

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def resolve(self, host: str, port: int, *, is_numeric: bool) -> Address | None:
        """The address of a host. None if it has none. Blocks, unless only numbers are resolved."""
        flags = socket.AI_NUMERICHOST if is_numeric else 0
        with suppress(OSError, ValueError):
            for family, _, _, _, found in socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM, flags=flags):
                if family == socket.AF_INET:
                    return self.unpack(_MAPPED + IPv4Address(found[0]).packed, port)
                if family == socket.AF_INET6 and self.has_ipv6 and len(found) == 4:
                    return _address(found)
        return None

    def unpack(self, ip: bytes, port: int) -> Address | None:
        """The address for an IP address of 16 bytes. None if this socket cannot send there."""
        if not port:
            return None
        if self.has_ipv6:
            return Address(socket.inet_ntop(socket.AF_INET6, ip), port)
        return Address(str(IPv4Address(ip[12:])), port) if ip.startswith(_MAPPED) else None

    def pack(self, address: Address) -> bytes:
        return IPv6Address(address.ip).packed if self.has_ipv6 else _MAPPED + IPv4Address(address.ip).packed

    def send(self, data: bytes, to: Address) -> None:
        """Send a datagram. It can be lost, here too."""
        target = (to.ip, to.port, 0, to.scope) if self.has_ipv6 else (to.ip, to.port)
        for _ in range(_SENDS):
            try:
                self._socket.sendto(data, target)
            except BlockingIOError:
                return
            except OSError:  # perhaps of an earlier datagram to another host, and this one was not sent (udp(7))
                continue
            return

    def receive(self) -> Iterator[tuple[bytes, Address]]:
        """The datagrams that have arrived, at most MOST_AT_ONCE. With fewer there are no more."""
        for _ in range(MOST_AT_ONCE):
            try:
                data, sender = self._socket.recvfrom(_LONGEST_BYTES)
            except BlockingIOError:
                return
            except OSError:  # of a datagram sent earlier
                continue
            yield data, _address(sender)

    def refusals(self) -> Iterator[Address]:
        """Addresses whose own kernel has reported that nobody listens there."""
        for _ in range(MOST_AT_ONCE):
            try:
                _, notes, _, to = self._socket.recvmsg(0, 512, socket.MSG_ERRQUEUE)
            except OSError:
                return
            for level, kind, note in notes:
                if (level, kind) in ((socket.IPPROTO_IP, _IP_RECVERR), (socket.IPPROTO_IPV6, _IPV6_RECVERR)):
                    address = _address(to)
                    if _refuses(note, address):
                        yield address


def _open() -> socket.socket:
    if socket.has_ipv6:
        with suppress(OSError):
            opened = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
            try:
                opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                opened.bind(("::", 0))
            except OSError:
                opened.close()
                raise
            return opened
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    opened.bind(("", 0))
    return opened


def _address(found: tuple[str, int] | tuple[str, int, int, int]) -> Address:
    return Address(found[0].partition("%")[0], found[1], found[3] if len(found) == 4 else 0)


def _refuses(note: bytes, to: Address) -> bool:
    """Whether the host `to` reported a closed port itself. A router or firewall may report it for a living host."""
    if len(note) < _EXTENDED_ERROR.size + 8:
        return False
    number, origin, *_ = _EXTENDED_ERROR.unpack_from(note)
    if number != errno.ECONNREFUSED or origin not in (_ORIGIN_ICMP, _ORIGIN_ICMP6):
        return False
    return _offender(note[_EXTENDED_ERROR.size :]) == to.ip


def _offender(sockaddr: bytes) -> str | None:
    """The IP address in a sockaddr_in or sockaddr_in6."""
    (family,) = struct.unpack_from("=H", sockaddr)
    if family == socket.AF_INET:
        return socket.inet_ntop(socket.AF_INET, sockaddr[4:8])
    if family == socket.AF_INET6 and len(sockaddr) >= 24:
        return socket.inet_ntop(socket.AF_INET6, sockaddr[8:24])
    return None
