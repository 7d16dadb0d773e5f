"""The checks of a preflight. Each is collective and gives every rank the same verdict."""

from __future__ import annotations

import hashlib
import os
import platform
import socket
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from trainer.checks.preflight_fabric import check_bandwidth, check_pairs
from trainer.checks.preflight_nodes import CheckContext, own_name
from trainer.contract.blame import blame, judge_versions
from trainer.contract.verdict import Outcome, Ping, Verdict, clock_offset, judge_clocks
from trainer.snapshot import sync_directory
from trainer.worker.agreement import on_every_rank

_PINGS = 8
_FILE_BYTES = 4 * 1024 * 1024
_VISIBLE_WITHIN_S = 30.0  # half of an NFS client's longest attribute cache (nfs(5), acdirmax)
_ALL_READ_ALL = 16  # nodes
_MOST_NAMED = 5
_ESSENTIAL = ("torch", "python", "cuda", "nccl", "trainer")
_DRIVER = Path("/proc/driver/nvidia/version")  # NVIDIA driver README, "The /proc Interface"


def check_names(context: CheckContext) -> Verdict:
    """Every node resolves the name of every other node to its address, and the address to the name."""
    nodes = sorted({(host.name, host.address) for host in context.hosts})
    found = on_every_rank(lambda: find_names_problems(nodes), context.waits)
    problems = {problem for each in found for problem in each.failed}
    failures = sorted({problem.sentence for problem in problems})
    doubts = sorted({sentence for each in found for sentence in each.doubts})
    if failures and len(nodes) > 1:
        return Verdict(
            check="names", outcome=Outcome.FAIL, sentence="; ".join(failures), nodes=_blame_names(problems, context)
        )
    if failures or doubts:
        return Verdict(check="names", outcome=Outcome.WARN, sentence="; ".join(failures + doubts))
    names = ", ".join(name for name, _ in nodes[:4]) + (f" and {len(nodes) - 4} more" if len(nodes) > 4 else "")
    return Verdict(check="names", outcome=Outcome.OK, sentence=f"resolved in both directions: {names}")


def _blame_names(problems: Collection[NameProblem], context: CheckContext) -> tuple[str, ...]:
    """Nodes that resolve their own name wrongly, and those in the most pairs that do not find each other."""
    own = {context.node_of(problem.asker) for problem in problems if problem.asker == problem.asked}
    pairs = [(context.node_of(problem.asker), context.node_of(problem.asked)) for problem in problems]
    return tuple(sorted({*own, *blame(pair for pair in pairs if not own & set(pair))}))


@dataclass(frozen=True)
class NameProblem:
    """`asker` does not resolve `asked` to its address. Both are host names, as the nodes know them."""

    asker: str
    asked: str
    sentence: str


@dataclass(frozen=True)
class NamesFound:
    """`failed` keeps nodes from connecting; `doubts` are only unusual."""

    failed: tuple[NameProblem, ...]
    doubts: tuple[str, ...]


def find_names_problems(nodes: list[tuple[str, str]]) -> NamesFound:
    """The problems that this rank finds with each (name, address)."""
    failures, doubts, own = [], [], own_name()
    for name, address in nodes:
        try:
            addresses = {str(entry[4][0]) for entry in socket.getaddrinfo(name, None)}
        except OSError as error:
            failures.append(NameProblem(own, name, f"{own} cannot resolve {name}: {error.strerror}"))
            continue
        if name == own and len(nodes) > 1 and all(one.startswith("127.") or one == "::1" for one in addresses):
            sentence = f"{own} resolves its own name to a loopback address, where no other node reaches it"
            failures.append(NameProblem(own, own, sentence))
        if name != own and address not in addresses:
            sentence = f"{own} resolves {name} to {', '.join(sorted(addresses))}, but it is at {address}"
            failures.append(NameProblem(own, name, sentence))
        try:
            resolved = socket.gethostbyaddr(address)
        except OSError:
            doubts.append(f"{own} finds no name for {address} ({name})")
            continue
        if name != own and name.split(".")[0] not in {one.split(".")[0] for one in (resolved[0], *resolved[1])}:
            doubts.append(f"{own} resolves {address} to {resolved[0]}, but that node is called {name}")
    return NamesFound(tuple(failures), tuple(doubts))


def check_clocks(context: CheckContext) -> Verdict:
    """The first rank asks one rank of every other node for its time."""
    leaders = context.leaders
    others = {context.hosts[rank].node: rank for rank in leaders[1:]}
    offsets = on_every_rank(lambda: _ask_clocks(others), context.waits)
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
    clock = torch.zeros(1, dtype=torch.float64)
    asked_at = time.time()
    dist.send(clock, other)
    dist.recv(clock, other)
    return Ping(asked_at=asked_at, heard_at=clock.item(), answered_at=time.time())


def _answer() -> None:
    clock = torch.zeros(1, dtype=torch.float64)
    dist.recv(clock, 0)
    clock.fill_(time.time())
    dist.send(clock, 0)


