"""Inject faults into the agent's own part of a job only.

Each fault reports what it did, or why it could not do anything. Standard library only.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from trainer.contract import layout
from trainer.contract.chaos import Fault
from trainer.contract.location import is_url
from trainer.contract.manifest import Manifest, parse_manifest, parse_snapshot_name

Report = Callable[[str], None]

SLOW_S = 30.0
_STOPPED_S, _RUNNING_S = 0.4, 0.1
_MANIFEST_BYTES = 64 * 1024 * 1024
_METADATA = ".metadata"  # of a torch distributed checkpoint: no other file can be read without it


@dataclass(frozen=True, kw_only=True)
class Worker:
    pid: int
    folder: Path


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where to inject a fault: one rank of this agent, and the folders of its job."""

    rank: int
    worker: Worker
    incarnation_dir: Path
    snapshots: str  # the folder of the job's snapshots, or a URL
    keeper: int  # the process with which the node's part of the job ends


def inject(fault: Fault, target: Target, report: Report) -> None:
    """Inject the fault and report it. A fault that ends this agent is reported first."""
    who = f"rank {target.rank} (pid {target.worker.pid})"
    try:
        _inject(fault, target, who, report)
    except OSError as error:
        report(f"{fault.value} had no effect on {who}: {error}")


def _inject(fault: Fault, target: Target, who: str, report: Report) -> None:
    if fault is Fault.KILL:
        _send(target.worker.pid, signal.SIGKILL)
        report(f"{who} was killed by SIGKILL")
    elif fault is Fault.HANG:
        _send(target.worker.pid, signal.SIGSTOP)
        report(f"{who} was stopped by SIGSTOP and does not continue by itself")
    elif fault is Fault.SLOW:
        descriptor = os.pidfd_open(target.worker.pid)
        threading.Thread(target=_slow_down, args=(descriptor,), name="slow", daemon=True).start()
        share = _STOPPED_S / (_STOPPED_S + _RUNNING_S)
        report(f"{who} is stopped for {share:.0%} of the time during {SLOW_S:.0f} s")
    elif fault is Fault.PREEMPT:
        report("this agent gets SIGTERM, as from a scheduler that preempts it")
        _send(target.keeper, signal.SIGTERM)
    elif fault is Fault.NODE_LOSS:
        report(f"this agent (pid {target.keeper}) and its workers are killed by SIGKILL")
        _send(target.keeper, signal.SIGKILL)
    elif fault is Fault.DISK_FULL:
        (target.incarnation_dir / f"{layout.FULL_DISK}{target.rank}").touch()
        report(f"the next snapshot write of rank {target.rank} fails with 'no space left on device'")
    elif fault is Fault.CORRUPT_SNAPSHOT:
        report(damage_newest(target.snapshots))


def damage_newest(snapshots: str) -> str:
    """Change one byte of the newest committed snapshot in a folder. Returns a sentence. Raises OSError.

    The byte is in the snapshot's smallest data file. Files with several hard links are left alone, because another job
    may share them.
    """
    if is_url(snapshots):
        raise OSError(f"{snapshots} is not a folder")
    folder, manifest = _find_newest(Path(snapshots))
    sizes = {name: entry.size_bytes for name, entry in manifest.files.items() if entry.size_bytes > 0}
    for name in sorted(sizes, key=lambda name: (name == _METADATA, sizes[name], name)):
        with _opened(folder, name, os.O_RDWR) as descriptor:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1 or not found.st_size:
                continue
            place = found.st_size // 2
            os.pwrite(descriptor, bytes([os.pread(descriptor, 1, place)[0] ^ 0xFF]), place)
            os.fsync(descriptor)
            return f"byte {place} of {name} in snapshot {folder.name} was changed; the next restore detects it"
    raise OSError(f"snapshot {folder.name} has no unshared file to damage")


def _find_newest(snapshots: Path) -> tuple[Path, Manifest]:
    names = [name for path in snapshots.iterdir() if (name := parse_snapshot_name(path.name)) is not None]
    for name in sorted(names, key=lambda name: (name.step, name.term), reverse=True):
        folder = snapshots / str(name)
        with suppress(OSError, ValueError, RecursionError), _opened(folder, layout.MANIFEST, os.O_RDONLY) as descriptor:
            document = json.loads(os.read(descriptor, _MANIFEST_BYTES))
            if isinstance(document, dict):
                return folder, parse_manifest(document)
    raise FileNotFoundError(f"there is no committed snapshot in {snapshots}")


@contextmanager
def _opened(folder: Path, name: str, flags: int) -> Iterator[int]:
    """Open a file directly in a folder. Symbolic links are not followed, and `name` must be a single component."""
    if os.path.basename(name) != name:  # noqa: PTH119  # a name, not a path
        raise OSError(f"{name!r} is not the name of a file in {folder}")
    within = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=within)
    finally:
        os.close(within)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _send(pid: int, number: signal.Signals) -> None:
    """Raises ProcessLookupError."""
    descriptor = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(descriptor, number)
    finally:
        os.close(descriptor)


def _slow_down(descriptor: int) -> None:
    """Stop and continue a process repeatedly. At the end it runs."""
    deadline = time.monotonic() + SLOW_S
    try:
        with suppress(ProcessLookupError):
            while time.monotonic() < deadline:
                signal.pidfd_send_signal(descriptor, signal.SIGSTOP)
                time.sleep(_STOPPED_S)
                signal.pidfd_send_signal(descriptor, signal.SIGCONT)
                time.sleep(_RUNNING_S)
    finally:
        os.close(descriptor)
