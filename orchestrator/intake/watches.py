"""Find the run directories that may have changed, so that a pass need not read all of them (inotify(7)).

If some journals have grown and nothing else has changed, the watches also name these journals.

A watch is only a hint. An attempt without a watch counts as changed in every pass: on a file system that other machines
may write to, on another system than Linux, and beyond the kernel's limit of watches. All attempts count as changed
after the kernel's queue of events overflowed, and each one counts as changed every 225 to 300 s, whatever the kernel
says.
"""

from __future__ import annotations

import re
import sys
import time
import weakref
from collections.abc import Callable, Collection, Set
from contextlib import suppress
from pathlib import Path, PurePosixPath

import structlog

from orchestrator import rundir
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.observation.checks import check_after_s
from orchestrator.intake.kernel_queue import KernelQueue
from orchestrator.jobfolder.folder import Folder, JobFolder
from orchestrator.rundir import Grown, IncarnationKey
from orchestrator.store.mounts import file_system_of, parse_mountinfo
from trainer.contract import layout

if sys.platform == "linux":
    from inotify_simple import INotify, flags

log = structlog.get_logger()

_MOUNTINFO = Path("/proc/self/mountinfo")
# File systems that no other machine writes to.
_LOCAL = frozenset({"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"})
# The names that matter in the folder of an attempt or a replica, and in that of an incarnation.
_FOLDER = re.compile(r"(replica-)?[0-9]{1,9}")
_FILE = re.compile("|".join(map(re.escape, (layout.PROGRESS, layout.EVENTS, layout.EXIT))))
_NAMES = re.compile(f"{_FOLDER.pattern}|{_FILE.pattern}")


class Watches:
    """Not thread-safe.

    It uses one of the kernel's watches for each attempt, one for each replica, and one for each of a replica's newest
    16 incarnations.
    """

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._inotify = _open()
        self._queue = None if self._inotify is None else KernelQueue(self._inotify, _NAMES)
        if self._queue is not None:
            weakref.finalize(self, self._queue.stop)
        self._keys: dict[int, AttemptKey] = {}  # by watch
        self._places: dict[int, IncarnationKey] = {}  # of the folders with journals, by watch
        self._watches: dict[AttemptKey, list[int]] = {}
        self._fully_watched: set[AttemptKey] = set()  # every folder of them has a watch
        self._unchanged_until: dict[AttemptKey, float] = {}  # attempts in which at most journals have grown
        self._grown: dict[AttemptKey, dict[IncarnationKey, set[str]]] = {}  # the names of these journals
        self._local: dict[Path, bool] = {}

    def changed(self, launched: Set[AttemptKey]) -> Set[AttemptKey]:
        """Return the launched attempts that may have changed. Drop the watches of attempts no longer launched."""
        for key in self._watches.keys() - launched:
            self._forget(key)
        for watch, mask, name in () if self._queue is None else self._queue.take():
            if mask & flags.Q_OVERFLOW:
                self._unchanged_until.clear()
                self._fully_watched.clear()
            elif watch in self._keys:
                self._note(watch, mask, name)
        now = self._monotonic()
        self.mark_changed([key for key, until in self._unchanged_until.items() if until <= now])
        return (launched - self._unchanged_until.keys()) | self._grown.keys()

    def take_grown(self, key: AttemptKey) -> Grown | None:
        """Return the journals that have grown. None if more may have changed.

        Call this before they are read. If it returns None, call `watch` and read the whole attempt.
        """
        grown = self._grown.pop(key, None)
        return grown if key in self._unchanged_until else None

    def watch(self, job: JobFolder, key: AttemptKey, replicas: int) -> None:
        """Watch an attempt for changes from now on. Call this before it is read: a write during the read is a change.

        Idempotent. An attempt that cannot be watched stays changed.
        """
        self._unchanged_until.pop(key, None)
        self._grown.pop(key, None)
        if self._queue is None or not self._is_local(job.root):
            return
        self._queue.start()
        with suppress(OSError):
            if key not in self._fully_watched:
                self._add_watches(job, key, replicas)
                self._fully_watched.add(key)
            self._unchanged_until[key] = self._monotonic() + check_after_s(key.job_id)

    def mark_changed(self, keys: Collection[AttemptKey]) -> None:
        """Let `changed` return these attempts, for example because they were not read to their ends."""
        for key in keys:
            self._unchanged_until.pop(key, None)

    def _note(self, watch: int, mask: int, name: str) -> None:
        key, place = self._keys[watch], self._places.get(watch)
        if mask & flags.IGNORED:  # the folder was deleted
            del self._keys[watch]
            self._places.pop(watch, None)
            self._fully_watched.discard(key)
            self._unchanged_until.pop(key, None)
        elif not (_FOLDER if place is None else _FILE).fullmatch(name):
            return
        elif place is None:  # a folder that is not watched
            self._fully_watched.discard(key)
            self._unchanged_until.pop(key, None)
        elif name == layout.EXIT:
            self._unchanged_until.pop(key, None)
        else:
            self._grown.setdefault(key, {}).setdefault(place, set()).add(name)

    def _add_watches(self, job: JobFolder, key: AttemptKey, replicas: int) -> None:
        """Watch each folder before the folders in it, so that none created meanwhile is missed. Raises OSError."""
        with rundir.open_attempt(job, key.number) as attempt:
            self._add(attempt, key)
            for replica in range(replicas):
                with attempt.within(Path(f"replica-{replica}")) as folder:
                    if folder.exists:
                        self._add(folder, key)
            for life in rundir.incarnations(attempt, range(replicas)):
                with attempt.within(life.path) as folder:
                    self._add(folder, key, (life.replica, life.number))

    def _add(self, folder: Folder, key: AttemptKey, place: IncarnationKey | None = None) -> None:
        # The path names the open folder, because the job may replace the folder by a link.
        assert self._inotify is not None
        mask = flags.CREATE | flags.MOVED_TO | (0 if place is None else flags.MODIFY)
        watch = self._inotify.add_watch(f"/proc/self/fd/{folder.fileno()}", mask)
        if watch not in self._keys:
            self._watches.setdefault(key, []).append(watch)
        self._keys[watch] = key
        if place is not None:
            self._places[watch] = place

    def _forget(self, key: AttemptKey) -> None:
        for watch in self._watches.pop(key):
            self._places.pop(watch, None)
            if self._inotify is not None and self._keys.pop(watch, None) is not None:
                with suppress(OSError):  # the folder was deleted
                    self._inotify.rm_watch(watch)
        self._unchanged_until.pop(key, None)
        self._grown.pop(key, None)
        self._fully_watched.discard(key)

    def _is_local(self, root: Path) -> bool:
        if root not in self._local:
            self._local[root] = _file_system(root) in _LOCAL
        return self._local[root]


def _open() -> INotify | None:
    """Return None if the kernel, or its limit of instances, permits no watches."""
    if sys.platform != "linux":
        return None
    try:
        return INotify(nonblocking=True)
    except OSError as error:
        log.warning("run directories are not watched, so each pass reads all of them", reason=str(error))
        return None


def _file_system(root: Path) -> str | None:
    try:
        mounts = parse_mountinfo(_MOUNTINFO.read_text(errors="replace"))
        return file_system_of(PurePosixPath(root.resolve()), mounts)
    except OSError:
        return None