def check_storage(context: CheckContext) -> Verdict:
    """Each node writes and syncs a file to the storage of the snapshots, and the others read it in full."""
    rank, scratch, leaders = context.place.rank, context.scratch, context.leaders
    written = on_every_rank(lambda: _try_to_write(scratch, rank) if rank in leaders else None, context.waits)
    digests = {writer: file.digest for writer, file in enumerate(written) if file is not None and file.digest}
    seen = on_every_rank(lambda: _wait_for(scratch, _to_read(rank, leaders, digests)), context.waits)
    unwritten = {
        context.hosts[writer].node: file.problem for writer, file in enumerate(written) if file and file.problem
    }
    unread = [
        (context.hosts[reader].node, context.hosts[writer].node)
        for reader, each in enumerate(seen)
        for writer in each.missing
    ]
    if unwritten or unread:
        problems = [f"{node} cannot write to {scratch.parent}: {problem}" for node, problem in unwritten.items()]
        problems += [
            f"{reader} does not see what {writer} wrote to {scratch.parent} {_VISIBLE_WITHIN_S:.0f} s ago: is it the "
            "same storage on all nodes?"
            for reader, writer in unread[:_MOST_NAMED]
        ]
        guilty = tuple(sorted({*unwritten, *blame(unread)}))
        return Verdict(check="storage", outcome=Outcome.FAIL, sentence="; ".join(problems), nodes=guilty)
    slowest_s = max(outcome.seconds for outcome in written if outcome is not None)
    return Verdict(
        check="storage",
        outcome=Outcome.OK,
        sentence=f"{_FILE_BYTES / 1e6:.0f} MB from each of {len(leaders)} nodes went to {scratch.parent} with fsync at "
        f"{_FILE_BYTES / 1e6 / slowest_s:.0f} MB/s or more; all ranks read it within "
        f"{max(each.waited_s for each in seen):.2f} s",
    )


@dataclass(frozen=True)
class Written:
    digest: str | None
    seconds: float
    problem: str | None = None


@dataclass(frozen=True)
class Seen:
    waited_s: float
    missing: tuple[int, ...]  # ranks whose file did not come


def _to_read(rank: int, leaders: Sequence[int], digests: Mapping[int, str]) -> dict[int, str]:
    """The digests of the files that a rank reads.

    A leader reads those of all leaders, in a large group those of the first one and of its neighbors. Other ranks read
    that of the first leader.
    """
    if rank not in leaders:
        wanted = leaders[:1]
    elif rank == leaders[0] or len(leaders) <= _ALL_READ_ALL:
        wanted = list(leaders)
    else:
        at = leaders.index(rank)
        wanted = [leaders[0], leaders[at - 1], leaders[(at + 1) % len(leaders)]]
    return {writer: digests[writer] for writer in wanted if writer in digests}


def _try_to_write(scratch: Path, rank: int) -> Written:
    try:
        return _write(scratch, rank)
    except OSError as error:
        return Written(None, 0.0, str(error))


def _write(scratch: Path, rank: int) -> Written:
    """Write and sync a file. Raises OSError."""
    content, began = os.urandom(_FILE_BYTES), time.monotonic()
    scratch.mkdir(parents=True, exist_ok=True)
    with (scratch / f"rank-{rank}").open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    sync_directory(scratch)
    return Written(hashlib.blake2b(content).hexdigest(), time.monotonic() - began)


def _wait_for(scratch: Path, digests: Mapping[int, str]) -> Seen:
    """Wait until all files can be read in full, and return how long that took and which never could."""
    began, missing = time.monotonic(), dict(digests)
    while missing and time.monotonic() - began <= _VISIBLE_WITHIN_S:
        for rank, digest in list(missing.items()):
            with suppress(OSError):
                if hashlib.blake2b((scratch / f"rank-{rank}").read_bytes()).hexdigest() == digest:
                    del missing[rank]
        time.sleep(0.01 if missing else 0)
    return Seen(time.monotonic() - began, tuple(missing))


def check_versions(context: CheckContext) -> Verdict:
    """All nodes run the same versions."""
    installed = on_every_rank(_own_versions, context.waits)
    versions = {context.hosts[rank].node: installed[rank] for rank in context.leaders}
    return judge_versions(versions, essential=_ESSENTIAL)


def _own_versions() -> dict[str, str]:
    found = {
        "python": ".".join(platform.python_version_tuple()[:2]),
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "",
        "nccl": _nccl(),
        "trainer": _digest(Path(__file__).parents[1]),
        "driver": _first_line(_DRIVER),
    }
    return {name: text for name, text in found.items() if text}


def _nccl() -> str:
    if not torch.cuda.is_available():
        return ""
    version: tuple[int, ...] = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    return ".".join(map(str, version))


def _digest(package: Path) -> str:
    """A digest of the package's code, which differs if one node's copy was edited."""
    digest = hashlib.blake2b(digest_size=6)
    for path in sorted(package.rglob("*.py")):
        digest.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _first_line(path: Path) -> str:
    try:
        return path.read_text(errors="replace").partition("\n")[0].strip()
    except OSError:
        return ""


# In this order: later checks rely on earlier ones.
CHECKS = (check_names, check_versions, check_clocks, check_storage, check_bandwidth, check_pairs)
