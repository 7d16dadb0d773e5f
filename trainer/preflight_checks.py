"""The checks of a preflight. Each is collective and gives every rank the same verdict."""

from __future__ import annotations

import hashlib
import os
import socket
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from trainer.agreement import on_every_rank
from trainer.contract.env import WorkerPlace
from trainer.contract.verdict import Outcome, Ping, Verdict, bus_bandwidth, clock_offset, judge_clocks
from trainer.snapshot import sync_directory
from trainer.waits import Waits

_PINGS = 8
_FILE_BYTES = 4 * 1024 * 1024
_VISIBLE_WITHIN_S = 30.0  # half of an NFS client's longest attribute cache (nfs(5), acdirmax)
_REDUCED_BYTES = 64 * 1024 * 1024
_REDUCTIONS = 5


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What the checks work on. `scratch` is a folder on the snapshots' storage, empty at first."""

    place: WorkerPlace
    device: torch.device
    scratch: Path
    waits: Waits


@dataclass(frozen=True, kw_only=True)
class Host:
    """A node as one of its ranks tells of it; `address` is the one by which it reaches the first node."""

    name: str
    address: str


def check_names(around: Surroundings) -> Verdict:
    """Every node finds every other by name, and its name by its address."""
    hosts = on_every_rank(_own_host, around.waits)
    nodes = sorted({(host.name, host.address) for host in hosts})
    found = on_every_rank(lambda: _names_problems(nodes), around.waits)
    failures = sorted({problem for failures, _ in found for problem in failures})
    doubts = sorted({problem for _, doubts in found for problem in doubts})
    if failures and len(nodes) > 1:
        return Verdict(check="names", outcome=Outcome.FAIL, sentence="; ".join(failures))
    if failures or doubts:
        return Verdict(check="names", outcome=Outcome.WARN, sentence="; ".join(failures + doubts))
    names = ", ".join(name for name, _ in nodes[:4]) + (f" and {len(nodes) - 4} more" if len(nodes) > 4 else "")
    return Verdict(check="names", outcome=Outcome.OK, sentence=f"found in both directions: {names}")


def _own_host() -> Host:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((os.environ.get("MASTER_ADDR", "127.0.0.1"), 9))  # sends nothing: it only picks a route
            address = str(probe.getsockname()[0])
        except OSError:
            address = "127.0.0.1"
    return Host(name=socket.gethostname(), address=address)


def _names_problems(nodes: list[tuple[str, str]]) -> tuple[list[str], list[str]]:
    """What keeps nodes apart, and what is only odd, as this rank sees it."""
    failures, doubts, own = [], [], socket.gethostname()
    for name, address in nodes:
        try:
            addresses = {str(entry[4][0]) for entry in socket.getaddrinfo(name, None)}
        except OSError as error:
            failures.append(f"{own} does not know {name}: {error.strerror}")
            continue
        if name == own and len(nodes) > 1 and all(one.startswith("127.") or one == "::1" for one in addresses):
            failures.append(f"{own} takes its own name for a loopback address, where no other node reaches it")
        if name != own and address not in addresses:
            failures.append(f"{own} knows {name} as {', '.join(sorted(addresses))}, it is at {address}")
        try:
            told = socket.gethostbyaddr(address)
        except OSError:
            doubts.append(f"{own} knows no name for {address} ({name})")
            continue
        if name != own and name.split(".")[0] not in {one.split(".")[0] for one in (told[0], *told[1])}:
            doubts.append(f"{own} knows {address} as {told[0]}, it calls itself {name}")
    return failures, doubts


def check_clocks(around: Surroundings) -> Verdict:
    """The first rank asks one rank of every other node for its time."""
    names = on_every_rank(socket.gethostname, around.waits)
    others = {name: names.index(name) for name in names if name != names[0]}
    offsets = on_every_rank(lambda: _ask_clocks(others), around.waits)
    return judge_clocks(offsets[0])


def _ask_clocks(others: dict[str, int]) -> dict[str, float]:
    rank, offsets = dist.get_rank(), {}
    for name, other in sorted(others.items()):
        if rank == 0:
            offsets[name] = clock_offset([_ping(other) for _ in range(_PINGS)])
        elif rank == other:
            for _ in range(_PINGS):
                _answer()
    return offsets


