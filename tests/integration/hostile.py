"""A real service, checks of its memory, and hostile connections to it."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from deploy.dev.service import ThrowawayService

TOKEN = "first-admin-0123456789abcdef"
ADMIN = {"Authorization": f"Bearer {TOKEN}"}
PATIENCE_S = 300.0  # how long a test waits for an answer; the service promises no time
MIB = 1024 * 1024
MOST_BYTES = 300 * MIB

_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)
_STATUS = re.compile(rb"^HTTP/1\.1 (\d{3}) ")


@contextlib.contextmanager
def guarded(root: Path, **settings: str) -> Iterator[ThrowawayService]:
    """A service that requires tokens."""
    with ThrowawayService(root, {"ORCHESTRATOR_TOKEN": TOKEN, **settings}) as service:
        httpx.get(f"{service.url}/api/v1/jobs", headers=ADMIN, timeout=PATIENCE_S).raise_for_status()
        yield service


def reset_peak(pid: int) -> None:
    """proc(5), /proc/PID/clear_refs."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def peak_bytes(pid: int) -> int:
    """The highest resident memory since the last reset."""
    found = _PEAK.search(Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


@dataclass
class Watch:
    """The answers to a caller with a token during an attack."""

    statuses: list[int] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def asking(self, url: str) -> Iterator[None]:
        ends = threading.Event()
        thread = threading.Thread(target=self._ask, args=(url, ends))
        thread.start()
        try:
            yield
        finally:
            ends.set()
            thread.join(2 * PATIENCE_S)

    def _ask(self, url: str, ends: threading.Event) -> None:
        with httpx.Client(base_url=url, headers=ADMIN, timeout=PATIENCE_S) as client:
            while True:
                try:
                    self.statuses.append(client.get("/api/v1/jobs").status_code)
                except httpx.HTTPError as error:
                    self.failures.append(repr(error))
                if ends.wait(0.02):
                    return

    def has_heard(self, more: int) -> Callable[[], bool]:
        """Return a condition: so many answers have arrived since this call."""
        before = len(self.statuses)
        return lambda: len(self.statuses) >= before + more or bool(self.failures)


@contextlib.contextmanager
def withstanding(service: ThrowawayService, what: str) -> Iterator[Watch]:
    """Check that another caller gets answers meanwhile and that memory stays low. Prints the figures."""
    watch = Watch()
    reset_peak(service.pid)
    before = peak_bytes(service.pid)
    with watch.asking(service.url):
        yield watch
    peak = peak_bytes(service.pid)
    print(f"{what}: peak {peak // MIB} MiB (before {before // MIB}), {len(watch.statuses)} answers meanwhile")
    assert set(watch.statuses) == {200}
    assert watch.failures == []
    assert peak < MOST_BYTES, what


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def send(url: str, *parts: bytes) -> int | None:
    """Send one request on its own connection. Returns the status, None if the connection was closed without one."""
    async with connected(url) as (reader, writer):
        with contextlib.suppress(ConnectionError):
            for part in parts:
                writer.write(part)
                await writer.drain()
        with contextlib.suppress(ConnectionError):
            found = _STATUS.match(await asyncio.wait_for(reader.readline(), PATIENCE_S))
            return None if found is None else int(found[1])
    return None


async def hold(url: str, requests: Sequence[Sequence[bytes]], until: Callable[[], bool], drop: bytes = b"") -> None:
    """Send each request on a connection that stays open, with one more byte now and then, until the condition holds."""

    async def hold_one(parts: Sequence[bytes]) -> None:
        async with connected(url) as (_, writer):
            with contextlib.suppress(ConnectionError):
                for part in parts:
                    writer.write(part)
                    await writer.drain()
            while not until():
                await asyncio.sleep(0.05)
                with contextlib.suppress(ConnectionError):
                    writer.write(drop)

    await asyncio.wait_for(asyncio.gather(*(hold_one(parts) for parts in requests)), PATIENCE_S)


async def send_all(url: str, requests: Sequence[Sequence[bytes]]) -> list[int | None]:
    """Send all at the same time."""
    return list(await asyncio.gather(*(send(url, *parts) for parts in requests)))


def head(method: str, path: str, *lines: str, length: int | None = None) -> bytes:
    own = ["Host: localhost", "Connection: close", *lines]
    if length is not None:
        own.append(f"Content-Length: {length}")
    return "\r\n".join([f"{method} {path} HTTP/1.1", *own, "", ""]).encode()


def post(path: str, body: bytes, *lines: str, kind: str = "application/json") -> list[bytes]:
    """A request in two parts."""
    return [head("POST", path, f"Content-Type: {kind}", *lines, length=len(body)), body]
