"""Connections to a rendezvous store."""

from __future__ import annotations

import socket
import time
from pathlib import Path

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


def test_a_store_whose_host_died_after_the_probe_delays_the_search_for_seconds_only() -> None:
    """By default torch would connect again and again for a minute, and meanwhile another agent serves the store."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    began_s = time.monotonic()
    assert connect(Served(node="n", address="127.0.0.1", port=port), Timing(), "key") is None
    assert time.monotonic() - began_s < Timing.read_s / 2
