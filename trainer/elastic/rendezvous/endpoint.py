"""Serve or reach the store at a rendezvous endpoint, and find this node's own address."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from torch.distributed import Store, TCPStore

from trainer.elastic.health.awake import AwakeClock
from trainer.elastic.rendezvous.failed import RendezvousFailed
from trainer.elastic.rendezvous.options import Timing
from trainer.elastic.rendezvous.patience import Notice

_PROBE_EVERY_S, _PROBE_S = 0.1, 1.0
_SILENT_STORE_S = 30
# tcp(7): sent data must be acknowledged within this time. On an idle connection the kernel probes every five seconds.
_KEEP_ALIVE = {
    socket.TCP_USER_TIMEOUT: _SILENT_STORE_S * 1000,
    socket.TCP_KEEPIDLE: 5,
    socket.TCP_KEEPINTVL: 5,
    socket.TCP_KEEPCNT: _SILENT_STORE_S // 5,
}


def open_store(host: str, port: int, serves: bool | None, timing: Timing) -> tuple[Store, bool]:
    """Serve the store at HOST:PORT, or connect to it. Returns the store, and whether this process serves it.

    `serves` None: serve it if HOST is this machine. Raises RendezvousFailed.
    """
    if serves or (serves is None and is_here(host)):
        try:
            return TCPStore(host, port, is_master=True, wait_for_workers=False, timeout=_limit(timing)), True
        except RuntimeError as error:
            taken = "EADDRINUSE" in str(error) or "already in use" in str(error)
            if serves or not taken:
                raise _explain(host, port, str(error)) from error
    await_store(host, port, timing.read_s)
    try:
        store = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=_limit(timing))
    except RuntimeError as error:
        raise _explain(host, port, str(error)) from error
    give_up_on_silence(port)
    return store, False


def await_store(host: str, port: int, timeout_s: float) -> None:
    """Wait until the port accepts connections. Raises RendezvousFailed."""
    clock, notice = AwakeClock(2 * _PROBE_S), Notice(f"waiting for the rendezvous store at {host}:{port}")
    while (cause := _probe(host, port)) is not None:
        notice.give()
        if clock.now_s() > timeout_s:
            raise _explain(host, port, f"{cause}, waited {timeout_s:.0f} s")
        time.sleep(_PROBE_EVERY_S)


def give_up_on_silence(port: int) -> None:
    """Make the connections to the store at `port` fail once its node has been silent for _SILENT_STORE_S.

    By default TCP retries for a quarter of an hour. If only the store's process is stopped, the node is not silent,
    because its kernel still answers.
    """
    # Only sockets: for another descriptor socket() fails and leaves the duplicate open.
    for descriptor in filter(Path.is_socket, Path("/proc/self/fd").iterdir()):
        with suppress(OSError), socket.socket(fileno=os.dup(int(descriptor.name))) as connection:
            if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.getpeername()[1] == port:
                for option, value in _KEEP_ALIVE.items():
                    connection.setsockopt(socket.IPPROTO_TCP, option, value)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def is_here(host: str) -> bool:
    """Whether a name or address belongs to this machine, so that a socket can be bound to it."""
    with suppress(OSError):
        for family, kind, protocol, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
            with suppress(OSError), socket.socket(family, kind, protocol) as probe:
                probe.bind(address)
                return True
    return False


def find_address(host: str, port: int) -> str:
    """This node's address for other nodes: `host` if it is this node, else the local address on the route to it."""
    if is_here(host):
        return host
    with suppress(OSError):
        for family, _, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM):
            with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(address)
                return str(probe.getsockname()[0])
    return socket.getfqdn()


def _explain(host: str, port: int, cause: str) -> RendezvousFailed:
    """An error that names the port, for a store that cannot be served or reached."""
    if "EADDRINUSE" in cause or "already in use" in cause:
        return RendezvousFailed(
            f"port {port} is already in use on this machine (rendezvous endpoint {host}:{port}, EADDRINUSE)"
        )
    return RendezvousFailed(f"no rendezvous store answers at {host}:{port}: {' '.join(cause.split())[:200]}")


def _probe(host: str, port: int) -> str | None:
    """Why the port does not accept a connection. None if it does."""
    try:
        socket.create_connection((host, port), timeout=_PROBE_S).close()
    except OSError as error:
        return str(error)
    return None


def _limit(timing: Timing) -> timedelta:
    return timedelta(seconds=max(1.0, timing.read_s))
