"""Serve or reach the store at a rendezvous endpoint, and find this node's own address."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswerYet
from contextlib import suppress
from datetime import timedelta
from enum import Enum
from ipaddress import IPv6Address, ip_address
from pathlib import Path

from torch.distributed import Store, TCPStore

from trainer.elastic.rendezvous.epochs import Served
from trainer.elastic.rendezvous.failed import RendezvousFailed
from trainer.elastic.rendezvous.options import Timing

_PROBE_S, _CONNECTED_WITHIN_S, _LOOK_EVERY_S = 1.0, 2.0, 0.2
_SILENT_STORE_S = 30
# tcp(7): sent data must be acknowledged within this time. On an idle connection the kernel probes every five seconds.
_KEEP_ALIVE = {
    socket.TCP_USER_TIMEOUT: _SILENT_STORE_S * 1000,
    socket.TCP_KEEPIDLE: 5,
    socket.TCP_KEEPINTVL: 5,
    socket.TCP_KEEPCNT: _SILENT_STORE_S // 5,
}


class Answer(Enum):
    """The result of a probe of a store."""

    YES = "it answers"
    REFUSED = "nobody listens there"
    SILENT = "no answer"


def serve(served: Served, timing: Timing, *, is_required: bool) -> TCPStore | None:
    """Serve a store. Port 0: the system chooses one. Raises RendezvousFailed.

    None if the port is taken and the store is not required.
    """
    try:
        return TCPStore(served.address, served.port, is_master=True, wait_for_workers=False, timeout=_limit(timing))
    except RuntimeError as error:
        taken = "EADDRINUSE" in str(error) or "already in use" in str(error)
        if is_required or not taken:
            raise explain(served, str(error)) from error
        return None


def connect(served: Served, timing: Timing, key: str) -> Store | None:
    """Connect to a store. None if that fails or takes long, or if the store has no document under `key`.

    Torch connects in another thread. It would wait forever for a stopped process, whose kernel accepts connections. It
    would retry until its time-out if the host refuses, as it does once its process is killed.
    """
    found: Future[Store | None] = Future()
    threading.Thread(target=_connect, args=(found, served, timing, key), name="connect", daemon=True).start()
    began_s = time.monotonic()
    while True:
        with suppress(NoAnswerYet):
            return found.result(_LOOK_EVERY_S)
        if probe(served) is Answer.REFUSED:
            return None
        if time.monotonic() - began_s > _CONNECTED_WITHIN_S:
            hang_up(served)


def _connect(found: Future[Store | None], served: Served, timing: Timing, key: str) -> None:
    """The time-out is short until the store is connected: until then, torch tries to reach a silent host."""
    within = timedelta(seconds=_CONNECTED_WITHIN_S)
    try:
        store = TCPStore(served.address, served.port, is_master=False, wait_for_workers=False, timeout=within)
        store.set_timeout(_limit(timing))
        give_up_on_silence(served)
        found.set_result(store if store.check([key]) else None)
    except (RuntimeError, OSError):
        found.set_result(None)
    except BaseException as error:  # noqa: BLE001
        found.set_exception(error)  # for the thread that waits


def probe(served: Served) -> Answer:
    """Whether the store's port accepts a connection. Takes at most a second for each address of the host."""
    try:
        socket.create_connection((served.address, served.port), timeout=_PROBE_S).close()
    except ConnectionRefusedError:
        return Answer.REFUSED
    except (OSError, UnicodeError):  # UnicodeError: it is no host name
        return Answer.SILENT
    return Answer.YES


def give_up_on_silence(served: Served) -> None:
    """Make the connections to a store fail once its node has been silent for _SILENT_STORE_S.

    By default TCP retries for a quarter of an hour. If only the store's process is stopped, the node is not silent,
    because its kernel still answers.
    """
    for connection in _connections_to(served):
        for option, value in _KEEP_ALIVE.items():
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def hang_up(served: Served) -> None:
    """Shut down the connections to a store, so that a call that waits there fails."""
    for connection in _connections_to(served):
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


def _connections_to(served: Served) -> Iterator[socket.socket]:
    """This process's connections to a store, as duplicates that are closed at the end."""
    # Only sockets: for another descriptor socket() fails and leaves the duplicate open.
    for descriptor in filter(Path.is_socket, Path("/proc/self/fd").iterdir()):
        with suppress(OSError), socket.socket(fileno=os.dup(int(descriptor.name))) as connection:
            if connection.family in (socket.AF_INET, socket.AF_INET6) and _is_at(connection.getpeername(), served):
                yield connection


def _is_at(peer: tuple[str, int], served: Served) -> bool:
    """Whether a connection's peer is the store. A name is not resolved: then only the port is compared."""
    try:
        address = ip_address(served.address)
    except ValueError:
        return peer[1] == served.port
    found = ip_address(peer[0].partition("%")[0])
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return peer[1] == served.port and address in (found, mapped)


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


def explain(served: Served, cause: str) -> RendezvousFailed:
    """An error that names the port, for a store that cannot be served or reached."""
    endpoint = f"{served.address}:{served.port}"
    if "EADDRINUSE" in cause or "already in use" in cause:
        return RendezvousFailed(
            f"port {served.port} is already in use on this machine (rendezvous endpoint {endpoint}, EADDRINUSE)"
        )
    return RendezvousFailed(f"no rendezvous store answers at {endpoint}: {' '.join(cause.split())[:200]}")


def _limit(timing: Timing) -> timedelta:
    return timedelta(seconds=max(1.0, timing.read_s))