def _ping(other: int) -> Ping:
    told = torch.zeros(1, dtype=torch.float64)
    asked_at = time.time()
    dist.send(told, other)
    dist.recv(told, other)
    return Ping(asked_at=asked_at, heard_at=told.item(), answered_at=time.time())


def _answer() -> None:
    told = torch.zeros(1, dtype=torch.float64)
    dist.recv(told, 0)
    told.fill_(time.time())
    dist.send(told, 0)


def check_storage(around: Surroundings) -> Verdict:
    """What one node writes and syncs all read whole, where snapshots are kept; each node writes once."""
    rank, scratch = around.place.rank, around.scratch
    names = on_every_rank(socket.gethostname, around.waits)
    writers = sorted({names.index(name) for name in names})
    try:
        written = on_every_rank(lambda: _write(scratch, rank) if rank in writers else None, around.waits)
        digests = {writer: told[0] for writer, told in enumerate(written) if told is not None}
        wanted = digests if rank == 0 else {0: digests[0]}
        waited_s = max(on_every_rank(lambda: _wait_for(scratch, wanted), around.waits))
    except OSError as error:
        return Verdict(check="storage", outcome=Outcome.FAIL, sentence=str(error))
    slowest_s = max(told[1] for told in written if told is not None)
    return Verdict(
        check="storage",
        outcome=Outcome.OK,
        sentence=f"{_FILE_BYTES / 1e6:.0f} MB from each of {len(writers)} nodes went to {scratch.parent} with fsync at "
        f"{_FILE_BYTES / 1e6 / slowest_s:.0f} MB/s or more; all ranks read it within {waited_s:.2f} s",
    )


def _write(scratch: Path, rank: int) -> tuple[str, float]:
    """The digest of what was written, and the seconds that it took to be on disk."""
    content, began = os.urandom(_FILE_BYTES), time.monotonic()
    scratch.mkdir(parents=True, exist_ok=True)
    with (scratch / f"rank-{rank}").open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    sync_directory(scratch)
    return hashlib.blake2b(content).hexdigest(), time.monotonic() - began


def _wait_for(scratch: Path, digests: dict[int, str]) -> float:
    """Seconds until all of the files were seen whole. Raises OSError."""
    began, missing = time.monotonic(), dict(digests)
    while missing:
        for rank, digest in list(missing.items()):
            path = scratch / f"rank-{rank}"
            if path.exists() and hashlib.blake2b(path.read_bytes()).hexdigest() == digest:
                del missing[rank]
        if missing and time.monotonic() - began > _VISIBLE_WITHIN_S:
            raise OSError(
                f"{socket.gethostname()} does not see what rank {min(missing)} wrote to {scratch.parent} "
                f"{_VISIBLE_WITHIN_S:.0f} s ago: is it the same storage on all nodes?"
            )
        time.sleep(0.01 if missing else 0)
    return time.monotonic() - began


def check_bandwidth(around: Surroundings) -> Verdict:
    """The all-reduce that every step of ddp does, on the device's own fabric."""
    ranks = around.place.world_size
    if ranks == 1:
        return Verdict(check="bandwidth", outcome=Outcome.SKIPPED, sentence="a single rank exchanges nothing")
    values = torch.ones(_REDUCED_BYTES // 4, device=around.device)
    _reduce(values)
    seconds = statistics.median(_reduce(values) for _ in range(_REDUCTIONS))
    slowest_s = max(on_every_rank(lambda: seconds, around.waits))
    return Verdict(
        check="bandwidth",
        outcome=Outcome.OK,
        sentence=f"all-reduce of {_REDUCED_BYTES >> 20} MiB over {ranks} ranks by {dist.get_backend()} takes "
        f"{slowest_s * 1000:.1f} ms, {bus_bandwidth(_REDUCED_BYTES, slowest_s, ranks) / 1e9:.2f} GB/s of bus bandwidth",
    )


def _reduce(values: torch.Tensor) -> float:
    began = time.perf_counter()
    dist.all_reduce(values)
    if values.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - began


# In this order: what a later check relies on comes first.
CHECKS = (check_names, check_clocks, check_storage, check_bandwidth)
