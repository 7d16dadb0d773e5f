"""Faults on purpose, as an agent injects them into its own part of a job. Nothing else is touched.

A fault tells what it did, or why it could do nothing. Standard library only.
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

Tell = Callable[[str], None]

SLOW_S = 30.0
_STOPPED_S, _RUNNING_S = 0.4, 0.1
_MANIFEST_BYTES = 64 * 1024 * 1024
_METADATA = ".metadata"  # of a distributed checkpoint of torch's: what all the others hang on


@dataclass(frozen=True, kw_only=True)
class Worker:
    pid: int
    folder: Path


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Where a fault strikes: one rank of this agent, and the folders of its job."""

    rank: int
    worker: Worker
    incarnation_dir: Path
    snapshots: str  # the folder of the job's snapshots, or a URL


def strike(fault: Fault, scene: Scene, tell: Tell) -> None:
    """Inject the fault. It is told before it is done where nobody would be left to tell, else afterwards."""
    who = f"rank {scene.rank} (pid {scene.worker.pid})"
    try:
        _strike(fault, scene, who, tell)
    except OSError as error:
        tell(f"{fault.value} did nothing, at {who}: {error}")


def _strike(fault: Fault, scene: Scene, who: str, tell: Tell) -> None:
    if fault is Fault.KILL:
        _send(scene.worker.pid, signal.SIGKILL)
        tell(f"{who} was killed by SIGKILL")
    elif fault is Fault.HANG:
        _send(scene.worker.pid, signal.SIGSTOP)
        tell(f"{who} was stopped by SIGSTOP and does not go on by itself")
    elif fault is Fault.SLOW:
        descriptor = os.pidfd_open(scene.worker.pid)
        threading.Thread(target=_hold_up, args=(descriptor,), name="slow", daemon=True).start()
        share = _STOPPED_S / (_STOPPED_S + _RUNNING_S)
        tell(f"{who} is stopped for {share:.0%} of the time during {SLOW_S:.0f} s")
    elif fault is Fault.PREEMPT:
        tell("this agent gets a scheduler's notice, SIGTERM")
        os.kill(os.getpid(), signal.SIGTERM)
    elif fault is Fault.NODE_LOSS:
        tell(f"this agent (pid {os.getpid()}) and its workers are killed by SIGKILL")
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault is Fault.DISK_FULL:
        (scene.incarnation_dir / f"{layout.FULL_DISK}{scene.rank}").touch()
        tell(f"the next part of a snapshot that rank {scene.rank} writes finds no space left on the device")
    elif fault is Fault.CORRUPT_SNAPSHOT:
        tell(damage_newest(scene.snapshots))


def damage_newest(snapshots: str) -> str:
    """Change one byte of the newest committed snapshot in a folder; what was done, in words. Raises OSError.

    Of its smallest file of data, and of none that another name leads to: what is linked may be another job's too.
    """
    if is_url(snapshots):
        raise OSError(f"{snapshots} is no folder")
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
            return f"byte {place} of {name} in snapshot {folder.name} was changed; the next restore finds it"
    raise OSError(f"snapshot {folder.name} has no file of its own that could be damaged")


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
    """A file of a folder. No link is followed out of it, and no name of several parts leads there."""
    if os.path.basename(name) != name:  # noqa: PTH119  # a name, not a path
        raise OSError(f"{name!r} is no name of a file in {folder}")
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


def _hold_up(descriptor: int) -> None:
    """Stop a process again and again; it runs at the end, whatever happens in between."""
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
