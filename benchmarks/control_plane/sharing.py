"""Several services on one PostgreSQL: what they accept and list together, and how they share clusters."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from benchmarks.control_plane.load import Request, Usage, drive, fresh_database
from benchmarks.control_plane.stored import SLOTS, add_queue
from benchmarks.frame import Figures, render_number
from deploy.dev.service import ThrowawayService
from orchestrator.store.engine import Database
from orchestrator.store.lease_store import SqlLeaseStore

SHARED_COLUMNS = (
    *("n", "a second, in all", "p95 of the slowest", "passes a second, in all"),
    *("cores of the services", "clusters of each"),
)
CLUSTERS = ("c0", "c1", "c2", "c3")
_CONNECTIONS = 8  # to each service
_SHARED_S = 120.0


def measure_sharing(server: str, folder: Path, services: int, submissions: Sequence[Request], lists: int) -> Figures:
    """Drive each of `services` services with its part of the requests, all at the same time."""
    config = folder / "orchestrator.toml"
    config.write_text("".join(f'[clusters.{name}]\nbackend = "local"\n' for name in CLUSTERS))
    with fresh_database(server, folder) as url, ExitStack() as stack:
        with Database(url) as database:
            for name in CLUSTERS:
                add_queue(database, name)
        settings = {
            "ORCHESTRATOR_DATABASE_URL": url,
            "ORCHESTRATOR_CONFIG": str(config),
            "ORCHESTRATOR_LOCAL_SLOTS": str(SLOTS),
        }
        running = [
            stack.enter_context(ThrowawayService(folder / "root", settings, name=f"service-{number}"))
            for number in range(services)
        ]
        held = _await_shares(url, services)
        parts: dict[str, list[Sequence[Request]]] = {
            "submissions": [submissions[number::services] for number in range(services)],
            "lists": [[Request(path="/api/v1/jobs?limit=50")] * (lists // services) for _ in range(services)],
        }
        return {name: {**_drive(running, part), "held": held} for name, part in parts.items()}


def _await_shares(url: str, services: int) -> list[int]:
    """Wait until the services share the clusters evenly. Returns how many clusters each service supervises."""
    deadline = time.monotonic() + _SHARED_S
    least, more = divmod(len(CLUSTERS), services)
    even = [least] * (services - more) + [least + 1] * more
    with Database(url) as database:
        leases = SqlLeaseStore(database)
        while True:
            found = [each.lease for each in leases.leases() if each.lease.cluster in CLUSTERS and not each.expired]
            held = sorted(Counter(lease.holder for lease in found).values())
            if [0] * (services - len(held)) + held == even:
                return held
            assert time.monotonic() < deadline, held
            time.sleep(0.1)


def _drive(running: Sequence[ThrowawayService], parts: Sequence[Sequence[Request]]) -> Figures:
    usages, began = [Usage(service) for service in running], time.perf_counter()
    with ThreadPoolExecutor(len(running)) as pool:
        met = list(pool.map(lambda one, part: drive(one.url, part, connections=_CONNECTIONS), running, parts))
    elapsed_s = time.perf_counter() - began
    count, used = sum(each["n"] for each in met), [usage.figures() for usage in usages]
    return {
        "n": count,
        "per_s": round(count / elapsed_s, 1),
        "p95_ms": max(each["p95_ms"] for each in met),
        "refused": sum(each["refused"] for each in met),
        "passes_per_s": round(sum(each["passes"] for each in used) / elapsed_s, 1),
        "cores": round(sum(each["service_cores"] for each in used), 2),
    }


def render_sharing(name: str, met: Figures) -> list[str]:
    """A row under SHARED_COLUMNS."""
    held = " and ".join(map(str, met["held"]))
    numbers = [
        *(render_number(met["per_s"]), render_number(met["p95_ms"], "ms")),
        *(render_number(met["passes_per_s"]), render_number(met["cores"])),
    ]
    return [name, str(met["n"]), *numbers, held]
