"""Files in memory that outlive workers. Each rank has two for copies of its state, and one to hand its state over.

In a group of several nodes, each node also has two files for each rank of one other node: mirrors of that rank's
copies. The keeper holds all files too, for the next agent. The kernel frees them when keeper, agent and workers have
ended, however they end.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress

from trainer.contract import env


class MemoryFiles:
    """Empty files, which workers find by their environment. There are none where the system cannot make them."""

    def __init__(self, workers: int) -> None:
        self._files: list[list[int]] = []
        self.mirrors: list[list[int]] = []  # by local rank on the other node
        with suppress(OSError, AttributeError):  # another system than Linux
            for local_rank in range(workers):
                self._files.append([])
                for _ in range(env.COPIES + 1):
                    self._files[-1].append(_create(f"state of local rank {local_rank}"))
            return
        self.close()

    @property
    def copies(self) -> Sequence[Sequence[int]]:
        """The files for the copies of this node's ranks, by local rank."""
        return [own[: env.COPIES] for own in self._files]

    @property
    def environment(self) -> dict[str, str]:
        files = {env.MEMORY: self._files, env.MIRRORS: self.mirrors}
        return {name: env.render_files(os.getpid(), own) for name, own in files.items() if own}

    def served(self) -> list[int]:
        """The files that other nodes may read."""
        return [file for own in (*self._files, *self.mirrors) for file in own]

    def add_mirrors(self, ranks: int) -> None:
        """Create files for the copies of `ranks` ranks of another node."""
        with suppress(OSError, AttributeError):
            while self._files and len(self.mirrors) < ranks:
                name = f"mirror of local rank {len(self.mirrors)}"
                self.mirrors.append([_create(name) for _ in range(env.COPIES)])

    def take_over(self, own: Sequence[Sequence[str]], mirrors: Sequence[Sequence[str]]) -> None:
        """Use these files of an earlier agent instead. If one cannot be opened, keep the empty ones."""
        with suppress(OSError):
            opened = _open_all(own), _open_all(mirrors)
            self.close()
            self._files, self.mirrors = opened

    @property
    def own(self) -> Sequence[Sequence[int]]:
        """All files of this node's ranks, by local rank."""
        return self._files

    def close(self) -> None:
        every, self._files, self.mirrors = [*self._files, *self.mirrors], [], []
        _close_all(every)


class KeptFiles:
    """The keeper's hold on the files of its newest agent."""

    def __init__(self) -> None:
        self._own: list[list[int]] = []
        self._mirrors: list[list[int]] = []

    def take(self, agent: int, own: Sequence[Sequence[int]], mirrors: Sequence[Sequence[int]]) -> None:
        """Hold these descriptors of the agent instead of the earlier ones. If it is gone already, keep those."""
        with suppress(OSError):
            opened = _open_all(_paths(agent, own)), _open_all(_paths(agent, mirrors))
            self.close()
            self._own, self._mirrors = opened

    def paths(self) -> tuple[list[list[str]], list[list[str]]]:
        """The files of the ranks and the mirrors, as paths for another process."""
        return _paths(os.getpid(), self._own), _paths(os.getpid(), self._mirrors)

    def close(self) -> None:
        every, self._own, self._mirrors = [*self._own, *self._mirrors], [], []
        _close_all(every)


def _paths(pid: int, files: Iterable[Iterable[int]]) -> list[list[str]]:
    return [[f"/proc/{pid}/fd/{file}" for file in own] for own in files]


def _open_all(files: Iterable[Iterable[str]]) -> list[list[int]]:
    """Raises OSError if one cannot be opened, and then leaves none open."""
    opened: list[list[int]] = []
    try:
        for own in files:
            opened.append([])
            for path in own:
                opened[-1].append(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        _close_all(opened)
        raise
    return opened


def _close_all(files: Iterable[Iterable[int]]) -> None:
    for file in (file for own in files for file in own):
        os.close(file)


def _create(name: str) -> int:
    """Nobody can shrink the file: that would end a process that reads it."""
    file = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return file
