"""Check that the nodes reach each other on any port. Ranks communicate by the store alone.

Otherwise a group would fail after minutes, with an error that names no node.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import timedelta

from torch.distributed import PrefixStore, Store

from trainer.checks.preflight_nodes import Host, find_leaders, own_host
from trainer.contract.blame import Pair, blame
from trainer.contract.env import WorkerPlace
from trainer.contract.verdict import Outcome, Verdict

_CONNECT_S = 5.0
_ALL_S = timedelta(minutes=10)  # the slowest node's start, and its connections to all others
_AT_ONCE = 16
_HELLO = b"preflight"
_MOST_NAMED = 5


def check_ports(store: Store | None, place: WorkerPlace) -> tuple[Verdict, list[Host]]:
    """Every node listens, and all others connect to it. Returns the verdict and the hosts by rank, on every rank.

    `store` is None for a single rank.
    """
    own = own_host()
    if store is None:
        return Verdict(check="ports", outcome=Outcome.SKIPPED, sentence="a single rank needs none"), [own]
    prefixed = PrefixStore(f"preflight/a{place.attempt}-g{place.generation}", store)
    with _listening(own.address) as port:
        shared = _share(prefixed, place, "host", {**asdict(own), "port": port})
        hosts = [Host(name=str(each["name"]), address=str(each["address"]), node=str(each["node"])) for each in shared]
        leaders = find_leaders(hosts)
        missed: list[str] = []
        if place.rank in leaders:
            others = [
                (rank, hosts[rank].address, int(str(shared[rank]["port"]))) for rank in leaders if rank != place.rank
            ]
            missed = [hosts[rank].node for rank in _unreached(others)]
        answers = _share(prefixed, place, "missed", {"missed": missed})
    failed = [(hosts[rank].node, str(other)) for rank, each in enumerate(answers) for other in _names(each["missed"])]
    return judge_ports(failed, len(leaders)), hosts


def judge_ports(failed: Sequence[Pair], nodes: int) -> Verdict:
    """`failed` has a pair (node, node that it did not reach) for each failure."""
    if nodes == 1:
        return Verdict(check="ports", outcome=Outcome.SKIPPED, sentence="all ranks are on one node")
    if not failed:
        return Verdict(check="ports", outcome=Outcome.OK, sentence=f"each of {nodes} nodes reaches all others")
    detail = "; ".join(f"{one} does not reach {other}" for one, other in failed[:_MOST_NAMED])
    more = f"; and {len(failed) - _MOST_NAMED} more" if len(failed) > _MOST_NAMED else ""
    sentence = f"{detail}{more}: allow TCP connections between the nodes of a job on any port"
    return Verdict(check="ports", outcome=Outcome.FAIL, sentence=sentence, nodes=blame(failed))


def _share(store: Store, place: WorkerPlace, name: str, value: dict[str, object]) -> list[dict[str, object]]:
    """Exchange a value from each rank. Returns them by rank."""
    store.set(f"{name}/{place.rank}", json.dumps(value))
    keys = [f"{name}/{rank}" for rank in range(place.world_size)]
    store.wait(keys, _ALL_S)
    return [json.loads(text) for text in store.multi_get(keys)]


@contextmanager
def _listening(address: str) -> Iterator[int]:
    """Answer connections on a free port."""
    with socket.create_server((address, 0), backlog=1024) as listener:
        threading.Thread(target=_answer, args=(listener,), daemon=True).start()
        yield listener.getsockname()[1]
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts


def _answer(listener: socket.socket) -> None:
    with suppress(OSError):
        while True:
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                connection.settimeout(_CONNECT_S)
                connection.sendall(_HELLO)


def _unreached(others: Sequence[tuple[int, str, int]]) -> list[int]:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        reached = list(pool.map(lambda other: _reaches(other[1], other[2]), others))
    return [rank for (rank, _, _), good in zip(others, reached, strict=True) if not good]


def _reaches(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), timeout=_CONNECT_S) as connection:
            return connection.recv(len(_HELLO), socket.MSG_WAITALL) == _HELLO
    except OSError:
        return False


def _names(value: object) -> list[object]:
    return value if isinstance(value, list) else []
