"""A lean HTTP client: prepared requests over keep-alive sockets, one event loop in a process of its own."""

from __future__ import annotations

import json
import multiprocessing
import selectors
import socket
import statistics
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from urllib.parse import urlsplit

Source = Callable[[], Iterator[bytes]]  # picklable; makes the requests in the client's process
_MS = 1000.0


@dataclass
class Outcome:
    """What a run of requests met. Latencies run from sending, in a paced run from the due time, to the last byte."""

    elapsed_s: float
    latencies_s: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)

    def figures(self) -> dict[str, float | int]:
        latencies = sorted(self.latencies_s)
        refused = sum(count for status, count in self.statuses.items() if not 200 <= status < 300)
        return {
            "n": len(latencies),
            "refused": refused,
            "per_s": round(len(latencies) / self.elapsed_s, 1),
            "p50_ms": round(statistics.median(latencies) * _MS, 2),
            "p95_ms": round(latencies[int(len(latencies) * 0.95)] * _MS, 2),
            "p99_ms": round(latencies[int(len(latencies) * 0.99)] * _MS, 2),
        }


class Clients:
    """Processes that send. Each `start` runs beside the others."""

    def __init__(self, url: str, processes: int = 2) -> None:
        parts = urlsplit(url)
        self._address = (str(parts.hostname), int(parts.port or 80))
        self._pool = ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn"))

    def __enter__(self) -> Clients:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def start(self, source: Source, *, connections: int = 1, rate: float | None = None) -> Future[Outcome]:
        """Send all of `source` over so many connections; `rate` requests a second, or as fast as answers come."""
        return self._pool.submit(drive, self._address, source, connections, rate)

    def run(self, source: Source, *, connections: int = 1, rate: float | None = None) -> Outcome:
        return self.start(source, connections=connections, rate=rate).result()


def render_get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\n\r\n".encode()


def render_post(path: str, document: object) -> bytes:
    body = json.dumps(document).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


def looks(ids: Sequence[str], count: int) -> Iterator[bytes]:
    """Lists and shows by turns."""
    for number in range(count):
        yield render_get("/api/v1/jobs?limit=50" if number % 2 else f"/api/v1/jobs/{ids[number % len(ids)]}")


def ask(url: str, path: str) -> tuple[int, dict[str, object]]:
    """One request, its answer's JSON."""
    parts = urlsplit(url)
    with socket.create_connection((str(parts.hostname), int(parts.port or 80))) as connection:
        connection.sendall(render_get(path))
        answer = _Answer()
        while not answer.take(connection.recv(1 << 18)):
            pass
    return answer.status, json.loads(answer.body)


def drive(address: tuple[str, int], source: Source, connections: int, rate: float | None) -> Outcome:
    """Keep every connection busy with one request at a time until the source is dry and all is answered."""
    requests = list(source())  # made before the clock starts
    requests.reverse()
    total, outcome = len(requests), Outcome(0.0)
    everyone = [socket.create_connection(address) for _ in range(connections)]
    idle = deque(everyone)  # used in turn: the service closes a connection that nobody used for five seconds
    for connection in everyone:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with selectors.DefaultSelector() as selector:
        started = time.perf_counter()
        sent = 0
        while len(outcome.latencies_s) < total:
            now = time.perf_counter()
            while idle and requests and (rate is None or started + sent / rate <= now):
                connection = idle.popleft()
                begun = now if rate is None else started + sent / rate
                connection.sendall(requests.pop())
                sent += 1
                selector.register(connection, selectors.EVENT_READ, (begun, _Answer()))
                now = time.perf_counter()
            due = None if rate is None or not idle or not requests else max(0.0, started + sent / rate - now)
            for key, _ in selector.select(due):
                begun, answer = key.data
                if answer.take(key.fileobj.recv(1 << 18)):  # type: ignore[union-attr]
                    outcome.latencies_s.append(time.perf_counter() - begun)
                    outcome.statuses[answer.status] += 1
                    selector.unregister(key.fileobj)
                    idle.append(key.fileobj)  # type: ignore[arg-type]
        outcome.elapsed_s = time.perf_counter() - started
    for connection in everyone:
        connection.close()
    return outcome


class _Answer:
    """An HTTP/1.1 answer with a Content-Length, while it arrives."""

    def __init__(self) -> None:
        self._received = b""
        self._awaited = -1
        self.status = 0
        self.body = b""

    def take(self, chunk: bytes) -> bool:
        """Whether the answer is whole now. Raises ConnectionError when the service hung up."""
        if not chunk:
            raise ConnectionError("the service closed the connection")
        self._received += chunk
        if self._awaited < 0:
            head, end, _ = self._received.partition(b"\r\n\r\n")
            if not end:
                return False
            self.status = int(head[9:12])
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            self._awaited = len(head) + 4 + int(length[15:])
        if len(self._received) < self._awaited:
            return False
        self.body = self._received[self._received.index(b"\r\n\r\n") + 4 :]
        return True
