"""Load on a service: requests over keep-alive connections, one thread each, and what they cost the service."""

from __future__ import annotations

import http.client
import json
import os
import re
import statistics
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.control_plane.stored import SLOTS
from benchmarks.frame import Figures, render_number
from deploy.dev.databases import scratch_database
from deploy.dev.service import ThrowawayService
from orchestrator.store.upgrade import upgrade

COLUMNS = ("n", "a second", "p50", "p95", "p99", "refused")
_PASSES = re.compile(r"^orchestrator_pass_seconds_(sum|count)\{[^}]*\} (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    path: str
    method: str = "GET"
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


def post(path: str, document: object) -> Request:
    body = json.dumps(document).encode()
    return Request(path=path, method="POST", body=body, headers={"Content-Type": "application/json"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """`seconds` to the last byte, from sending or, in a paced run, from the time at which the request was due."""

    status: int
    seconds: float
    etag: str = ""


class Caller:
    """One connection."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=60)

    def ask(self, request: Request, since: float | None = None) -> Answer:
        began = time.perf_counter() if since is None else since
        self._connection.request(request.method, request.path, request.body, dict(request.headers))
        response = self._connection.getresponse()
        response.read()
        return Answer(
            status=response.status, seconds=time.perf_counter() - began, etag=response.headers.get("ETag", "")
        )

    def close(self) -> None:
        self._connection.close()


def drive(url: str, requests: Sequence[Request], *, connections: int = 1, rate: float | None = None) -> Figures:
    """Send all requests over `connections` connections, `rate` per second or as fast as answers arrive."""
    numbered, lock, began = iter(enumerate(requests)), threading.Lock(), time.perf_counter()

    def send(_: int) -> list[Answer]:
        caller, answers = Caller(url), list[Answer]()
        while True:
            with lock:
                number, request = next(numbered, (-1, None))
            if request is None:
                return answers
            due = None if rate is None else began + number / rate
            if due is not None:
                time.sleep(max(0.0, due - time.perf_counter()))
            answers.append(caller.ask(request, due))

    with ThreadPoolExecutor(connections) as pool:
        answers = [answer for some in pool.map(send, range(connections)) for answer in some]
    return summarize(answers, time.perf_counter() - began)


def summarize(answers: Sequence[Answer], elapsed_s: float) -> Figures:
    times_ms = sorted(1000 * answer.seconds for answer in answers)
    return {
        "n": len(answers),
        "per_s": round(len(answers) / elapsed_s, 1),
        "p50_ms": round(statistics.median(times_ms), 2),
        "p95_ms": round(times_ms[int(len(times_ms) * 0.95)], 2),
        "p99_ms": round(times_ms[int(len(times_ms) * 0.99)], 2),
        "refused": sum(answer.status >= 400 for answer in answers),
    }


def render_load(name: str, reported: Figures) -> list[str]:
    """A row under COLUMNS."""
    times = [render_number(reported[key], "ms") for key in ("p50_ms", "p95_ms", "p99_ms")]
    return [name, str(reported["n"]), render_number(reported["per_s"]), *times, str(reported["refused"])]


class Usage:
    """The service's CPU time and passes since this object was created."""

    def __init__(self, service: ThrowawayService) -> None:
        self._service = service
        self._began, self._cpu_s, self._passes = time.perf_counter(), self._read_cpu(), self._read_passes()

    def figures(self) -> Figures:
        cores = (self._read_cpu() - self._cpu_s) / (time.perf_counter() - self._began)
        now = self._read_passes()
        count, total_s = now["count"] - self._passes["count"], now["sum"] - self._passes["sum"]
        mean_ms = round(1000 * total_s / count, 2) if count else None
        return {"service_cores": round(cores, 4), "passes": int(count), "mean_pass_ms": mean_ms}

    def _read_cpu(self) -> float:
        fields = Path(f"/proc/{self._service.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # utime, stime: proc(5), fields 14, 15

    def _read_passes(self) -> dict[str, float]:
        with urllib.request.urlopen(f"{self._service.url}/metrics", timeout=60) as answer:
            found = dict.fromkeys(("sum", "count"), 0.0)
            for kind, value in _PASSES.findall(answer.read().decode()):
                found[kind] += float(value)
            return found


def read_memory(service: ThrowawayService) -> dict[str, float]:
    lines = Path(f"/proc/{service.pid}/status").read_text().splitlines()
    kb = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.startswith(("VmRSS", "VmHWM"))}
    return {"rss_mb": round(kb["VmRSS"] / 1024, 1), "peak_mb": round(kb["VmHWM"] / 1024, 1)}


@contextmanager
def fresh_database(server: str | None, folder: Path, *, version: str = "head") -> Iterator[str]:
    """The URL of a database with empty tables of a version: on the server, or a file in the folder."""
    if server is None:
        url = f"sqlite:///{folder / 'orchestrator.db'}"
        upgrade(url, version=version)
        yield url
        return
    with scratch_database(server) as url:
        upgrade(url, version=version)
        yield url


def serve(folder: Path, url: str) -> ThrowawayService:
    return ThrowawayService(folder / "root", {"ORCHESTRATOR_DATABASE_URL": url, "ORCHESTRATOR_LOCAL_SLOTS": str(SLOTS)})
