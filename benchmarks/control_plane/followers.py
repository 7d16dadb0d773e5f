"""What open streams cost everybody else: requests and passes of the supervisor, alone and beside them, in turns."""

from __future__ import annotations

import multiprocessing
import selectors
import socket
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.control_plane.load import Request, Usage, drive, serve
from benchmarks.control_plane.stored import add_many
from benchmarks.frame import Figures
from orchestrator.client import Client
from orchestrator.store.engine import Database

FOLLOWERS = 200
_ROUNDS = 4
_STORED = 1_000
_RATE_PER_S = 20
_CHATTER = "while :; do echo a line of a log that many follow; sleep 0.2; done"
_PATIENCE_S = 120.0


def measure_followers(folder: Path, url: str, round_s: int) -> Figures:
    """20 requests a second, in turns alone and beside 200 connections.

    Half of the connections follow the log of one job that writes five lines a second, half the stream of events. They
    are read by a process on the same machine. The figures are means of the rounds.
    """
    database = Database(url)
    ids = add_many(database, _STORED)
    database.dispose()
    rounds: dict[str, list[Figures]] = {"alone": [], f"beside {FOLLOWERS}": []}
    looks = [
        Request(path=f"/api/v1/jobs/{ids[number % _STORED]}" if number % 2 else "/api/v1/jobs?limit=50")
        for number in range(_RATE_PER_S * round_s)
    ]
    with serve(folder, url) as service, Client(service.url) as client:
        job = client.submit({"name": "chatter", "run": {"command": ["sh", "-c", _CHATTER], "workdir": "/"}})
        _wait_for_output(client, job.id)
        paths = [f"/api/v1/jobs/{job.id}/logs?follow=true&tail=10", "/api/v1/events"]
        drive(service.url, looks[:50])
        for _ in range(_ROUNDS):
            for name, count in zip(rounds, (0, FOLLOWERS), strict=True):
                with _crowd(service.url, [paths[number % 2] for number in range(count)]):
                    usage = Usage(service)
                    met = drive(service.url, looks, connections=8, rate=_RATE_PER_S)
                    rounds[name].append({**met, **usage.figures()})
    return {name: _add_up(each) for name, each in rounds.items()}


def _add_up(rounds: Sequence[Figures]) -> Figures:
    counts = {key: sum(each[key] for each in rounds) for key in ("n", "refused", "passes")}
    names = ("per_s", "p50_ms", "p95_ms", "p99_ms", "service_cores", "mean_pass_ms")
    return counts | {key: round(statistics.mean(each[key] for each in rounds), 2) for key in names}


@contextmanager
def _crowd(url: str, paths: Sequence[str]) -> Iterator[None]:
    """Hold each path open meanwhile. Raises RuntimeError if a stream was cut."""
    context = multiprocessing.get_context("spawn")
    ready, parts = context.Event(), urlsplit(url)
    address = (str(parts.hostname), int(parts.port or 80))
    process = context.Process(target=_hold, args=(address, list(paths), ready), daemon=True)
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


def _hold(address: tuple[str, int], paths: Sequence[str], ready: Event) -> None:
    """Read all streams until this process is ended. Returns when one is cut."""
    with selectors.DefaultSelector() as selector:
        for path in paths:
            connection = socket.create_connection(address)
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {address[0]}\r\n\r\n".encode())
            selector.register(connection, selectors.EVENT_READ)
        silent = {key.fd for key in selector.get_map().values()}
        while True:
            if not silent:
                ready.set()
            for key, _ in selector.select():
                chunk = key.fileobj.recv(1 << 18)  # type: ignore[union-attr]
                if not chunk or (key.fd in silent and not chunk.startswith(b"HTTP/1.1 200 ")):
                    return
                silent.discard(key.fd)


def _wait_for_output(client: Client, job_id: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while "a line" not in client.logs(job_id):
        if time.monotonic() > deadline:
            raise RuntimeError(f"job {job_id} writes nothing: {client.job(job_id).reason}")
        time.sleep(0.2)
