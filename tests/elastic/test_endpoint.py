"""Connections to a rendezvous store."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from torch.distributed import TCPStore

from tests.descriptors import count_descriptors
from trainer.elastic.rendezvous.endpoint import connect, give_up_on_silence
from trainer.elastic.rendezvous.epochs import Served
from trainer.elastic.rendezvous.options import Timing


def test_a_silent_store_is_given_up_on_and_no_descriptor_is_left_open(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, (tmp_path / "file").open("w"):
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as connection:
            before = count_descriptors()
            give_up_on_silence(Served(node="", address="127.0.0.1", port=port))
            assert count_descriptors() == before
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000


CONNECTS = """
import sys
from trainer.elastic.rendezvous import endpoint
from trainer.elastic.rendezvous.epochs import Served
from trainer.elastic.rendezvous.options import Timing
endpoint._CONNECTED_WITHIN_S = 3600.0
assert endpoint.connect(Served(node="n", address="127.0.0.1", port=int(sys.argv[1])), Timing(), "key") is None
"""


def test_a_store_whose_host_died_after_the_probe_does_not_delay_the_search() -> None:
    """Torch connects again and again until its time-out, and meanwhile another agent serves the next store."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    # In a process of its own, with which torch's attempts end.
    subprocess.run([sys.executable, "-c", CONNECTS, str(port)], check=True, timeout=300)


def test_a_store_that_is_slow_to_answer_is_connected() -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store.set("key", "value")
    with _delayed(store.port, 0.7) as port:
        found = connect(Served(node="n", address="127.0.0.1", port=port), Timing(), "key")
        assert found is not None
        assert found.get("key") == b"value"


@contextmanager
def _delayed(port: int, seconds: float) -> Iterator[int]:
    """A port that leads to another one, and passes on the first bytes of a connection after a while."""

    def pump(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)

    def serve() -> None:
        with suppress(OSError):
            while True:
                client, _ = server.accept()
                onward = socket.create_connection(("127.0.0.1", port))
                opened.extend((client, onward))
                threading.Thread(target=pump, args=(onward, client), daemon=True).start()
                threading.Timer(seconds, pump, (client, onward)).start()

    opened: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, daemon=True).start()
        try:
            yield server.getsockname()[1]
        finally:
            for each in opened:
                each.close()
