"""A relay that adds network delay to a PostgreSQL on a Unix socket, for machines without tc-netem(8).

    python -m benchmarks.control_plane.network_delay SOCKET SECONDS

It prints its port. SECONDS is the delay of each direction.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

from orchestrator.store.engine import parse_url

_MOST_BYTES = 1 << 18
_SOCKET = ".s.PGSQL.5432"


@contextmanager
def add_delay(server: str, delay_ms: float) -> Iterator[str]:
    """Yield a TCP address of a server on a Unix socket. A round trip takes `delay_ms` longer."""
    path = Path(str(parse_url(server).query["host"])) / _SOCKET
    command = [sys.executable, "-m", __spec__.name, str(path), str(delay_ms / 2000)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as relay:
        try:
            assert relay.stdout is not None
            port = int(relay.stdout.readline())
            moved = parse_url(server).set(drivername="postgresql", host="127.0.0.1", port=port, query={})
            yield moved.render_as_string(hide_password=False)
        finally:
            relay.kill()


def main() -> None:
    path, delay_s = sys.argv[1], float(sys.argv[2])
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            near, _ = listener.accept()
            near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            far = socket.socket(socket.AF_UNIX)
            far.connect(path)
            for source, sink in ((near, far), (far, near)):
                Thread(target=_pass_on, args=(source, sink, delay_s), daemon=True).start()


def _pass_on(source: socket.socket, sink: socket.socket, delay_s: float) -> None:
    waiting: SimpleQueue[tuple[float, bytes]] = SimpleQueue()
    Thread(target=_send, args=(waiting, sink), daemon=True).start()
    data = b"."
    while data:
        try:
            data = source.recv(_MOST_BYTES)
        except OSError:
            data = b""
        waiting.put((time.monotonic() + delay_s, data))


def _send(waiting: SimpleQueue[tuple[float, bytes]], sink: socket.socket) -> None:
    with suppress(OSError):
        while True:
            due, data = waiting.get()
            time.sleep(max(0.0, due - time.monotonic()))
            if not data:
                sink.shutdown(socket.SHUT_WR)
                return
            sink.sendall(data)


if __name__ == "__main__":
    main()
