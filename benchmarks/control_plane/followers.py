"""What open followers of a log and streams of events cost everybody else: requests and passes, beside them or alone."""

from __future__ import annotations

import multiprocessing
import re
import selectors
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.synchronize import Event
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from benchmarks.control_plane.load import Clients, Outcome, looks, render_get
from benchmarks.control_plane.stored import add_many
from benchmarks.control_plane.world import Usage, serve
from orchestrator.client import Client
from orchestrator.store.engine import Database

FOLLOWERS_LIMITS = {"p95_grows_by": 0.25, "passes_grow_by": 0.25}
STORED = 1_000
_CHATTER = "while :; do echo a line of a log that many follow; sleep 0.2; done"
_READS_PER_S = 20
_PATIENCE_S = 120.0
_PASSES = re.compile(r"^orchestrator_pass_seconds_(sum|count)\{[^}]*\} (\S+)$", re.MULTILINE)


def measure_followers(folder: Path, url: str, count: int, rounds: int, round_s: int) -> dict[str, object]:
    """`count` connections, half of them on the log of one job that writes five lines a second. Rounds alternate, so
    that what else the machine does hits both alike. The followers' own process shares the machine."""
    database = Database(url)
    ids = add_many(database, STORED)
    database.dispose()
    alone, beside = _Measured(), _Measured()
    with serve(folder, url) as service, Clients(service.url) as clients, Client(service.url) as client:
        job = client.submit({"name": "chatter", "run": {"command": ["sh", "-c", _CHATTER], "workdir": "/"}})
        _until_it_writes(client, job.id)
        paths = [f"/api/v1/jobs/{job.id}/logs?follow=true&tail=10", "/api/v1/events"]
        clients.run(partial(looks, ids, 50))
        for _ in range(rounds):
            alone.add(clients, service.url, service.pid, ids, round_s)
            with crowd(service.url, [paths[number % 2] for number in range(count)]):
                beside.add(clients, service.url, service.pid, ids, round_s)
    figures = {"alone": alone.figures(), f"beside {count}": beside.figures()}
    return {
        **figures,
        "p95_grows_by": beside.p95_s / alone.p95_s - 1,
        "passes_grow_by": beside.pass_s / alone.pass_s - 1,
    }


class _Measured:
    """Of several rounds: reads at a steady pace, and the supervisor's passes meanwhile."""

    def __init__(self) -> None:
        self._outcome = Outcome(elapsed_s=0.0)
        self._passes, self._passes_s, self._cpu_s = 0.0, 0.0, 0.0

    def add(self, clients: Clients, url: str, pid: int, ids: Sequence[str], round_s: int) -> None:
        usage, (count, total_s) = Usage(pid), _passes(url)
        outcome = clients.run(partial(looks, ids, round_s * _READS_PER_S), connections=8, rate=_READS_PER_S)
        count_after, total_after_s = _passes(url)
        self._passes += count_after - count
        self._passes_s += total_after_s - total_s
        self._cpu_s += usage.cpu_s()
        self._outcome.elapsed_s += outcome.elapsed_s
        self._outcome.latencies_s += outcome.latencies_s
        self._outcome.statuses += outcome.statuses

    @property
    def p95_s(self) -> float:
        latencies = sorted(self._outcome.latencies_s)
        return latencies[int(len(latencies) * 0.95)]

    @property
    def pass_s(self) -> float:
        return self._passes_s / self._passes

    def figures(self) -> dict[str, object]:
        cores = round(self._cpu_s / self._outcome.elapsed_s, 2)
        passes = {"passes": int(self._passes), "pass_ms": round(1000 * self.pass_s, 2)}
        return {**self._outcome.figures(), **passes, "service_cores": cores}


@contextmanager
def crowd(url: str, paths: Sequence[str]) -> Iterator[None]:
    """Hold each path open meanwhile and read it, in a process of its own. Raises RuntimeError if one was cut."""
    context = multiprocessing.get_context("spawn")
    ready, parts = context.Event(), urlsplit(url)
    address = (str(parts.hostname), int(parts.port or 80))
    process = context.Process(target=hold, args=(address, list(paths), ready), daemon=True)
    process.start()
    try:
        if not ready.wait(_PATIENCE_S):
            raise RuntimeError("not every stream has begun")
        yield
        if not process.is_alive():
            raise RuntimeError("a stream was cut")
    finally:
        process.terminate()
        process.join()


def hold(address: tuple[str, int], paths: Sequence[str], ready: Event) -> None:
    """Read all until the process is ended; returns when one is cut."""
    with selectors.DefaultSelector() as selector:
        for path in paths:
            connection = socket.create_connection(address)
            connection.sendall(render_get(path))
            selector.register(connection, selectors.EVENT_READ)
        silent = {key.fd for key in selector.get_map().values()}
        while True:
            for key, _ in selector.select():
                chunk = key.fileobj.recv(1 << 18)  # type: ignore[union-attr]
                if not chunk or (key.fd in silent and not chunk.startswith(b"HTTP/1.1 200 ")):
                    return
                silent.discard(key.fd)
            if not silent:
                ready.set()


def _until_it_writes(client: Client, job_id: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while "a line" not in client.logs(job_id):
        if time.monotonic() > deadline:
            raise RuntimeError(f"job {job_id} writes nothing: {client.job(job_id).reason}")
        time.sleep(0.2)


def _passes(url: str) -> tuple[float, float]:
    """How many there have been, and how long they took in all."""
    found = dict(_PASSES.findall(httpx.get(f"{url}/metrics").raise_for_status().text))
    return float(found["count"]), float(found["sum"])
