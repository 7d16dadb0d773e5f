"""Connections to a rendezvous store."""

from __future__ import annotations

import socket
from pathlib import Path

from trainer.elastic.rendezvous.endpoint import give_up_on_silence
from trainer.elastic.rendezvous.epochs import Served


def test_a_silent_store_is_given_up_on_and_no_descriptor_is_left_open(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, (tmp_path / "file").open("w"):
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as connection:
            before = open_descriptors()
            give_up_on_silence(Served(node="", address="127.0.0.1", port=port))
            assert open_descriptors() == before
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
