"""Foreign entries in an attempt's folder, and a folder that fails: agents go on, or say what is wrong."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trainer.elastic.records.claim import create_once
from trainer.elastic.rendezvous.epochs import Epochs, Served
from trainer.elastic.rendezvous.failed import RendezvousFailed
from trainer.elastic.rendezvous.options import Timing
from trainer.elastic.rendezvous.round_document import Limits, Member, Round
from trainer.elastic.rendezvous.store_thread import StoreThread
from trainer.elastic.rendezvous.succession import Connection, Endpoint, Succession

OURS = Served(node="a", address="host-a", port=1)
ME = Member(node="a", node_rank=0, address="127.0.0.1", workers=1)


def entry(**fields: Any) -> str:
    return json.dumps({"node": "b", "address": "host-b", "port": 2, "nodes": [], "closed": "", **fields})


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


FOREIGN: dict[str, Callable[[Path], Any]] = {
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
    "a socket": lambda path: make_socket(path),
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path: path.symlink_to(path),
    "deep JSON": lambda path: path.write_text("[" * 100_000),
    "no object": lambda path: path.write_text("7"),
    "a wrong address": lambda path: path.write_text(entry(address=5)),
    "a wrong port": lambda path: path.write_text(entry(port="x")),
    "an impossible port": lambda path: path.write_text(entry(port=1 << 20)),
    "wrong nodes": lambda path: path.write_text(entry(nodes=5)),
    "a missing field": lambda path: path.write_text('{"node": "b"}'),
    "a large file": lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_WRONLY), 1 << 30),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", FOREIGN)
def test_a_foreign_entry_is_no_epoch_and_the_next_one_can_be_claimed(name: str, tmp_path: Path) -> None:
    agent = Epochs(tmp_path)
    assert agent.claim(OURS, above=0) == 1
    FOREIGN[name](tmp_path / "store-9")
    assert agent.newest() == (1, OURS)
    assert agent.claim(OURS, above=1, holder=OURS) == 10


@pytest.mark.parametrize("name", ["store-09", "store-\u0663", "store-", "store-x", "store-" + "9" * 200])
def test_a_foreign_name_is_no_epoch(name: str, tmp_path: Path) -> None:
    agent = Epochs(tmp_path)
    assert agent.claim(OURS, above=0) == 1
    (tmp_path / name).touch()
    assert agent.newest() == (1, OURS)
    assert agent.claim(OURS, above=1, holder=OURS) == 2


def test_an_epoch_with_the_names_of_many_nodes_is_read(tmp_path: Path) -> None:
    agent = Epochs(tmp_path)
    large = replace(OURS, nodes=[f"{number:040}" for number in range(30_000)])
    assert agent.claim(large, above=0) == 1
    found = agent.newest()
    assert found is not None
    assert found[1].nodes == large.nodes


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["a pipe", "a folder", "a link to a device"])
def test_a_claim_whose_name_is_taken_by_something_else_is_an_error(name: str, tmp_path: Path) -> None:
    FOREIGN[name](tmp_path / "claim")
    with pytest.raises(OSError, match="no regular file"):
        create_once(tmp_path / "claim", "token")


def test_a_torn_file_of_a_clock_that_is_ahead_holds_nobody_up_for_long(tmp_path: Path) -> None:
    (tmp_path / "store-1").write_text("{")
    os.utime(tmp_path / "store-1", (4e9, 4e9))
    times = iter([100.0, 109.0, 110.0])
    agent = Epochs(tmp_path, monotonic=lambda: next(times))
    for _ in range(2):
        with pytest.raises(OSError, match="is being written"):
            agent.newest()
    assert agent.newest() is None


class _Folder:
    """The epochs in a folder that fails."""

    def newest(self) -> None:
        raise PermissionError("store-1: Operation not permitted")


def _succession(epochs: Any) -> Succession:
    timing = Timing(read_s=1.0, join_s=0.3, patience_s=1.0)
    endpoint = Endpoint(host="127.0.0.1", port=1, serves=False)
    observer: Any = None
    return Succession(endpoint, "run", ME, timing, observer, epochs)


def test_a_folder_that_fails_is_the_reason_when_no_store_follows() -> None:
    store: Any = None
    lost = Connection(store=store, served=OURS, epoch=1)
    with pytest.raises(RendezvousFailed, match=r"host-a:1 does not answer.*Operation not permitted"):
        _succession(_Folder()).replace(lost, Round())


def test_an_unexpected_error_of_the_thread_is_the_agents_cause() -> None:
    class _Broken(Succession):
        def open(self) -> Connection:
            raise MemoryError("no memory for a store")

    observer: Any = None
    broken = _Broken(Endpoint(host="127.0.0.1", port=1, serves=False), "run", ME, Timing(), observer, None)
    thread = StoreThread(broken, "a", Limits(min_nodes=1, max_nodes=2))
    thread.start_once()
    with pytest.raises(RendezvousFailed, match="MemoryError: no memory for a store"):
        thread.look(60)
